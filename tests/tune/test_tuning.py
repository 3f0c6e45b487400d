"""What a trial gets, what it tells Tune, and how Tune looks; Tune itself is pretended."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray import tune
from ray.tune.experiment import Experiment, Trial
from ray.tune.schedulers import TrialScheduler

from cluster.hardware.inventory import Inventory
from cluster.run.command_line import parse
from cluster.run.options import Launch
from fl.errors import UserError
from fl.events import ClientEnd, Epoch
from fl.federation import Request
from fl.methods.method import Choice, Integers, LogUniform, Uniform
from tests.tune.made_up import epoch, event
from tests.tune.made_up import trial as directory
from tune import tuning
from tune.options import SweepOptions
from tune.outcome import read_rows
from tune.trials import FAILURE
from tune.tuning import (
    DRIVER_BYTES,
    FINISHED,
    Lines,
    concurrency,
    make_scheduler,
    make_searcher,
    param_space,
    report,
    restored,
    trainable_of,
    trial_bundle,
)

SHARE = Inventory(node="host", cpus=1, memory_bytes=10**9, gpus=(), source="machine")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The figures that Tune is told."""
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "report", heard.append)
    return heard


def at(number: int, stage: str = "fusion") -> Epoch:
    return Epoch(stage=stage, epoch=number, epochs=3, loss=0.25, accuracy=0.5)


def test_tune_hears_of_each_epoch_but_the_last(told: list[Any]) -> None:
    """After the last one the run is not over: it is still to write its result."""
    for each in (at(1), at(2), at(3), at(1, "distil-init"), ClientEnd(client=0)):
        report(each)
    figures = [{"accuracy": 0.5, "loss": 0.25, "epoch": k} for k in (1, 2)]
    assert told == figures


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """A sweep's launch, in whose trial 00003 this process is."""
    context = SimpleNamespace(get_trial_id=lambda: "ab12_00003")
    monkeypatch.setattr(tune, "get_context", lambda: context)
    return parse([f"--output-dir={tmp_path}", "--name=sweep"])


def test_a_trial_runs_what_tune_proposes_and_ends_with_its_last_scores(
    launch: Launch, told: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[Launch, dict[str, Any]]] = []

    def run_trial(own: Launch, settings: dict[str, Any], *_: Any, **__: Any) -> None:
        ran.append((own, settings))
        directory(tmp_path / "sweep" / "trials", "00003", {}, epoch(1, 0.5, 1), epoch(2, 0.75, 2))

    monkeypatch.setattr(tuning, "run_trial", run_trial)
    # Searchers propose numbers of numpy's, which no configuration file could hold.
    settings = {"keep": np.float64(0.625), "num_samples": np.int64(70)}
    trainable_of(launch, SHARE, SweepOptions(validation=0.2))(settings)
    ((own, plain),) = ran
    assert own.name == "sweep/trials/00003"
    assert (own.run.options.keep, own.run.data.validation) == (0.625, 0.2)
    assert plain == {"keep": 0.625, "num_samples": 70}
    assert {type(value) for value in plain.values()} == {float, int}
    assert told == [{"accuracy": 0.75, "loss": 0.25, "epoch": 2, FINISHED: True}]


def trial(number: int, home: Path, **known: Any) -> Any:
    """A trial as Tune shows it to those who listen."""
    home.mkdir(exist_ok=True)
    return SimpleNamespace(
        trial_id=f"ab12_0000{number}",
        config={"keep": 0.123456789, "filter": "none"},
        last_result=known.get("result"),
        error_file=known.get("error_file"),
        remote_experiment_path=str(home / "ray" / "trials"),
    )


def test_each_trial_that_ends_has_a_line_that_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines()
    scores = {"accuracy": 0.5, "loss": 0.25, "epoch": 4}
    results = [{**scores, FINISHED: True}, scores, None]
    for number, result in enumerate(results):
        lines.on_trial_complete(0, [], trial(number, tmp_path, result=result))
    lines.on_trial_error(0, [], trial(3, tmp_path))
    tried = "keep=0.1235 filter=none"
    assert capsys.readouterr().out.splitlines() == [
        f"trial 00000 (1 ended): accuracy 0.5000, loss 0.2500; {tried}",
        f"trial 00001 (2 ended): stopped after epoch 4, accuracy 0.5000, loss 0.2500; {tried}",
        f"trial 00002 (3 ended): stopped after epoch 0; {tried}",
        f"trial 00003 (4 ended): failed; {tried}",
    ]


def test_why_a_trial_failed_is_what_it_said_itself_else_what_tune_says(tmp_path: Path) -> None:
    error = tmp_path / "error.txt"
    error.write_text("Traceback\n  somewhere\nActorDiedError: killed\n")
    for number in (0, 1):
        directory(tmp_path / "trials", f"0000{number}", {}, event("phase", 1.0))
    (tmp_path / "trials" / "00000" / FAILURE).write_text("UserError: too few\n")
    for number in (0, 1, 2):  # the last one never had a directory
        Lines().on_trial_error(0, [], trial(number, tmp_path, error_file=str(error)))
    reasons = [(tmp_path / "trials" / f"0000{k}" / FAILURE).read_text() for k in (0, 1)]
    assert reasons == ["UserError: too few\n", "ActorDiedError: killed\n"]
    row = read_rows(tmp_path / "trials", {})[-1]
    assert (row.name, row.status, row.reason) == ("00002", "failed", "ActorDiedError: killed")
    assert row.settings["filter"] == "none"


@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x05\x95"])
def test_a_damaged_search_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tuner.pkl").write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged .*: delete it; --resume") as refusal:
        restored(str(tmp_path), lambda settings: None, {})
    assert "\n" not in str(refusal.value)


GB = 10**9
LIGHT, HEAVY = Request(cpus=0.5, gpus=0.1), Request(cpus=2, gpus=0.4, memory_bytes=3 * GB)


def node(cpus: float, memory: float, gpus: float = 0) -> dict[str, float]:
    return {"CPU": cpus, "memory": memory, "GPU": gpus} if gpus else {"CPU": cpus, "memory": memory}


@pytest.mark.parametrize(
    ("nodes", "trials", "expected"),
    [
        ([node(16, 64 * GB)], 4, {"CPU": 4, "memory": 16 * GB}),
        ([node(16, 64 * GB)], 1, {"CPU": 16, "memory": 64 * GB}),
        ([node(4, 64 * GB)], 8, {"CPU": 2, "memory": 8 * GB}),  # the heavy client's cores
        ([node(16, 8 * GB)], 8, {"CPU": 2, "memory": 3 * GB}),  # and its memory
        ([node(16, 64 * GB, 4)], 2, {"CPU": 8, "memory": 32 * GB, "GPU": 2}),
        ([node(16, 64 * GB, 2)], 8, {"CPU": 2, "memory": 8 * GB, "GPU": 1}),  # never half of one
        ([node(8, 64 * GB), node(16, 32 * GB)], 4, {"CPU": 4, "memory": 16 * GB}),
    ],
)
def test_a_trial_gets_an_even_part_and_no_less_than_a_client_needs(
    nodes: list[dict[str, float]], trials: int, expected: dict[str, float]
) -> None:
    assert trial_bundle(nodes, [LIGHT, HEAVY], trials) == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(16, 64 * GB, 2), node(16, 64 * GB, 2)], 4),  # GPUs
        ([node(16, 1000 * GB)], 8),  # two cores for the heavy client
        ([node(16, 3 * (3 * GB + DRIVER_BYTES))], 3),
        ([node(1, GB)], 1),
        ([{"CPU": 4}, node(1, GB)], 3),
    ],
)
def test_there_is_a_trial_per_gpu_or_as_many_as_cores_and_memory_allow(
    nodes: list[dict[str, float]], expected: int
) -> None:
    assert concurrency(nodes, [LIGHT, HEAVY]) == expected


# What Tune's searchers and schedulers are told: where to look, and when to stop.


SPACE = {"keep": Uniform(0.4, 1.0), "lam": Choice((0.3, 0.6))}


def test_samples_lie_in_the_space() -> None:
    space = {"a": Uniform(0, 1), "b": LogUniform(1e-3, 1), "c": Integers(2, 4), "d": Choice((5, 6))}
    domains = param_space(space, "random")
    drawn = {name: domain.sample(size=300) for name, domain in domains.items()}
    assert all(0 <= a <= 1 for a in drawn["a"])
    assert all(1e-3 <= b <= 1 for b in drawn["b"])
    assert min(drawn["b"]) < 0.01  # a tenth of the range in size, two thirds of it in ratio
    assert set(drawn["c"]) == {2, 3, 4}
    assert set(drawn["d"]) == {5, 6}


def test_a_grid_search_tries_each_point_once() -> None:
    assert param_space(SPACE, "grid") == {
        "keep": {"grid_search": [0.4, 0.7, 1.0]},
        "lam": {"grid_search": [0.3, 0.6]},
    }


def proposed(seed: int, count: int = 5) -> list[dict[str, Any]]:
    """The settings of the first trials of a random search."""
    tune.register_trainable("nothing", lambda _: None)
    search: Any = make_searcher(SweepOptions(), seed)
    how = {"config": param_space(SPACE, "random"), "num_samples": count}
    search.add_configurations([Experiment("any", "nothing", **how)])
    return [search.next_trial().config for _ in range(count)]


def test_the_same_seed_tries_the_same_settings() -> None:
    assert proposed(3) == proposed(3)
    assert proposed(3) != proposed(4)


def decisions(scheduler: TrialScheduler, *told: dict[str, float]) -> list[str]:
    """What the scheduler decides on trials that report these figures, one after the other."""
    controller: Any = None
    trials = [Trial("any", stub=True) for _ in told]
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    pairs = zip(trials, told, strict=True)
    return [str(scheduler.on_trial_result(controller, trial, result)) for trial, result in pairs]


@given(st.integers(1, 200))
def test_asha_lets_a_trial_that_leads_come_to_its_end(epochs: int) -> None:
    """At its last epoch too, else it would not write its result."""
    asha = make_scheduler(SweepOptions(scheduler="asha"), epochs)
    trial, controller = Trial("any", stub=True), cast(Any, None)
    asha.on_trial_add(controller, trial)
    for number in range(1, epochs + 1):
        decided = asha.on_trial_result(controller, trial, {"epoch": number, "accuracy": 0.5})
        assert decided == TrialScheduler.CONTINUE


@pytest.mark.parametrize(
    ("name", "metric", "better", "worse"),
    [("asha", "accuracy", 0.9, 0.1), ("asha", "loss", 0.1, 2), ("fifo", "accuracy", 0.9, 0.1)],
)
def test_asha_alone_stops_those_that_fall_behind(
    name: str, metric: str, better: float, worse: float
) -> None:
    scheduler = make_scheduler(SweepOptions(scheduler=name, metric=metric), 9)
    *leading, last = decisions(
        scheduler, *({"epoch": 1, metric: value} for value in (better, better, better, worse))
    )
    assert set(leading) == {TrialScheduler.CONTINUE}
    assert last == (TrialScheduler.STOP if name == "asha" else TrialScheduler.CONTINUE)
