"""Population-based training: what a trial takes over from another, and a whole sweep."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.run.prepare import prepare
from fl.events import Epoch
from fl.json_files import read_json
from tests.cluster.commands import events, fingerprint, result
from tests.tune.sweeps import CLIENTS, RUN, command, kill_sweep, run, trials, write
from tune.options import parse_sweep
from tune.population import interval, run_member
from tune.rows import read_rows
from tune.trials import derive

FIRST: dict[str, Any] = {"keep": 0.6, "lam": 0.25, "fusion.lr": 1e-3}
STATES = "states"
"""Where a trial's states are kept by epoch, beside its directory."""


def trial(root: Path, settings: Mapping[str, Any], donor: Path | None = None, stop: int = 0) -> Any:
    """Runs a member of the population in this process, and ends it after epoch ``stop``."""
    config = write(root.parent / "run.yaml", RUN)
    _, launch = parse_sweep([f"--config={config}", "--runtime=inprocess"])
    states = root.with_name(f"{root.name}-{STATES}")

    def hand_on(event: Epoch, folder: Path) -> None:
        shutil.copytree(folder, states / str(event.epoch), dirs_exist_ok=True)
        if event.epoch == stop:
            raise SystemExit  # as Tune ends a trial

    launch = replace(derive(launch, settings, root.name, validation=0.1), output_dir=root.parent)
    run_member(launch, settings, every=1, donor=donor, prepare_with=prepare, hand_on=hand_on)
    return states


def begun(root: Path, settings: Mapping[str, Any], stop: int, donor: Path | None = None) -> Path:
    """A trial that was ended after that epoch; gives its last state."""
    with pytest.raises(SystemExit):
        trial(root, settings, donor, stop)
    return root.with_name(f"{root.name}-{STATES}") / str(stop)


def epochs(run_dir: Path) -> list[int]:
    return [e["epoch"] for e in events(run_dir) if e["event"] == "epoch"]


@pytest.mark.slow
def test_a_trial_goes_on_from_anothers_state_under_other_settings(tmp_path: Path) -> None:
    donor, other = tmp_path / "00000", tmp_path / "00001"
    states = trial(donor, FIRST)
    begun(other, {"keep": 0.9, "lam": 0.75, "fusion.lr": 1e-4}, stop=1)
    changed = {**FIRST, "fusion.lr": 1.2e-3}
    trial(other, changed, donor=states / "2")

    assert epochs(other) == [1, 3, 4]  # not from scratch
    assert result(other)["accuracy_curve"][:2] == result(donor)["accuracy_curve"][:2]
    assert fingerprint(other)[0] != fingerprint(donor)[0]
    assert yaml.safe_load((other / "config.yaml").read_text())["fusion"]["lr"] == 1.2e-3
    segments = [
        {"epoch": 1, "trial": "00000", "settings": FIRST},
        {"epoch": 3, "trial": "00001", "settings": changed},
    ]
    rows = {row.name: row for row in read_rows(tmp_path, {})}
    assert list(rows["00001"].schedule) == segments
    assert rows["00001"].settings == changed
    assert rows["00001"].scores["epoch"] == 4
    assert len(rows["00000"].schedule) == 1

    # Under the donor's own settings it is the donor's fit that goes on, to the bit.
    trial(other, FIRST, donor=states / "2")
    assert fingerprint(other) == fingerprint(donor)


def test_a_trial_that_was_paused_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, paused = tmp_path / "00000", tmp_path / "00001"
    trial(whole, FIRST)
    trial(paused, FIRST, donor=begun(paused, FIRST, stop=3))
    assert epochs(paused) == [1, 2, 3, 4]
    assert fingerprint(paused) == fingerprint(whole)
    assert len(read_json(paused / "schedule.json")["schedule"]) == 1


def test_a_fit_has_five_parts_or_as_many_as_epochs() -> None:
    assert [interval(epochs) for epochs in (1, 4, 9, 10, 30)] == [1, 1, 2, 2, 6]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_that_is_killed_ends_with_schedules_that_are_true(tmp_path: Path) -> None:
    """Three trials of which two have room: each waits and goes on several times."""
    space = {
        "keep": {"uniform": [0.4, 1.0]},
        "lam": [0.25, 0.5, 0.75],
        "fusion.lr": {"loguniform": ["1e-4", "1e-2"]},
    }
    options = ("--scheduler=pbt", "--num-samples=3", "--max-concurrent=2", "--runtime=inprocess")
    options += ("--metric=loss",)  # accuracies on 40 images are much alike
    here, root = tmp_path / "here", tmp_path / "there"
    kill_sweep(
        command(here, space, *options),
        lambda: len(list(here.glob("runs/sweep/ray/trials/0*/checkpoint_*"))) >= 4,
    )
    here.rename(root)
    done = run(command(root, space, *options, "--resume"))
    assert done.returncode == 0, done.stderr

    folder, tried = root / "runs" / "sweep", trials(root)
    assert [t["status"] for t in tried.values()] == ["finished"] * 4
    assert sum(t["clients_trained"] for t in tried.values()) == CLIENTS
    mixed = [t for t in tried.values() if len(t["schedule"]) > 1]
    assert mixed  # bad trials go on from good ones' states
    for one in mixed:
        assert one["schedule"][-1]["settings"] == one["settings"]
        for before, after in pairwise(one["schedule"]):
            assert before["epoch"] < after["epoch"]
            assert before["settings"]["keep"] == after["settings"]["keep"]
            assert before["settings"] != after["settings"]
    best = result(folder)["best"]
    configuration = yaml.safe_load((folder / "best.yaml").read_text())
    assert configuration["fusion"]["lr"] == best["settings"]["fusion.lr"]
    assert best["schedule"] == tried[best["trial"]]["schedule"]
    replayed = replay(tmp_path / "replay", mixed[0]["schedule"])
    assert fingerprint(replayed) == fingerprint(folder / "trials" / mixed[0]["name"])


def replay(root: Path, schedule: list[dict[str, Any]]) -> Path:
    """A trial that is given the schedule's settings one after the other; gives its directory."""
    run_dir, state = root / "00000", None
    root.mkdir()
    for now, following in pairwise(schedule):
        state = begun(run_dir, now["settings"], following["epoch"] - 1, state)
    trial(run_dir, schedule[-1]["settings"], state)
    return run_dir
