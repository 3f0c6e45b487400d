"""The sweep's directory: whose it is, what is in it, and as what it is continued."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cluster.run.command_line import parse
from cluster.run.options import Launch
from fl.errors import UserError
from fl.methods.method import Choice, Space, Uniform
from tune.folder import add_seconds, claimed_sweep, named
from tune.options import SweepOptions, parse_sweep

SPACE: Space = {"keep": Uniform(0.4, 1.0)}


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return parse([f"--output-dir={tmp_path}", "--name=sweep"])


def claim_sweep(options: SweepOptions, launch: Launch, space: Space) -> Path:
    with claimed_sweep(options, launch, space) as folder:
        return folder


def test_a_sweep_is_named_after_what_it_searches_and_its_paths_hold_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, launch = parse_sweep(["--space=my/space.yaml", "--output-dir=runs"])
    made = named(options, launch)
    assert made.name == "sweep-fedmho-sd-digits-space"
    assert made.output_dir == tmp_path / "runs"
    assert made.data_root == tmp_path / "data"
    assert named(options, replace(launch, name="own")).name == "own"


def test_what_is_searched_and_the_default_configuration_are_written(launch: Launch) -> None:
    folder = claim_sweep(SweepOptions(num_samples=7), launch, SPACE)
    assert (folder / "trials").is_dir()
    saved = yaml.safe_load((folder / "sweep.yaml").read_text())
    assert saved["sweep"]["num_samples"] == 7
    assert saved["space"].keys() == SPACE.keys()
    assert "torch" in saved["versions"]
    assert parse([f"--config={folder / 'default.yaml'}"]).run == launch.run


def test_a_name_that_is_taken_is_refused_and_a_sweep_resumed_as_what_it_was(launch: Launch) -> None:
    folder = claim_sweep(SweepOptions(), launch, SPACE)
    (folder / "trials" / "kept").touch()
    with pytest.raises(UserError, match="is taken: --resume continues a sweep"):
        claim_sweep(SweepOptions(), launch, SPACE)
    # A space's file may have moved, as long as it holds the same.
    resumed = replace(launch, resume=True)
    assert claim_sweep(SweepOptions(space="elsewhere.yaml"), resumed, SPACE) == folder
    assert (folder / "trials" / "kept").exists()


def test_another_sweep_is_refused_with_all_that_differs(launch: Launch) -> None:
    claim_sweep(SweepOptions(), launch, SPACE)
    resumed = replace(launch, resume=True, run=replace(launch.run, alpha=0.1))
    message = r"run\.alpha: 0\.5 -> 0\.1.* space\.lam: None -> .*, sweep\.metric: accuracy -> loss"
    with pytest.raises(UserError, match=message) as refused:
        claim_sweep(SweepOptions(metric="loss"), resumed, {**SPACE, "lam": Choice((0.3,))})
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"space\.keep: "):
        claim_sweep(SweepOptions(), replace(launch, resume=True), {"keep": Uniform(0.3, 1.0)})


def test_where_nothing_is_there_is_nothing_to_resume(launch: Launch) -> None:
    with pytest.raises(UserError, match="holds no sweep to resume"):
        claim_sweep(SweepOptions(), replace(launch, resume=True), SPACE)


def test_overwriting_takes_a_sweep_and_nothing_else(launch: Launch, tmp_path: Path) -> None:
    overwriting = replace(launch, overwrite=True)
    folder = claim_sweep(SweepOptions(), launch, SPACE)
    (folder / "trials" / "old").touch()
    claim_sweep(SweepOptions(), overwriting, SPACE)
    assert not (folder / "trials" / "old").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="is taken"):
        claim_sweep(SweepOptions(), replace(overwriting, name="mine"), SPACE)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_the_trials_time_goes_on_over_all_starts_of_a_sweep(tmp_path: Path) -> None:
    assert add_seconds(tmp_path, 1.5) == 1.5
    assert add_seconds(tmp_path, 0.25) == 1.75
