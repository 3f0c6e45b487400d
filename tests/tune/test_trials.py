"""A trial's launch and directory: the sweep's own, with other settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory
from cluster.run import runner
from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.run_dir import nested
from fl.command import run_command
from fl.errors import UserError
from fl.events import Event, RunEnd
from fl.json_files import flatten, read_json, read_json_if_whole, write_json
from fl.report.__main__ import regenerate
from tune.trials import FAILURE, RESULT, SETTINGS, derive, run_trial, share_of


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return parse([f"--output-dir={tmp_path}", "--name=sweep", "--overwrite", "--max-actors=2"])


def test_a_trial_differs_in_its_settings_and_held_out_images_alone(launch: Launch) -> None:
    settings = {"keep": 0.6, "fusion.lr": 1e-5, "num_samples": 70, "filter": "none"}
    trial = derive(launch, settings, "sweep/trials/00003", validation=0.25)
    before, now = flatten(nested(launch.run)), flatten(nested(trial.run))
    changed = {name: value for name, value in now.items() if value != before[name]}
    assert changed == {**settings, "data.validation": 0.25}
    assert (trial.name, trial.max_actors) == ("sweep/trials/00003", 2)
    assert (trial.resume, trial.overwrite) == (True, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--overwrite"],
        ["--method=fedmho-md", "--prototypes", "vgg9", "cnn", "--betas", "1", "2"],
        ["--partition.recut", "--data.max-train=9"],
    ],
)
def test_without_settings_it_is_the_launchs_own_run(arguments: list[str]) -> None:
    """Values that are None, lists and switches are written as arguments, and read again."""
    launch = parse(arguments)
    assert derive(launch, {}, "sweep/trials/default").run == launch.run


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"keep": 3}, "keep must be in"), ({"kep": 0.5}, "unknown option '--kep'")],
)
def test_settings_are_checked_as_a_users_are(
    launch: Launch, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        derive(launch, settings, "any")


class Execution:
    """Instead of the run: tells its end and leaves a result, or fails."""

    def __init__(self) -> None:
        self.ran = 0
        self.error: Exception | None = None

    def __call__(
        self, launch: Launch, prepared: Any, run_dir: Path, console: Any, *others: Any, report: bool
    ) -> dict[str, Any]:
        self.ran += 1
        console.print("at work")
        if self.error:
            raise self.error
        for other in others:
            other(RunEnd(accuracy=0.5))
        for folder in ("model", "updates", "synthetic"):
            (run_dir / folder).mkdir()
        result = {"accuracy": launch.run.options.keep}
        write_json(run_dir / RESULT, result)
        return result


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch) -> Execution:
    made = Execution()
    monkeypatch.setattr(runner, "execute", made)
    return made


def tried(
    launch: Launch, settings: dict[str, Any], *listeners: Any, report: bool = False
) -> dict[str, Any]:
    ready: Any = SimpleNamespace()
    own = derive(launch, settings, "trial")
    return run_trial(own, settings, *listeners, prepare_with=lambda _: ready, report=report)


@pytest.mark.parametrize(
    ("report", "folders"), [(False, {"synthetic"}), (True, {"synthetic", "model", "updates"})]
)
def test_only_a_final_run_keeps_its_model_and_uploads(
    launch: Launch, execution: Execution, tmp_path: Path, report: bool, folders: set[str]
) -> None:
    tried(launch, {}, report=report)
    assert {path.name for path in (tmp_path / "trial").iterdir() if path.is_dir()} == folders


def test_a_trial_leaves_its_settings_and_log_and_is_heard(
    launch: Launch, execution: Execution, tmp_path: Path
) -> None:
    heard: list[Event] = []
    assert tried(launch, {"keep": 0.6}, heard.append) == {"accuracy": 0.6}
    assert heard == [RunEnd(accuracy=0.5)]
    trial = tmp_path / "trial"
    assert read_json(trial / SETTINGS) == {"keep": 0.6}
    assert (trial / "log.txt").read_text() == "at work\n"
    assert not (trial / FAILURE).exists()


def test_a_trials_report_is_drawn_when_somebody_asks_for_it(tmp_path: Path) -> None:
    where = [f"--output-dir={tmp_path}", "--runtime=inprocess", "--num-clients=2"]
    small = ["--data.max-train=60", "--data.max-test=20", "--classifier.epochs=1"]
    cnn = ["--method=fedavg", "--classifier.model=cnn", "--classifier.width=0.2"]
    run_trial(derive(parse([*where, *small, *cnn]), {}, "trial"), {}, prepare_with=prepare)
    assert read_json_if_whole(tmp_path / "trial" / RESULT)
    page = tmp_path / "trial" / "report.html"
    assert not page.exists()
    assert run_command(regenerate, "report", [str(page.parent)]) == 0
    assert page.exists()


def test_a_finished_trial_is_run_again_with_other_settings_alone(
    launch: Launch, execution: Execution, tmp_path: Path
) -> None:
    """A killed sweep may have told nobody what it tried under that number."""
    assert tried(launch, {"keep": 0.6}) == tried(launch, {"keep": 0.6})
    assert execution.ran == 1
    assert tried(launch, {"keep": 0.7}) == {"accuracy": 0.7}
    assert read_json(tmp_path / "trial" / SETTINGS) == {"keep": 0.7}


def test_why_a_trial_failed_is_one_line_until_it_succeeds(
    launch: Launch, execution: Execution, tmp_path: Path
) -> None:
    trial = tmp_path / "trial"
    execution.error = UserError("too few\n  samples")
    with pytest.raises(UserError, match="too few"):
        tried(launch, {"keep": 0.6})
    assert (trial / FAILURE).read_text() == "UserError: too few samples\n"
    assert "Traceback" in (trial / "log.txt").read_text()
    assert read_json_if_whole(trial / RESULT) is None
    execution.error = None
    tried(launch, {"keep": 0.6})
    assert not (trial / FAILURE).exists()
    assert read_json_if_whole(trial / RESULT) == {"accuracy": 0.6}


def test_a_trial_that_failed_before_it_had_a_run_is_tried_again(
    launch: Launch, execution: Execution, tmp_path: Path
) -> None:
    (tmp_path / "trial").mkdir()
    for name in (SETTINGS, FAILURE):
        (tmp_path / "trial" / name).write_text("{}")
    assert tried(launch, {"keep": 0.6}) == {"accuracy": 0.6}


def test_a_trial_has_a_part_of_the_machine() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{k}", name="H200", memory_bytes=10**11) for k in range(4))
    whole = Inventory(node="host", cpus=16, memory_bytes=10**12, gpus=gpus, source="machine")
    part = share_of(whole, {"CPU": 4.0, "GPU": 1.0, "memory": 10**11})
    assert (part.cpus, part.memory_bytes, len(part.gpus)) == (4, 10**11, 1)
    without = share_of(whole, {"CPU": 4.0})
    assert (without.memory_bytes, without.gpus) == (10**12, ())
    assert part.node == without.node == "host"
