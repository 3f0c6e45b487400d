"""A sweep's own options and its space; the launch's options apply to all its runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Annotated, Any

from cluster.run.command_line import (
    load_yaml,
    parse,
    parse_record,
    setting_types,
    unknown_setting,
)
from cluster.run.options import Launch
from cluster.run.run_dir import nested
from fl.bounds import Count, OneOf, Positive, Settings, Within
from fl.errors import UserError, unknown
from fl.fusion.fit import FitConfig
from fl.json_files import SettingValues, flatten
from fl.methods.method import Choice, Distribution, Integers, LogUniform, Space, Uniform
from fl.methods.registry import get_method
from tune.trials import derive

PROG = "python -m tune.sweep"

METRICS = {"accuracy": "max", "loss": "min"}
"""What each fusion epoch reports, and whether more or less is better."""
SCHEDULERS = ("asha", "fifo")
SEARCHERS = {"random": None, "grid": None, "optuna": "optuna", "hyperopt": "hyperopt"}
"""Ways of choosing settings, and the package that each needs: an extra of the same name."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Settings):
    """Search a method's settings with Ray Tune. Clients with unchanged settings train only once.

    Every option of python -m cluster.launch can be given too, except --num-samples, which is the
    number of trials here: a method's own num_samples comes from a file or the space.
    """

    space: str = "server"
    """What to search: server, local or both, as the method declares them, or a YAML file."""
    num_samples: Count = 20
    """Trials, in addition to the default configuration."""
    metric: Annotated[str, OneOf(METRICS)] = "accuracy"
    """What trials are compared by: accuracy; or the loss of the server's fit, if only settings of
    this fit are searched."""
    scheduler: Annotated[str, OneOf(SCHEDULERS)] = "fifo"
    """fifo: every trial to its end. asha: stops trials that fall behind."""
    search: Annotated[str, OneOf(SEARCHERS)] = "random"
    """random, grid (all combinations), optuna or hyperopt."""
    max_concurrent: Count | None = None
    """Largest number of trials at once. Default: one per GPU, else what cores and memory allow."""
    time_budget: Positive | None = None
    """Seconds after which all trials stop."""
    validation: Annotated[float, Within(0, 1, "()")] = 0.1
    """Share of the training images that no client gets, on which trials are compared."""
    final_seeds: Count = 3
    """Seeds with which best and default configuration are compared on the test split."""

    def check_further(self) -> None:
        """``search`` is installed."""
        package = SEARCHERS[self.search]
        if package and find_spec(package) is None:
            raise UserError(
                f"search {self.search} needs a package that is not installed: "
                f"pip install 'onefold[{package}]'"
            )


def parse_sweep(argv: Sequence[str]) -> tuple[SweepOptions, Launch]:
    """A sweep's own options, and those of all its runs; raises as
    :func:`cluster.run.command_line.parse`.

    The two are parsed one after the other, since a method's settings are at the top level too and
    one may have the name of a sweep's option.
    """
    options, rest = parse_record(SweepOptions, argv, PROG, return_unknown_args=True)
    launch = parse(rest, prog=PROG, beside=[field.name for field in fields(SweepOptions)])
    launch.refuse_smoke()
    if launch.run.data.validation:
        raise UserError("a sweep sets data.validation itself: use --validation instead")
    return options, launch


KINDS: Mapping[str, Callable[..., Distribution]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "integers": Integers,
}


def read_space(text: str, method: str) -> dict[str, Distribution]:
    """The space of that name, or of that YAML file, checked against the method's settings.

    Args:
        text: server, local, both, or a path that ends in .yaml or .yml.
        method: the method that has the settings.

    Raises:
        UserError: no such space or file, a setting that does not exist, or nothing to search.
    """
    if text.endswith((".yaml", ".yml")):
        space = _read_file(Path(text), method)
    else:
        named = get_method(method).spaces.named()
        if text not in named:
            raise unknown("space", text, [*named, "FILE.yaml"])
        space = dict(named[text])
    if not space:
        raise UserError(f"space {text} of {method} is empty: name at least one setting")
    return space


def _read_file(file: Path, method: str) -> dict[str, Distribution]:
    """A file's space. It may name the method's own settings alone: others would change the task."""
    valid = [name for name, _ in setting_types(get_method(method).config)]
    space: dict[str, Distribution] = {}
    for key, value in flatten(load_yaml(file)).items():
        name, _, kind = key.rpartition(".")
        if kind not in KINDS or not name:
            name, kind = key, ""
        if name not in valid:
            raise UserError(f"{file}: {unknown_setting(name, valid, 'parameter')}")
        if name in space:
            raise UserError(f"{file}: {name} has two distributions")
        try:
            space[name] = _distribution(kind, value)
        except (UserError, ValueError, TypeError) as error:
            raise UserError(f"{file}: {name}: {error}") from None
    return space


def _distribution(kind: str, value: Any) -> Distribution:
    if not isinstance(value, list) or (kind in KINDS and len(value) != 2):
        kinds = ", ".join(KINDS)
        raise UserError(
            f"must be a list of values, or {{KIND: [LOW, HIGH]}} with KIND {kinds}; got {value!r}"
        )
    if kind not in KINDS:
        return Choice(tuple(value))
    low, high = map(float, value)  # YAML reads 1e-5 as a string
    if kind == "integers" and low.is_integer() and high.is_integer():
        return Integers(int(low), int(high))
    return KINDS[kind](low, high)


def check_space(space: Space, options: SweepOptions, launch: Launch) -> None:
    """Raises `UserError`, before any trial starts, for a choice or an end of a range that is no
    value of its setting, a grid with too many points, or a scheduler or metric that lacks its
    epochs or, of losses, whose trials would minimise each its own."""
    epochs = get_method(launch.run.method).spaces.epochs
    if epochs is None:
        for name, needed in {"metric": "accuracy", "scheduler": "fifo"}.items():
            if (given := getattr(options, name)) != needed:
                without = f"{launch.run.method} has no one fit to judge by"
                raise UserError(f"{name} must be {needed}, got {given}: {without}")
    elif options.metric == "loss":
        alike = {f"{epochs.removesuffix('epochs')}{field.name}" for field in fields(FitConfig)}
        if others := [name for name in space if name not in alike]:
            raise UserError(
                f"metric must be accuracy, got loss: with another {others[0]} a trial's loss is "
                "another one, or of other samples, so losses cannot be compared"
            )
    grids = {name: distribution.grid for name, distribution in space.items()}
    for index in range(max(map(len, grids.values()))):
        values = {name: grid[min(index, len(grid) - 1)] for name, grid in grids.items()}
        try:  # all at once, and only where that is refused each by itself
            _try_out(values, launch)
        except UserError:
            _refuse_alone(values, options, launch)
    points = num_trials(space, options)
    if points > options.num_samples:
        raise UserError(
            f"the grid has {points} points: --num-samples must be at least that, got "
            f"{options.num_samples}, or the space smaller"
        )


def _try_out(values: SettingValues, launch: Launch) -> None:
    """Raises `UserError` where a trial with these values could not start."""
    run = derive(launch, values, "check").run
    get_method(run.method).assign(run.options, run.num_clients, run.run_spec)


def _refuse_alone(values: SettingValues, options: SweepOptions, launch: Launch) -> None:
    """Raises `UserError` for the first value that is refused beside the launch's own settings.

    Values that only each other rule out are let pass: other trials have other ones.
    """
    for name, value in values.items():
        try:
            _try_out({name: value}, launch)
        except UserError as error:
            raise UserError(f"space {options.space}: {name} = {value}: {error}") from None


def num_trials(space: Space, options: SweepOptions) -> int:
    """How many trials there will be, without the default: of a grid all its points."""
    if options.search != "grid":
        return options.num_samples
    return prod(len(distribution.grid) for distribution in space.values())


def longest_fit(space: Space, launch: Launch) -> int:
    """Most epochs at the server that a trial may have."""
    name = get_method(launch.run.method).spaces.epochs
    if name is None:
        return 1
    if name in space:
        return max(int(value) for value in space[name].grid)
    return int(flatten(nested(launch.run))[name])
