"""Reads a sweep's space, by name or from a file, and checks it against the method's settings."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from cluster.run.command_line import flatten, load_yaml, setting_types, unknown_setting
from cluster.run.options import Launch
from cluster.run.run_dir import nested
from fl.errors import UserError, unknown
from fl.json_files import JsonObject, SettingValues
from fl.methods.registry import get_method
from fl.spaces import Choice, Distribution, Integers, LogUniform, Space, Uniform
from tune.options import SweepOptions
from tune.trials import derive

KINDS: SettingValues = {"uniform": Uniform, "loguniform": LogUniform, "integers": Integers}


def read_space(text: str, method: str) -> dict[str, Distribution]:
    """The space of that name, or of that YAML file.

    Args:
        text: server, local, both, or a path that ends in .yaml or .yml.
        method: the method that has the settings.

    Raises:
        UserError: no such space or file, a setting that does not exist, or nothing to search.
    """
    if text.endswith((".yaml", ".yml")):
        space = {n: _distribution(text, n, v) for n, v in _leaves(load_yaml(Path(text))).items()}
        _refuse_strangers(text, space, method)
    else:
        named = get_method(method).spaces.named()
        if text not in named:
            raise unknown("space", text, [*named, "FILE.yaml"])
        space = dict(named[text])
    if not space:
        raise UserError(f"space {text} of {method} is empty: name at least one setting")
    return space


def check_space(space: Space, options: SweepOptions, launch: Launch) -> None:
    """Refuses, before any trial starts, values that the configuration would refuse in one.

    Raises:
        UserError: the end of a range is no value of the setting, a grid has too many points, there
            is no epoch that the scheduler or metric needs.
    """
    if get_method(launch.run.method).spaces.epochs is None:
        _refuse_epochs(options, launch.run.method)
    for end in (0, -1):
        values = {name: distribution.grid[end] for name, distribution in space.items()}
        try:  # all at once, and only where that is refused each by itself
            _try_out(values, launch)
        except UserError:
            _refuse_alone(values, options, launch)
    if options.search == "grid" and grid_size(space) > options.num_samples:
        raise UserError(
            f"the grid has {grid_size(space)} points: --num-samples must be at least that, got "
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
    """How many trials there will be, without the default."""
    return grid_size(space) if options.search == "grid" else options.num_samples


def grid_size(space: Space) -> int:
    """Points of the whole grid."""
    return prod(len(distribution.grid) for distribution in space.values())


def longest_fit(space: Space, launch: Launch) -> int:
    """Most epochs at the server that a trial may have."""
    name = get_method(launch.run.method).spaces.epochs
    if name is None:
        return 1
    if name in space:
        return max(int(value) for value in space[name].grid)
    return int(flatten(nested(launch.run))[name])


def _leaves(values: SettingValues, prefix: str = "") -> JsonObject:
    """Nested settings by dotted name, down to the descriptions of distributions."""
    flat: JsonObject = {}
    for key, value in values.items():
        name = f"{prefix}{key}".replace("-", "_")
        nested = isinstance(value, Mapping) and not value.keys() & KINDS.keys()
        flat |= _leaves(value, f"{name}.") if nested else {name: value}
    return flat


def _distribution(source: str, name: str, value: Any) -> Distribution:
    try:
        if isinstance(value, list):
            return Choice(tuple(value))
        if isinstance(value, Mapping) and len(value) == 1:
            ((kind, ends),) = value.items()
            if isinstance(ends, list) and len(ends) == 2:
                low, high = map(float, ends)  # YAML reads 1e-5 as a string
                if kind == "integers" and low.is_integer() and high.is_integer():
                    return Integers(int(low), int(high))
                distribution: Distribution = KINDS[kind](low, high)
                return distribution
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"{source}: {name}: {error}") from None
    raise UserError(
        f"{source}: {name} must be a list of values, or {{KIND: [LOW, HIGH]}} with KIND "
        f"{', '.join(KINDS)}; got {value!r}"
    )


def _refuse_epochs(options: SweepOptions, method: str) -> None:
    without = f"{method} has no one fit to judge by"
    if options.metric != "accuracy":
        raise UserError(f"metric must be accuracy, got {options.metric}: {without}")
    if options.scheduler == "asha":
        raise UserError(f"scheduler must be fifo, got asha: {without}")


def _refuse_strangers(source: str, space: Space, method: str) -> None:
    """Refuses settings that are not the method's own, since those would change the task."""
    valid = [name for name, _ in setting_types(get_method(method).config)]
    for name in space:
        if name not in valid:
            raise UserError(f"{source}: {unknown_setting(name, valid, 'parameter')}")
