"""What can follow each word of the command: options, the values they take, what has no option."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import GenericAlias
from typing import Any

from cluster.doctor import DoctorOptions
from cluster.run.choices import choices
from cluster.run.command_line import as_arguments, presets, setting_types
from cluster.run.options import LaunchOptions
from cluster.studies.study_options import StudyOptions
from cluster.studies.suite_options import EXHIBITS, SuiteOptions
from fl.data.datasets import NAMES
from fl.methods.registry import METHODS
from tune.options import SweepOptions

RUNS = ("RUNS",)
"""In place of values: the names of the runs below ``--output-dir``."""
RUN_FOLDERS = ("RUN_FOLDERS",)
"""In place of values: their folders."""
SPACES = ("server", "local", "both")
"""Spaces that methods declare."""
HELP = ("--help",)
FIRST = (
    *("--method", "--rounds", "--num-clients", "--num-large", "--alpha", "--seed"),
    *("--dataset", "--data-root", "--partition.file", "--plugin", "--classifier.model"),
    *("--preset", "--config", "--name", "--resume", "--dry-run", "--smoke", "--runtime"),
    *("--slurm", "--slurm.nodes", "--help", "--help-all"),
)
"""Of the launch's options those that are offered before anything of one is typed."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of the command."""

    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Options that take no value."""
    first: tuple[str, ...] = ()
    """Of many options those that are offered before anything of one is typed; else all are."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of options that take one of some words. What other options take may be files."""
    alone: tuple[str, ...] = ()
    """What stands without an option: some words, or runs."""


def words() -> dict[str, Word]:
    """All words of the command. The settings are those of all methods; imports all of Onefold."""
    launch = _of_settings(_launch_settings().items(), "help-all", "slurm")
    launch = replace(launch, first=FIRST)
    sweep = _of_settings(setting_types(SweepOptions))
    own = [_flag(f.name) for f in fields(StudyOptions) if f.name != "launch_arguments"]
    study = replace(launch, options=_unique(own, launch.options), first=_unique(own, launch.first))
    suite = _of_settings([s for s in setting_types(SuiteOptions) if s[0] != "name"])
    output = ("--output-dir", *HELP)
    return {
        "run": launch,
        "suite": replace(suite, alone=EXHIBITS),
        "study": study,
        "sweep": Word(
            options=_unique(sweep.options, launch.options),
            flags=launch.flags,
            first=_unique(sweep.options, launch.first),
            values={**launch.values, **sweep.values, "--space": SPACES},
        ),
        "data": Word(options=("--data-root", *HELP), flags=HELP, alone=("prepare", *NAMES)),
        "doctor": _of_settings(setting_types(DoctorOptions)),
        "status": Word(options=output, flags=HELP),
        "ls": Word(options=output, flags=HELP),
        "report": Word(options=HELP, flags=HELP, alone=RUN_FOLDERS),
        "privacy": Word(options=("--data-root", *HELP), flags=HELP, alone=RUN_FOLDERS),
        "compare": Word(options=("--output", *HELP), flags=HELP, alone=RUN_FOLDERS),
        "export": Word(
            options=("--csv", "--onnx", "--torch-export", *output), flags=HELP, alone=RUNS
        ),
        "rm": Word(options=("--yes", *output), flags=("--yes", *HELP), alone=RUNS),
        "completion": Word(options=HELP, flags=HELP, alone=("bash", "zsh", "fish")),
    }


def _launch_settings() -> dict[str, Any]:
    """The launch's settings by name, of all methods."""
    kinds: dict[str, Any] = {}
    for method in METHODS.values():
        kinds |= dict(setting_types(GenericAlias(LaunchOptions, (method.config,))))
    return kinds


def _of_settings(settings: Iterable[tuple[str, Any]], *flags: str) -> Word:
    """A word whose options are settings, names with annotated types; and some options more."""
    kinds = dict(settings)
    found = choices(kinds.items())
    if "preset" in kinds:
        found["preset"] = tuple(presets())
    more = (*map(_flag, flags), *HELP)
    switches = [o for name, kind in kinds.items() if kind is bool for o in _switch(name)]
    valued = [_flag(name) for name, kind in kinds.items() if kind is not bool]
    return Word(
        options=_unique(valued, switches, more),
        flags=_unique(switches, more),
        values={_flag(name): several for name, several in found.items()},
    )


def _switch(name: str) -> list[str]:
    return [as_arguments(name, value)[0] for value in (True, False)]


def _flag(name: str) -> str:
    return as_arguments(name, "")[0]


def _unique(*several: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for these in several for one in these))
