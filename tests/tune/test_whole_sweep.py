"""What a sweep does from its default configuration to its report, and what it says of it."""

import io
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fl.errors import UserError
from fl.spaces import Uniform
from tune import tuning
from tune.options import parse_sweep
from tune.trials import default_run
from tune.tuning import search

ARGUMENTS = ["--num-samples=3", "--runtime=inprocess", "--name=s", "--validation=0.2"]


def test_the_default_run_changes_no_setting_and_holds_images_out(tmp_path: Path) -> None:
    options, launch = parse_sweep([*ARGUMENTS, f"--output-dir={tmp_path}"])
    run = default_run(launch, options.validation)
    assert run.name == "s/trials/default"
    assert run.run.data.validation == 0.2
    assert run.run.options == launch.run.options


def test_each_step_is_said_as_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def run_trial(launch: Any, settings: Any, prepare_with: Any) -> None:
        done.append(launch.name)

    monkeypatch.setattr(tuning, "ray_cluster", lambda *_: nullcontext())
    monkeypatch.setattr(tuning, "run_trial", run_trial)
    monkeypatch.setattr(tuning, "run_trials", lambda *_: done.append("trials"))
    options, launch = parse_sweep([*ARGUMENTS, f"--output-dir={tmp_path}"])
    (tmp_path / "trials").mkdir()
    out, prepared = io.StringIO(), SimpleNamespace(inventory=None)
    console = Console(file=out, width=80)
    with pytest.raises(UserError, match="no trial finished"):
        search(options, launch, {"keep": Uniform(0.4, 1.0)}, prepared, tmp_path, console)  # type: ignore[arg-type]
    assert done == ["s/trials/default", "trials"]
    said = out.getvalue().splitlines()
    assert said[:3] == [
        "starting Ray …",
        "default configuration, on 0.2 of the training images",
        "3 trials of keep",
    ]
    assert max(map(len, said)) <= 80
