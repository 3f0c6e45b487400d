"""Figures as people read them: percentages, durations, bytes, counts."""

from collections import Counter
from collections.abc import Iterable, Mapping

KILO = 1000.0
NONE = "\N{EN DASH}"
"""A table's cell without a value."""
REUSED = "\N{DAGGER}"
"""Mark of times without the clients that were taken from the store."""


def percent(share: float) -> str:
    """A share of one, as a percentage.

    >>> percent(0.9561)
    '95.6%'
    """
    return f"{100 * share:.1f}%"


def points(difference: float) -> str:
    """A difference of two shares, in signed percentage points.

    >>> points(0.031)
    '+3.1'
    """
    return f"{100 * difference:+.1f}".replace("-", "\N{MINUS SIGN}")


def duration(seconds: float) -> str:
    """A time span, with a precision that suits its length.

    >>> [duration(s) for s in (0.042, 4.13, 95, 7500)]
    ['42 ms', '4.1 s', '1 min 35 s', '2 h 05 min']
    """
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def about(seconds: float) -> str:
    """A duration as people say it.

    >>> about(38), about(301), about(9000)
    ('about 40 s', 'about 5 min', 'about 2.5 h')
    """
    if seconds < 90:
        return f"about {max(1, round(seconds)) if seconds < 10 else 5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def size(count: float) -> str:
    """A number of bytes in decimal units.

    >>> [size(n) for n in (512, 17_040_000)]
    ['512 B', '17.0 MB']
    """
    if count < KILO:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= KILO
        if count < KILO:
            return f"{count:.1f} {unit}"
    return f"{count / KILO:.1f} TB"


def within_a_line(name: str) -> str:
    """The name of a figure where it begins no line; R² is itself, as r² is another figure."""
    return name.lower() if name.isalpha() else name


def tally(names: Iterable[str]) -> str:
    """How often each name occurs, most frequent first.

    >>> tally(["classifier", "generator", "classifier"])
    '2 classifiers, 1 generator'
    """
    counts = Counter(names).most_common()
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts)


def apart(versions: Iterable[Mapping[str, str]]) -> str:
    """The packages of which there are several versions, with these; nothing if there are none.

    >>> apart([{"onefold": "0.1", "torch": "2.14"}, {"onefold": "0.2", "torch": "2.14"}, {}])
    'onefold 0.1 and 0.2'
    """
    found: dict[str, set[str]] = {}
    for package, version in (pair for own in versions for pair in own.items()):
        found.setdefault(package, set()).add(version)
    several = {package: sorted(own) for package, own in found.items() if len(own) > 1}
    return ", ".join(f"{package} {' and '.join(own)}" for package, own in several.items())
