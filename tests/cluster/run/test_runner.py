"""A run from prepared federation to finished directory, in this process; also interrupted."""

import json
import os
import subprocess
import sys
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from cluster.launch import main
from cluster.run.command_line import parse
from cluster.run.prepare import Prepared, prepare
from cluster.run.run_dir import claim
from cluster.run.runner import CHECKPOINTS, JsonLines, Placements, execute, interrupt_first
from cluster.scheduling.capacity import Bundle
from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    ClientProgress,
    ClientStart,
    Event,
    Phase,
    RoundEnd,
    RunEnd,
    RunStart,
    parse_events,
)
from fl.federation import Request
from fl.fusion import checkpoints
from fl.json_files import JsonObject, read_json
from fl.report.read import read_events
from tests.cluster.commands import here, launch
from tests.cluster.run.following import many
from tests.fl.data.fake_files import write_idx_family
from tests.fl.toy import same_bits
from tests.undrawn import WRITE_REPORT, draw_nothing, undrawn

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


def ran(root: Path, *arguments: str, drawn: bool = False) -> Ran:
    launch = parse([*TOY, f"--output-dir={root}", *arguments])
    prepared, heard = prepare(launch), list[Event]()
    folder = claim(launch)
    with nullcontext() if drawn else mock.patch(WRITE_REPORT, draw_nothing):
        result = execute(launch, prepared, folder, QUIET, heard.append)
    return Ran(folder, prepared, result, heard)


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
        drawn=True,
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
        drawn=True,
    )
    shown = load_file(made.folder / "synthetic" / "samples.safetensors")
    assert shown.keys() == {"before", "after"} | ({"real_images"} if asked else set())
    page = (made.folder / "report.html").read_text()
    assert "Samples" in page
    assert ("real images" in page) == asked


def test_epochs_are_counted_where_only_some_are_tested(tmp_path: Path) -> None:
    result = ran(
        *(tmp_path, "--method=fedmho", "--generator.epochs=1", "--generator.width=0.1"),
        *("--fusion.epochs=5", "--fusion.test-every=2", "--num-samples=60"),
    ).result
    assert result["curve_epochs"] == [2, 4, 5]
    best = result["accuracy_curve"].index(result["best_accuracy"])
    assert result["best_epoch"] == result["curve_epochs"][best]


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


@pytest.mark.parametrize("left", ["", "\n", '{"event": "run_end"', '{"event": "run_end"\n'])
def test_half_a_line_of_an_earlier_start_swallows_no_event(tmp_path: Path, left: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(left)
    with closing(JsonLines(path)) as lines:
        lines(RunStart(run="a"))
    assert read_events(path) == [RunStart(run="a")]


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    lines = JsonLines(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        lines(RunStart(run="a", rounds=1))
    with pytest.raises(OSError, match="No space left"):
        lines.close()


def test_a_run_that_is_interrupted_amid_a_state_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--name=run", "--runtime=inprocess", "--fusion-checkpoint=0", "--num-clients=2")

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


# Who ran where and when, from the events of a run.


BUNDLE = Bundle(name="here", cpus=2, gpus=0, memory_bytes=0)


def end(client: int, seconds: float, *, reused: bool = False) -> ClientEnd:
    return ClientEnd(
        client=client,
        seconds=seconds,
        seconds_training=1.5,
        reused=reused,
        node="vm",
        assigned={"CPU": 1.0},
        peak_bytes=7,
    )


def start(client: int, seconds: float, memory_bytes: int = 0) -> ClientStart:
    requested = asdict(Request(cpus=1, gpus=0, memory_bytes=memory_bytes))
    return ClientStart(client=client, seconds=seconds, requested=requested)


def fail(client: int, seconds: float, reason: str) -> AttemptFailed:
    return AttemptFailed(client=client, attempt=1, seconds=seconds, reason=reason)


def end_of_round(seconds: float) -> RoundEnd:
    figures = {"round": 1, "rounds": 2, "accuracy": 0.5, "bytes_up": 0, "bytes_down": 0}
    return RoundEnd(seconds=seconds, took={}, **figures)


def test_a_client_that_failed_once_has_two_attempts_and_all_their_times() -> None:
    placements = Placements(many(1))
    for event in (start(0, 1.0, 10), fail(0, 2.0, "it died"), start(0, 3.0, 20), end(0, 5.0)):
        placements(event)
    (entry,) = placements.entries
    assert entry["attempts"] == 2
    assert entry["failures"] == [{"reason": "it died", "start": 1.0, "end": 2.0}]
    assert entry["requested"]["memory_bytes"] == 20
    assert placements.makespan([BUNDLE]) == {"seconds": 4.0, "lower_bound": 2.0}
    assert (entry["start"], entry["end"], entry["node"]) == (3.0, 5.0, "vm")
    assert (entry["assigned"], entry["peak_bytes"]) == ({"CPU": 1.0}, 7)


def test_makespan_stands_beside_its_lower_bound() -> None:
    placements = Placements(many(3))
    for client, (began, stop) in enumerate([(0.0, 4.0), (0.0, 2.0), (2.0, 5.0)]):
        placements(start(client, began))
        placements(end(client, stop))
    assert placements.makespan([BUNDLE]) == {"seconds": 5.0, "lower_bound": 4.5}


def test_clients_of_a_cohort_count_by_their_share_of_its_time() -> None:
    """Ten that take eight seconds together, in one process, are no eighty seconds of work."""
    placements = Placements(many(10))
    shared = asdict(Request(cpus=1, gpus=0, shared=True))
    for client in range(10):
        placements(ClientStart(client=client, seconds=0.0, requested=shared))
    for client in range(10):
        ended = replace(end(client, 8.0 + client / 100), seconds_training=0.8)
        placements(ended)
    assert placements.makespan([BUNDLE]) == {"seconds": 8.09, "lower_bound": 4.0}


def test_reused_clients_have_no_place_and_make_no_span() -> None:
    placements = Placements(many(1))
    placements(end(0, 0.1, reused=True))
    (entry,) = placements.entries
    assert (entry["reused"], entry["assigned"], entry["start"]) == (True, None, None)
    assert placements.makespan([BUNDLE]) is None


def test_a_dropped_client_is_marked_and_has_no_end() -> None:
    placements = Placements(many(2))
    dropped = ClientDropped(client=1, seconds=3.0, reason="it died")
    for event in (start(1, 1.0), fail(1, 2.0, "it died"), dropped, start(0, 1.0), end(0, 4.0)):
        placements(event)
    kept, left_out = placements.entries
    assert (kept["dropped"], left_out["dropped"], left_out["end"]) == (False, True, None)


def test_of_many_rounds_the_last_one_counts() -> None:
    placements = Placements(many(2))
    first = (start(0, 1.0), fail(0, 2.0, "it died"), start(0, 3.0), end(0, 5.0))
    for event in (*first, start(1, 1.0), end(1, 9.0), end_of_round(10.0)):
        placements(event)
    for event in (start(0, 11.0), end(0, 13.0), end_of_round(14.0)):
        placements(event)
    entry, _ = placements.entries
    assert (entry["attempts"], entry["failures"]) == (1, [])
    assert placements.makespan([BUNDLE]) == {"seconds": 2.0, "lower_bound": 2.0}


# A run's bits do not depend on where it is started, or by which variables libraries choose threads.


SMALL = (
    *("--num-clients=2", "--data.max-train=120", "--data.max-test=60", "--name=run"),
    *("--classifier.epochs=1", "--generator.epochs=1", "--num-samples=200", "--fusion.epochs=2"),
)
SHADOWS = ("cluster", "fl", "tune", "slurm", "kernels")


@pytest.mark.ray
@pytest.mark.slow
def test_neither_threads_of_the_environment_nor_shadows_change_a_run(tmp_path: Path) -> None:
    """In this process, which has one thread; on Ray, beside the user's files with the names of
    Onefold's packages and where the variable is no number; and where it is not set."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not ours')")
    unset = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    line = [*SMALL, f"--output-dir={tmp_path / 'here'}", "--runtime=inprocess"]
    assert here(main, line).returncode == 0
    onefold = [Path(sys.executable).with_name("onefold"), "run", *SMALL, "--output-dir=ray"]
    subprocess.run(onefold, cwd=tmp_path, env=unset | {"OMP_NUM_THREADS": "x"}, check=True)
    line[-2] = f"--output-dir={tmp_path / 'unset'}"
    alone = undrawn([sys.executable, "-m", "cluster.launch", *line])
    subprocess.run(alone, env=unset, check=True)
    runs = [tmp_path / name / "run" for name in ("here", "ray", "unset")]
    assert len({(run / "model" / "global.safetensors").read_bytes() for run in runs}) == 1
    assert [read_json(run / "result.json")["runtime"] for run in runs][1] == "ray"
