"""Sweeps as a user meets them: whole processes, real trials side by side, real signals."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.commands import events, figures, fingerprint, launch, result
from tests.tune.sweeps import CLIENTS, SERVER_SPACE, command, kill_sweep, run, sweep, trials

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

THREE = ("--num-samples=3", "--max-concurrent=3")
RATES = (1e-2, 5e-3, 1e-3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trials of server settings, three at a time: more than two cores have room for."""
    root = tmp_path_factory.mktemp("server")
    done = sweep(root, SERVER_SPACE, *THREE)
    assert done.returncode == 0, done.stderr
    (root / "stdout").write_text(done.stdout)
    return root


def trained(run_dir: Path) -> set[int]:
    """Clients that a run trained itself."""
    return {e["client"] for e in events(run_dir) if e["event"] == "client_end" and not e["reused"]}


def test_a_server_sweep_trains_each_client_once(server: Path) -> None:
    tried = trials(server)
    assert len(tried) == 4  # and the default
    assert {trial["status"] for trial in tried.values()} == {"finished"}
    folder = server / "runs" / "sweep" / "trials"
    assert sum(len(trained(folder / name)) for name in tried) == CLIENTS
    counted = result(server / "runs" / "sweep")["clients_trained_and_reused"]
    assert (counted["trained"], counted["reused"]) == (CLIENTS, 3 * CLIENTS)
    assert f"{CLIENTS} trainings, {3 * CLIENTS} reused" in (server / "stdout").read_text()


def test_trials_try_different_settings_of_the_space(server: Path) -> None:
    tried = [t["settings"] for name, t in trials(server).items() if name != "default"]
    assert len({s["keep"] for s in tried}) == 3
    assert all(0.4 <= s["keep"] <= 1 and 1e-4 <= s["fusion.lr"] <= 1e-2 for s in tried)
    assert {s["lam"] for s in tried} <= {0.25, 0.75}


def test_trials_are_scored_on_images_that_no_client_holds(server: Path) -> None:
    folder = server / "runs" / "sweep"
    assert result(folder)["scored_on"] == "validation"
    for name in trials(server):
        assert result(folder / "trials" / name)["scored_on"] == "validation"
    held = json.loads((folder / "trials" / "default" / "partition.json").read_text())["counts"]
    assert sum(map(sum, held)) == 200 - 20
    for path in (folder / "final").iterdir():
        assert result(path)["scored_on"] == "test"


def test_the_best_on_validation_is_what_goes_to_the_test(server: Path) -> None:
    figures = result(server / "runs" / "sweep")
    best = max(figures["trials"], key=lambda trial: trial["accuracy"])
    assert figures["best"]["trial"] == best["name"]
    final = server / "runs" / "sweep" / "final"
    assert figures["test"]["default"]["values"] == [result(final / "default-seed0")["accuracy"]]
    if best["name"] != "default":
        assert figures["test"]["best"]["values"] == [result(final / "best-seed0")["accuracy"]]


def outcome(run_dir: Path) -> tuple[dict[str, Any], list[float]]:
    """A run's figures and the losses of its fit, but not the device, which counts the cores that
    the process may use. A trial keeps no model to compare."""
    losses = [event["loss"] for event in events(run_dir) if event["event"] == "epoch"]
    return {n: v for n, v in figures(run_dir).items() if n != "device"}, losses


@contextmanager
def one_core() -> Iterator[None]:
    """What starts has the one core that a trial has: more threads round differently."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def test_a_trials_configuration_and_the_best_are_repeated_by_a_launch(
    server: Path, tmp_path: Path
) -> None:
    folder = server / "runs" / "sweep"
    trial = folder / "trials" / "00002"
    for name, config, cores in (
        ("trial", trial / "config.yaml", one_core()),
        ("best", folder / "best.yaml", nullcontext()),
    ):
        with cores:
            again = launch(tmp_path, f"--name={name}", "--runtime=inprocess", config=config)
        assert again.returncode == 0, again.stderr
    assert outcome(tmp_path / "trial") == outcome(trial)
    name = "default" if result(folder)["best"]["trial"] == "default" else "best"
    assert fingerprint(tmp_path / "best") == fingerprint(folder / "final" / f"{name}-seed0")


def test_what_a_sweep_leaves(server: Path) -> None:
    folder = server / "runs" / "sweep"
    for name in ("sweep.yaml", "best.yaml", "default.yaml", "tensorboard"):
        assert (folder / name).exists(), name
    page = (folder / "report.html").read_text()
    for word in ("default-seed0", "data:image/svg"):
        assert word in page
    saved = yaml.safe_load((folder / "sweep.yaml").read_text())
    assert saved["sweep"]["num_samples"] == 3


def test_a_killed_sweep_goes_on_from_where_it_was_moved_to(server: Path, tmp_path: Path) -> None:
    three = ("--num-samples=3", "--max-concurrent=3", "--runtime=inprocess")
    folder = tmp_path / "here" / "runs" / "sweep" / "trials"
    line = command(tmp_path / "here", SERVER_SPACE, *three)
    kill_sweep(
        line, tmp_path / "held", "00002", lambda: len(list(folder.glob("0*/result.json"))) >= 1
    )
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert 2 <= len(before) < 4  # the default is among them
    (tmp_path / "here").rename(tmp_path / "there")

    done = run(command(tmp_path / "there", SERVER_SPACE, *three, "--resume"))
    assert done.returncode == 0, done.stderr
    moved = tmp_path / "there" / "runs" / "sweep" / "trials"
    for path, written in before.items():  # what was finished is not run again
        assert (moved / path.relative_to(folder)).stat().st_mtime_ns == written
    there, undisturbed = trials(tmp_path / "there"), trials(server)
    assert len(there) == 4
    for name, trial in there.items():
        assert trial["settings"] == undisturbed[name]["settings"]
        assert trial["accuracy"] == undisturbed[name]["accuracy"]
    assert sum(trial["clients_trained"] for trial in there.values()) == CLIENTS


def test_a_generator_setting_retrains_generators_alone_and_trials_fail_or_are_stopped(
    tmp_path: Path,
) -> None:
    """At the first rate losses and decoders are not finite, and refused."""
    space = {"generator.lr": [1e9, *RATES]}
    asha = ("--search=grid", "--num-samples=4", "--scheduler=asha")
    done = sweep(tmp_path, space, *asha, "--max-concurrent=2", "--runtime=inprocess")
    assert done.returncode == 0, done.stderr
    tried = trials(tmp_path)
    folder = tmp_path / "runs" / "sweep" / "trials"
    (failed,) = (t for t in tried.values() if t["status"] == "failed")
    assert failed["settings"]["generator.lr"] == 1e9
    assert f"trial {failed['name']} failed: {failed['reason']}" in done.stdout
    assert "NaN" in failed["reason"]
    assert not done.stderr
    assert trained(folder / "default") == set(range(CLIENTS))
    for name in tried.keys() - {"default", failed["name"]}:
        assert trained(folder / name) == {2, 3}, name  # the generator clients
    states = [trial["status"] for trial in tried.values()]
    assert states.count("stopped") + states.count("finished") == len(RATES) + 1
    for trial in tried.values():
        assert trial["status"] != "finished" or trial["epoch"] == 4
