"""Errors that reach the user: bad input (one line, exit status 2), and a client that failed."""

from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The message is one line: what was wrong, and what is allowed."""


class ClientFailed(RuntimeError):
    """A client's task failed for good; the message has the client and the reason."""

    def __init__(self, client: int, model: str, reason: str) -> None:
        super().__init__(f"client {client} ({model}) failed: {reason}")
        self.client = client
        self.reason = reason


def unknown(kind: str, name: object, valid: Iterable[str]) -> UserError:
    """The error for a name that does not exist; lists the names that do.

    >>> str(unknown("data set", "minst", ["digits", "mnist"]))
    "unknown data set 'minst'; valid: digits, mnist"
    """
    return UserError(f"unknown {kind} {name!r}; valid: {', '.join(sorted(valid))}")
