"""The main command as a user meets it: whole processes, real files, real signals."""

import json
import subprocess
from math import inf
from pathlib import Path

import psutil
import pytest

from cluster.launch import main
from fl.methods.registry import METHODS
from tests.cluster import commands
from tests.cluster.commands import (
    SMALL,
    command,
    environment,
    events,
    fingerprint,
    here,
    launch,
    result,
)
from tests.cluster.living import await_end, wait_for
from tests.cluster.run.made_up import measure_nothing
from tests.held import THERE, held

KEYS = {
    *("method", "dataset", "alpha", "clients", "seed", "accuracy", "per_class_accuracy"),
    *("bytes_up", "bytes_down", "seconds", "device", "versions", "start_accuracy"),
    *("best_accuracy", "best_epoch", "partition", "protocol", "runtime"),
}
FILES = (
    *("config.yaml", "result.json", "metrics.jsonl", "partition.json", "report.html"),
    *("model/global.safetensors", "synthetic/samples.safetensors"),
    *("tensorboard", "plots/accuracy.svg", "plots/partition.svg", "plots/samples.png"),
    *("plots/time.svg", "plots/bytes.svg"),
)
PHASES = {"local", "synthesis", "filter", "fusion", "total"}


@pytest.fixture(scope="module")
def both_runtimes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal runs, one per runtime, neither reusing the other's clients."""
    root = tmp_path_factory.mktemp("launch")
    here = launch(root / "here", "--name=run", "--runtime=inprocess")
    there = launch(root / "ray", "--name=run", drawn=True)
    assert here.returncode == there.returncode == 0, here.stderr + there.stderr
    (root / "stdout").write_text(there.stdout)
    return root


def test_a_run_leaves_what_the_design_lists(both_runtimes: Path) -> None:
    run = both_runtimes / "ray" / "run"
    for name in FILES:
        assert (run / name).exists(), name
    assert len(list((run / "updates").iterdir())) == 4
    figures = result(run)
    assert [p["client"] for p in figures["placements"]] == [0, 1, 2, 3]
    assigned = {p["model"]: tuple(p["assigned"].items()) for p in figures["placements"]}
    assert len(assigned) == len(set(assigned.values())) == 2
    for p in figures["placements"]:
        assert p["assigned"]["memory"] == p["requested"]["memory_bytes"] > p["peak_bytes"] > 0
        assert (p["attempts"], p["reused"], p["device_uuid"]) == (1, False, None)
        assert p["seconds"] > 0
    assert set(figures) >= KEYS
    assert set(figures["seconds"]) == PHASES
    assert figures["protocol"] == "one-shot"
    assert 0 <= figures["accuracy"] <= 1
    assert figures["accuracy"] == figures["accuracy_curve"][-1]
    assert figures["bytes_up"] > 0
    assert figures["bytes_down"] == 0  # one-shot: nothing is sent back
    assert figures["partition"]["hash"] == json.loads((run / "partition.json").read_text())["hash"]


def test_both_runtimes_give_the_same_result(both_runtimes: Path) -> None:
    assert fingerprint(both_runtimes / "here" / "run") == fingerprint(both_runtimes / "ray" / "run")


def test_the_last_lines_are_accuracy_time_and_report(both_runtimes: Path) -> None:
    accuracy, seconds, report = (both_runtimes / "stdout").read_text().splitlines()[-3:]
    run = both_runtimes / "ray" / "run"
    assert accuracy.startswith(f"accuracy {result(run)['accuracy']:.4f}")
    assert seconds.startswith("time ")
    assert report.split()[-1] == str(run / "report.html")


def test_progress_names_every_client_and_epoch(both_runtimes: Path) -> None:
    lines = (both_runtimes / "stdout").read_text()
    for client in range(4):
        assert f"client {client} " in lines
    assert "fusion epoch 2/2" in lines


def test_a_neighbouring_run_reuses_the_clients_and_says_so(both_runtimes: Path) -> None:
    done = launch(both_runtimes / "ray", "--name=md", "--method=fedmho-md", "--runtime=inprocess")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("reused from the store") == 4
    assert (
        result(both_runtimes / "ray" / "md")["bytes_up"]
        == result(both_runtimes / "ray" / "run")["bytes_up"]
    )


def test_feddf_over_rounds_is_the_released_protocol_by_name(
    tmp_path: Path, mnist_root: Path
) -> None:
    sizes = ["--num-clients=4", "--data.max-train=200", "--data.max-test=100", "--distil.epochs=1"]
    sizes += ["--classifier.width=0.05", "--classifier.epochs=1", "--auxiliary.max-images=50"]
    arguments = ["--method=feddf", "--rounds=2", f"--data-root={mnist_root}", *sizes]
    where = [f"--output-dir={tmp_path}", "--name=run", "--runtime=inprocess"]
    done = here(main, [*arguments, *where])
    assert done.returncode == 0, done.stderr
    figures = result(tmp_path / "run")
    assert (figures["protocol"], figures["rounds"]) == ("released", 2)
    assert len(figures["accuracy_curve"]) == 2
    assert figures["bytes_down"] > 0


def test_dry_run_prints_plan_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_nothing(monkeypatch)
    done = launch(tmp_path / "runs", "--dry-run", "--alpha=0.7")
    assert done.returncode == 0
    assert "alpha: 0.7" in done.stdout
    for word in ("vgg9", "cvae-small", "memory", "at once", "expected", "would run in"):
        assert word in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.ray
@pytest.mark.slow
def test_a_client_over_its_share_is_left_out_as_asked(tmp_path: Path) -> None:
    starved = ("--name=run", "--prototypes", "cnn", "vgg9", "--classifier.width=0.25")
    starved += ("--resources.models", "vgg9.memory-bytes=1000000")
    done = launch(tmp_path, *starved, "--on-client-failure=drop", drawn=True)
    assert done.returncode == 0, done.stderr
    figures = result(tmp_path / "run")
    assert figures["on_client_failure"] == "drop"
    ((client, reason),) = figures["dropped"].items()
    assert client == "1"
    assert reason.startswith("OverspentError: ")
    assert "2000000 bytes of memory" in reason
    assert [p["dropped"] for p in figures["placements"]] == [False, True, False, False]
    assert len(list((tmp_path / "run" / "updates").iterdir())) == 3
    assert "without  client 1: " in done.stdout
    assert "left out of the result" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runtime=inprocess", "--num-clients=1000"], "samples"),
        (["--runtime=inprocess", "--aggregate=krum", "--num-clients=8"], "at least 5 clients of"),
        (["--runtime=inprocess", "--dataset=mnist", "--data-root=nowhere"], "missing: MNIST/raw/"),
        (["--resources.classifier.cpus=4096"], "asks for 4096 cores, "),
        (
            ["--resources.models", "vgg9.memory-bytes=1000000000000000"],
            " and 1000.0 TB of memory, ",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, f"--output-dir={tmp_path / 'runs'}", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert told.startswith("onefold: ")
    assert not (tmp_path / "runs").exists()


AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
# Slow enough that the second client is at work when the first one's end has been told.
SLOW = ["--name=run", "--max-actors=1", "--classifier.epochs=20", "--generator.epochs=40"]


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_resumes_to_the_same_result(tmp_path: Path) -> None:
    """One that is interrupted: see tests/cluster/test_strangers.py."""
    undisturbed = launch(tmp_path / "undisturbed", *SLOW, "--runtime=inprocess")
    assert undisturbed.returncode == 0, undisturbed.stderr
    process = subprocess.Popen(
        command(tmp_path, *SLOW),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment() | held(tmp_path / "held", '"event": "client_end"'),
    )
    wait_for(process, (tmp_path / "held" / THERE).exists)
    family = psutil.Process(process.pid).children(recursive=True)
    # Ray's agents end once they have told the dead cluster of it in vain, which takes a minute.
    family = [p for p in family if p.name() not in AGENTS]
    process.kill()
    process.wait()
    await_end(family, within=inf)  # it ends nobody itself
    assert events(tmp_path / "run")  # every line is whole

    # It goes on in one process: both runtimes have the same result.
    resumed = launch(tmp_path, "--runtime=inprocess", *SLOW, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("reused from the store") == 1
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "undisturbed" / "run")


LIAR = '''
import os

import onefold
from fl.training.task import train_by_recipe


def lies(inputs):
    """As many others train, but for one client of a hostile user."""
    output = train_by_recipe(inputs)
    if inputs.client.id == 1 and "HONEST" not in os.environ:
        for weight in output.tensors.values():
            weight.mul_(1e25)
    return output


@onefold.method("among-liars", over_rounds=False)
def among_liars(clients, server, config):
    model = onefold.starting_model(config, server)
    start = server.evaluate(model)
    onefold.average(model, clients.map(lies))
    return onefold.Outcome(model=model, start=start, epochs=[server.evaluate(model)])
'''


@pytest.fixture
def methods_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plugin registers in this process is forgotten afterwards."""
    monkeypatch.setitem(METHODS, "among-liars", METHODS["fedavg"])
    del METHODS["among-liars"]


@pytest.mark.usefixtures("methods_as_before")
def test_a_hostile_upload_ends_the_run_in_one_line_or_is_dropped_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "liar.py").write_text(LIAR)
    line = ["--runtime=inprocess", "--method=among-liars", f"--plugin={tmp_path / 'liar.py'}"]
    small = ["--num-clients=4", "--data.max-train=200", "--data.max-test=100"]
    model = ["--classifier.model=cnn", "--classifier.width=0.1", "--classifier.epochs=1"]
    line += [*small, *model, f"--output-dir={tmp_path / 'runs'}"]
    stopped = commands.here(main, [*line, "--name=stop"])
    said = stopped.stderr.splitlines()
    assert stopped.returncode == 1
    assert len(said) == 2
    assert said[0].startswith("onefold: client 1 (cnn) failed: sent classifier.")
    assert "Traceback" not in stopped.stderr + stopped.stdout
    assert len(list((tmp_path / "runs" / ".store").glob("*.safetensors"))) == 1  # client 0's
    asked = [*line, "--name=drop"]
    assert commands.here(main, asked).returncode == 1
    dropped = commands.here(main, [*asked, "--resume", "--on-client-failure=drop"])
    assert dropped.returncode == 0
    assert list(result(tmp_path / "runs" / "drop")["dropped"]) == ["1"]
    resumed = commands.here(main, [*line, "--name=stop", "--resume"], HONEST="1")
    assert resumed.returncode == 0
    assert result(tmp_path / "runs" / "stop")["dropped"] == {}


def test_a_server_whose_training_diverges_ends_the_run_with_its_stage_and_no_result(
    tmp_path: Path,
) -> None:
    small = ["--num-clients=4", "--data.max-train=200", "--data.max-test=100"]
    local = ["--classifier.width=0.05", "--classifier.epochs=1", "--generator.epochs=1"]
    line = ["--runtime=inprocess", "--method=fedmho", *small, *local, "--num-samples=60"]
    stopped = commands.here(
        main, [*line, "--fusion.lr=1e9", f"--output-dir={tmp_path}", "--name=run"]
    )
    assert stopped.returncode == 1
    said = stopped.stderr.splitlines()
    assert said[0].startswith("onefold: fusion: its training diverged: ")
    assert len(said) == 2
    assert not (tmp_path / "run" / "result.json").exists()
