"""What a sweep's command line and its space refuse, in one line, before anything starts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.run.options import Launch
from cluster.run.run_dir import nested
from fl.errors import UserError
from fl.json_files import flatten
from fl.methods.method import Choice, Distribution, Integers, LogUniform, Uniform
from fl.methods.registry import METHODS
from tests.tune.sweeps import write
from tune.folder import claimed_sweep, named
from tune.options import SweepOptions, check_space, longest_fit, num_trials, parse_sweep, read_space
from tune.sweep import job_of, main


def test_a_bare_sweep_says_what_it_needs_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("example:  onefold sweep --")) == ("", 1)
    assert len(told.err.splitlines()) <= 10
    assert not list(tmp_path.iterdir())
    (example,) = (line for line in told.err.splitlines() if line.startswith("example"))
    parse_sweep(example.split()[3:])  # is taken


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--space=nothing"], "unknown space 'nothing'; valid: FILE.yaml, both, local, server"),
        (["--search=bayes"], "unknown search 'bayes'; valid: grid, hyperopt, optuna, random"),
        (["--num-samples=0"], "num_samples must be at least 1, got 0"),
        (["--validation=0"], "validation must be in (0, 1), got 0.0"),
        (["--validation=0.0001"], "data.validation 0.0001: 0 of 1437 images are held out"),
        (["--fusion.epochs=0"], "fusion.epochs must be at least 1, got 0"),
        (["--data.validation=0.2"], "use --validation"),
        (["--method=fedavg", "--space=server"], "space server of fedavg is empty"),
        (["--sheduler=asha"], "did you mean --scheduler?"),
        (["--search=grid"], "the grid has 324 points: --num-samples must be at least that"),
        (["--resume", "--name=none"], "holds no sweep to resume"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--output-dir={tmp_path / 'runs'}", "--runtime=inprocess", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_searcher_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tune.options.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'onefold\[optuna\]'"):
        SweepOptions(search="optuna")


def test_every_launch_option_can_stand_beside() -> None:
    options, launch = parse_sweep(
        ["--alpha=0.3", "--num-samples", "7", "--prototypes", "vgg9", "cnn", "--metric=loss"]
    )
    assert (options.num_samples, options.metric) == (7, "loss")
    assert (launch.run.alpha, launch.run.options.prototypes) == (0.3, ("vgg9", "cnn"))
    assert launch.run.options.num_samples == 3000  # the method's own, of the same name


@pytest.fixture(scope="module")
def bare() -> tuple[SweepOptions, Launch]:
    """A sweep without arguments."""
    return parse_sweep([])


@pytest.mark.parametrize("method", METHODS)
def test_declared_spaces_are_of_settings_there_are_and_the_fits_length_is_known(
    method: str, bare: tuple[SweepOptions, Launch]
) -> None:
    """Values are tried in the record: how a command line takes them is the same for all."""
    options, launch = bare
    own = replace(launch.run, method=method, options=METHODS[method].config())
    launch = replace(launch, run=own)
    spaces, settings = METHODS[method].spaces, flatten(nested(launch.run))
    # Over rounds all settings reach the clients, and an average has none at the server.
    if both := spaces.named()["both"]:
        assert both == {**spaces.named()["server"], **spaces.named()["local"]}
        assert both.keys() <= settings.keys()
        grids = {name: distribution.grid for name, distribution in both.items()}
        for place in range(max(map(len, grids.values()))):
            values = {name: grid[min(place, len(grid) - 1)] for name, grid in grids.items()}
            assert all(isinstance(value, int | float | str) for value in values.values())
            tried = changed(launch.run.options, values)
            METHODS[method].assign(tried, launch.run.num_clients, launch.run.run_spec)
        if method == "fedmho-sd":
            check_space(both, options, launch)
    assert spaces.epochs is None or spaces.epochs in settings
    assert longest_fit({}, launch) == (settings[spaces.epochs] if spaces.epochs else 1)


def changed(record: Any, values: Mapping[str, Any]) -> Any:
    """The record with these values of its settings, by their dotted names."""
    for name, value in values.items():
        own, _, below = name.partition(".")
        record = replace(
            record, **{own: changed(getattr(record, own), {below: value}) if below else value}
        )
    return record


def test_only_methods_with_a_teacher_search_its_weight() -> None:
    assert "lam" in read_space("server", "fedmho-sd")
    assert "lam" not in read_space("server", "fedmho")


def test_a_job_is_the_same_sweep(tmp_path: Path) -> None:
    file = write(tmp_path / "space.yaml", {"keep": [0.5, 0.9]})
    argv = [f"--space={file}", "--num-samples=3", "--keep=0.7", "--scheduler=asha", "--slurm"]
    options, launch = parse_sweep([*argv, f"--output-dir={tmp_path}", "--max-actors=2"])
    launch = named(options, launch)
    with claimed_sweep(options, launch, read_space(options.space, "fedmho-sd")) as folder:
        job = job_of(options, launch, folder)
    again, relaunch = parse_sweep(job.arguments)
    assert (job.module, again) == ("tune.sweep", options)
    assert (relaunch.run, relaunch.max_actors) == (launch.run, 2)
    assert (relaunch.output_dir / str(relaunch.name), relaunch.resume) == (folder, True)
    assert not relaunch.slurm.submit


# Spaces: distributions, their files, and what both refuse.


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


def test_values_that_the_configuration_refuses_are_found_before_a_trial(
    bare: tuple[SweepOptions, Launch],
) -> None:
    options, launch = bare
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


def test_losses_are_compared_where_they_are_one_loss(bare: tuple[SweepOptions, Launch]) -> None:
    options, launch = SweepOptions(metric="loss"), bare[1]
    rates: dict[str, Distribution] = {"fusion.lr": LogUniform(1e-4, 1e-2)}
    check_space(rates, options, launch)
    for name in ("lam", "num_samples", "generator.lr"):
        with pytest.raises(UserError, match=f"with another {name} a trial's loss is another"):
            check_space({**rates, name: Choice((0.1,))}, options, launch)


def test_a_grid_of_more_points_than_trials_is_refused(bare: tuple[SweepOptions, Launch]) -> None:
    space = {"keep": Uniform(0.4, 1.0), "lam": Choice((0.3, 0.6))}
    options = SweepOptions(search="grid", num_samples=5)
    assert num_trials(space, options) == 6
    with pytest.raises(UserError, match="the grid has 6 points"):
        check_space(space, options, bare[1])


def test_the_longest_fit_is_the_spaces_or_the_configurations() -> None:
    _, launch = parse_sweep(["--fusion.epochs=7"])
    assert longest_fit({}, launch) == 7
    assert longest_fit({"fusion.epochs": Choice((30, 10))}, launch) == 30
