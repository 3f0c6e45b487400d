"""The words that a setting may have for a value, for help."""

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.run.help import wrapped
from fl.bounds import OneOf, bounds_in
from fl.data.catalogue import DatasetName


def choices(settings: Iterable[tuple[str, Any]]) -> dict[str, tuple[str, ...]]:
    """By name of a setting that takes a word: all words there are.

    Args:
        settings: names and annotated types, see :func:`cluster.run.command_line.setting_types`.
    """
    found = {name: _words(kind) for name, kind in settings}
    return {name: words for name, words in found.items() if words}


def choices_help(found: Mapping[str, Iterable[str]]) -> str:
    """The words, each list once, below the settings that take them; in 80 columns."""
    takers: dict[tuple[str, ...], list[str]] = {}
    for name, words in found.items():
        takers.setdefault(tuple(sorted(words)), []).append("--" + name.replace("_", "-"))
    parts = [wrapped(names, indent=0) + wrapped(words) for words, names in takers.items()]
    return "choices:\n\n" + "\n".join(parts)


def _words(kind: Any) -> tuple[str, ...]:
    names = (bound.names for bound in bounds_in(kind) if isinstance(bound, OneOf | DatasetName))
    return tuple(str(name) for several in names for name in several)
