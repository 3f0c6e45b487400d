"""The error for what a user can mend: it becomes one line on stderr and exit status 2."""

from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The message is one line: what was wrong, and what is allowed."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """The error for a name that does not exist; lists the names that do.

    >>> str(unknown("data set", "minst", ["digits", "mnist"]))
    "unknown data set 'minst'; valid: digits, mnist"
    """
    return UserError(f"unknown {kind} {name!r}; valid: {', '.join(sorted(valid))}")
