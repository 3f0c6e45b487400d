"""Spaces: distributions, their files, and what both refuse."""

from pathlib import Path
from typing import Any

import pytest

from fl.errors import UserError
from fl.spaces import Choice, Integers, LogUniform, Uniform
from tests.tune.sweeps import write
from tune.options import SweepOptions, parse_sweep
from tune.spaces import check_space, longest_fit, num_trials, read_space


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
        ({"keep": 0.5}, "keep: must be a list of values, or"),
        ({"keep": {"uniform": [0.9, 0.4]}}, "keep: a range needs a lower and a higher end"),
        ({"keep": {"uniform": [0.4]}}, "keep: must be a list of values, or"),
        ({"keep": {"uniform": [0.1, 1], "integers": [0, 1]}}, "keep has two distributions"),
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


def test_values_that_the_configuration_refuses_are_found_before_a_trial() -> None:
    options, launch = parse_sweep([])
    for name, values in {
        "keep": Uniform(0.5, 1.5),
        "num_samples": Integers(5, 100),  # fewer than classes
        "fusion.epochs": Uniform(1, 3.5),
        "filter": Choice(("nearest", "farthest")),
        "fusion.lr": Choice((0.1, "fast")),
        "lam": Choice((0.3, 7.0, 0.6)),
    }.items():
        with pytest.raises(UserError, match=name):
            check_space({name: values}, options, launch)


def test_of_several_settings_the_refused_one_is_named() -> None:
    space = {"keep": Uniform(0.5, 0.9), "lam": Choice((0.3, 7.0)), "fusion.epochs": Integers(1, 3)}
    with pytest.raises(UserError, match=r"space both: lam = 7.0: lam must be"):
        check_space(space, *parse_sweep(["--space=both"]))


def test_a_server_that_fits_nothing_has_no_epochs_to_judge() -> None:
    _, launch = parse_sweep(["--method=fedavg"])
    for options in (SweepOptions(scheduler="asha"), SweepOptions(metric="loss")):
        with pytest.raises(UserError, match="fedavg has no one fit"):
            check_space({"classifier.lr": Choice((0.1,))}, options, launch)


def test_a_grid_of_more_points_than_trials_is_refused() -> None:
    space = {"keep": Uniform(0.4, 1.0), "lam": Choice((0.3, 0.6))}
    options = SweepOptions(search="grid", num_samples=5)
    assert num_trials(space, options) == 6
    with pytest.raises(UserError, match="the grid has 6 points"):
        check_space(space, options, parse_sweep([])[1])


def test_the_longest_fit_is_the_spaces_or_the_configurations() -> None:
    _, launch = parse_sweep(["--fusion.epochs=7"])
    assert longest_fit({}, launch) == 7
    assert longest_fit({"fusion.epochs": Choice((30, 10))}, launch) == 30
