"""Spaces: distributions, their files, and what both refuse."""

from pathlib import Path
from typing import Any

import pytest

from cluster.run.command_line import flatten
from cluster.run.run_dir import nested
from fl.errors import UserError
from fl.methods.registry import METHODS
from fl.spaces import Choice, Integers, LogUniform, Uniform
from tests.tune.sweeps import write
from tune.options import SweepOptions, parse_sweep
from tune.spaces import check_space, grid_size, longest_fit, read_space


def test_a_file_names_settings_dotted_or_nested(tmp_path: Path) -> None:
    content = {
        "keep": {"uniform": [0.4, 0.9]},
        "fusion": {"lr": {"loguniform": ["1e-5", 1e-3]}, "epochs": [5, 10]},
        "generator.latent": {"integers": [2, 20]},
        "num-samples": [100, 200],
        "classifier": {"optimizer": ["sgd", "adam"]},
    }
    assert read_space(str(write(tmp_path / "s.yaml", content)), "fedmho-sd") == {
        "keep": Uniform(0.4, 0.9),
        "fusion.lr": LogUniform(1e-5, 1e-3),
        "fusion.epochs": Choice((5, 10)),
        "generator.latent": Integers(2, 20),
        "num_samples": Choice((100, 200)),
        "classifier.optimizer": Choice(("sgd", "adam")),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "is empty: name at least one setting"),
        (
            {"keeep": [0.5]},
            r"unknown parameter 'keeep' \(did you mean keep\?\); --help-all names all",
        ),
        ({"fusion": {"rate": [0.5]}}, "unknown parameter 'fusion.rate'"),
        ({"alpha": [0.1, 0.5]}, "unknown parameter 'alpha'"),
        ({"seed": [1, 2]}, "unknown parameter 'seed'"),
        ({"data.validation": [0.1]}, "unknown parameter 'data.validation'"),
        ({"keep": []}, "keep: a choice needs at least one value"),
        ({"keep": [[0.5]]}, "keep: a choice takes numbers, words"),
        ({"keep": 0.5}, "keep must be a list of values, or"),
        ({"keep": {"uniform": [0.9, 0.4]}}, "keep: a range needs a lower and a higher end"),
        ({"keep": {"uniform": [0.4]}}, "keep must be a list of values, or"),
        ({"keep": {"normal": [0, 1]}}, "unknown parameter 'keep.normal'"),
        ({"keep": {"uniform": ["a", "b"]}}, "keep: could not convert"),
        ({"fusion.lr": {"loguniform": [0, 1]}}, "must lie above 0"),
        ({"fusion.epochs": {"integers": [1.5, 3]}}, "integers need whole ends"),
    ],
)
def test_a_bad_file_is_refused_by_name(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as refused:
        read_space(str(write(tmp_path / "s.yaml", content)), "fedmho-sd")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "space",
    [
        {"keep": Uniform(0.5, 1.5)},
        {"num_samples": Integers(5, 100)},  # fewer than classes
        {"fusion.epochs": Uniform(1, 3.5)},
        {"filter": Choice(("nearest", "farthest"))},
        {"fusion.lr": Choice((0.1, "fast"))},
    ],
)
def test_values_that_the_configuration_refuses_are_found_before_a_trial(space: Any) -> None:
    with pytest.raises(UserError, match=next(iter(space))):
        check_space(space, *parse_sweep([]))


def test_of_several_settings_the_refused_one_is_named() -> None:
    space = {"keep": Uniform(0.5, 0.9), "lam": Choice((0.3, 7.0)), "fusion.epochs": Integers(1, 3)}
    with pytest.raises(UserError, match=r"space both: lam = 7.0: lam must be"):
        check_space(space, *parse_sweep(["--space=both"]))


@pytest.mark.parametrize("option", ["--scheduler=asha", "--metric=loss"])
def test_a_server_that_fits_nothing_has_no_epochs_to_judge(option: str) -> None:
    with pytest.raises(UserError, match="fedavg has no one fit"):
        check_space({"classifier.lr": Choice((0.1,))}, *parse_sweep(["--method=fedavg", option]))


def test_a_grid_of_more_points_than_trials_is_refused() -> None:
    space = {"keep": Uniform(0.4, 1.0), "lam": Choice((0.3, 0.6))}
    assert grid_size(space) == 6
    options = SweepOptions(search="grid", num_samples=5)
    with pytest.raises(UserError, match="the grid has 6 points"):
        check_space(space, options, parse_sweep([])[1])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_how_long_its_fit_is(method: str) -> None:
    _, launch = parse_sweep([f"--method={method}"])
    spaces, settings = METHODS[method].spaces, flatten(nested(launch.run))
    assert spaces.epochs is None or spaces.epochs in settings
    assert longest_fit({}, launch) == (settings[spaces.epochs] if spaces.epochs else 1)


def test_the_longest_fit_is_the_spaces_or_the_configurations() -> None:
    _, launch = parse_sweep(["--fusion.epochs=7"])
    assert longest_fit({}, launch) == 7
    assert longest_fit({"fusion.epochs": Choice((30, 10))}, launch) == 30
