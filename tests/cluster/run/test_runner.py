"""A run from prepared federation to finished directory, in this process; also interrupted."""

import json
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from cluster.run.command_line import parse
from cluster.run.prepare import Prepared, prepare
from cluster.run.run_dir import claim
from cluster.run.runner import CHECKPOINTS, JsonLines, execute, interrupt_first
from fl.events import ClientEnd, ClientProgress, Event, Phase, RunEnd, RunStart, parse_events
from fl.fusion import checkpoints
from fl.json_files import JsonObject, read_json
from tests.cluster.commands import launch
from tests.fl.data.fake_files import write_idx_family
from tests.fl.toy import same_bits

TOY = [
    *("--method=fedavg", "--runtime=inprocess", "--num-clients=2", "--name=run"),
    *("--data.max-train=60", "--data.max-test=20"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--classifier.epochs=1"),
]
QUIET = Console(quiet=True)


@dataclass(frozen=True)
class Ran:
    """A finished run: its directory, what was returned, and what a listener heard."""

    folder: Path
    prepared: Prepared
    result: JsonObject
    heard: list[Event]


def ran(root: Path, *arguments: str) -> Ran:
    launch = parse([*TOY, f"--output-dir={root}", *arguments])
    prepared, heard = prepare(launch), list[Event]()
    folder = claim(launch)
    return Ran(folder, prepared, execute(launch, prepared, folder, QUIET, heard.append), heard)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("runner"))


def test_what_is_returned_is_what_is_written(run: Ran) -> None:
    written = read_json(run.folder / "result.json")
    assert written == json.loads(json.dumps(run.result))
    assert (run.result["method"], run.result["clients"]) == ("fedavg", 2)
    assert run.result["protocol"] == "one-shot"
    assert run.result["fusion"] == {"ranks": 1, "restarts": 0}
    assert run.result["scored_on"] == "test"
    assert run.result["accuracy"] == run.result["accuracy_curve"][-1]
    assert max(run.result["accuracy_curve"]) == run.result["best_accuracy"]
    assert "per_domain_accuracy" not in run.result  # the digits have no domains
    assert "makespan" not in run.result  # nobody placed these clients


def test_the_confusion_matrix_is_of_the_last_evaluation(run: Ran) -> None:
    counts = torch.tensor(run.result["confusion"])
    assert int(counts.trace()) / int(counts.sum()) == run.result["accuracy"]
    for right, tested, accuracy in zip(
        counts.diagonal().tolist(),
        counts.sum(1).tolist(),
        run.result["per_class_accuracy"],
        strict=True,
    ):
        assert accuracy == (right / tested if tested else None)


def test_whoever_listens_hears_what_is_noted(run: Ran) -> None:
    noted = parse_events((run.folder / "metrics.jsonl").read_text().splitlines())
    heard = [event for event in run.heard if not isinstance(event, ClientProgress)]
    assert [type(event) for event in noted] == [type(event) for event in heard]
    assert isinstance(run.heard[0], RunStart)
    assert run.heard[-1] == replace(
        RunEnd(accuracy=run.result["accuracy"]), seconds=run.heard[-1].seconds
    )


def test_bytes_and_seconds_are_those_that_were_told_of(run: Ran) -> None:
    ends = [event for event in run.heard if isinstance(event, ClientEnd)]
    assert [end.client for end in ends] == [0, 1]
    assert run.result["bytes_up"] == sum(end.bytes_up for end in ends) > 0
    seconds = run.result["seconds"]
    told = {e.phase: e.took for e in run.heard if isinstance(e, Phase) and e.took is not None}
    assert seconds.keys() == told.keys() | {"total"}
    assert all(seconds[name] == pytest.approx(took, abs=1e-3) for name, took in told.items())
    assert sum(told.values()) <= seconds["total"] + 1e-3


def test_the_partition_is_that_of_the_clients(run: Ran) -> None:
    partition = json.loads((run.folder / "partition.json").read_text())
    assert partition["hash"] == run.result["partition"]["hash"] == run.prepared.partition.digest
    assert list(map(sum, partition["counts"])) == [c.num_samples for c in run.prepared.members]
    assert partition["roles"] == ["classifier"] * 2
    assert partition["class_names"] == [str(digit) for digit in range(10)]
    assert [p["client"] for p in run.result["placements"]] == [0, 1]


def test_the_model_is_kept_and_samples_only_where_there_are_such(run: Ran) -> None:
    state = load_file(run.folder / "model" / "global.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    assert (run.folder / "report.html").exists()
    assert not (run.folder / "synthetic").exists()
    assert not (run.folder / CHECKPOINTS).exists()


@pytest.mark.parametrize("asked", [False, True])
def test_images_that_left_clients_are_shown_only_where_asked_for(
    tmp_path: Path, *, asked: bool
) -> None:
    write_idx_family(tmp_path / "data", "mnist")
    hfldd = ran(
        *(tmp_path, "--method=hfldd", "--rounds=2", "--no-distilled", "--knowing.epochs=1"),
        *("--auxiliary.dataset=mnist", f"--data-root={tmp_path / 'data'}"),
        *(["--report-real-images"] if asked else []),
    )
    page = (hfldd.folder / "report.html").read_text()
    assert "without distillation" in page
    assert ("What left the clients" in page) == asked
    assert (hfldd.folder / "sent").exists() == asked


@pytest.mark.parametrize("asked", [False, True])
def test_real_images_are_in_a_report_only_where_asked_for(tmp_path: Path, *, asked: bool) -> None:
    made = ran(
        *(tmp_path, "--method=fedmho", "--generator.epochs=1", "--generator.width=0.1"),
        *("--fusion.epochs=1", "--num-samples=60"),
        *(["--report-real-images"] if asked else []),
    )
    shown = load_file(made.folder / "synthetic" / "samples.safetensors")
    assert shown.keys() == {"before", "after"} | ({"real_images"} if asked else set())
    page = (made.folder / "report.html").read_text()
    assert "Samples" in page
    assert ("real images" in page) == asked


def test_a_run_over_rounds_on_held_out_images_says_so(tmp_path: Path) -> None:
    result = ran(tmp_path, "--rounds=2", "--data.validation=0.25").result
    assert (result["protocol"], result["rounds"]) == ("rounds", 2)
    assert result["scored_on"] == "validation"
    assert len(result["accuracy_curve"]) == len(result["per_round"]) == 2
    assert result["bytes_down"] > 0


def test_a_run_that_was_broken_off_has_no_result_and_goes_on_with_what_it_had(
    run: Ran, tmp_path: Path
) -> None:
    launch = parse([*TOY, f"--output-dir={tmp_path}"])
    folder = claim(launch)

    def stop(event: Event) -> None:
        if isinstance(event, ClientEnd):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        execute(launch, prepare(launch), folder, QUIET, stop)
    assert not (folder / "result.json").exists()

    resumed = ran(tmp_path, "--resume")
    assert resumed.folder == folder
    reused = [event.reused for event in resumed.heard if isinstance(event, ClientEnd)]
    assert sorted(reused) == [False, True]
    models = [load_file(each.folder / "model" / "global.safetensors") for each in (run, resumed)]
    assert same_bits(*models)


def test_every_event_is_a_line_but_for_clients_progress(tmp_path: Path) -> None:
    told = [RunStart(run="a"), ClientProgress(client=1, done=1, of=2, loss=0.5), RunEnd(accuracy=1)]
    with closing(JsonLines(tmp_path / "metrics.jsonl")) as lines:
        for event in told:
            lines(event)
    written = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert list(parse_events(written)) == [told[0], told[2]]


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    lines = JsonLines(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        lines(RunStart(run="a", rounds=1))
    with pytest.raises(OSError, match="No space left"):
        lines.close()


def test_a_run_that_is_interrupted_amid_a_state_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--name=run", "--runtime=inprocess", "--fusion-checkpoint=0")

    def stopped(path: Path, content: memoryview, about: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_sealed", stopped)
        done = launch(tmp_path, *asked)
    assert (done.returncode, done.stderr.count("\n")) == (130, 1)
    assert done.stderr.startswith("interrupted; ")
    assert launch(tmp_path, *asked, "--resume").returncode == 0


def fails_twice() -> None:
    try:
        raise OSError("another")
    except OSError:
        raise ValueError("own")  # noqa: B904


def test_what_no_interrupt_has_to_do_with_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="own"), interrupt_first():
        fails_twice()
