"""Errors that reach the user: bad input (one line, exit status 2), and a client that failed."""

import difflib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

LONGEST_WORD = 400
"""Characters of a word of an error that are shown: paths may be as long, and no word of ours is."""

log = logging.getLogger(__name__)


class UserError(ValueError):
    """Bad input. The message is one line: what was wrong, and what is allowed."""


class ClientFailed(RuntimeError):
    """A client's task failed for good; the message has the client and the reason."""

    def __init__(self, client: int, model: str, reason: str) -> None:
        super().__init__(f"client {client} ({model}) failed: {reason}")
        self.client = client
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """What an error says, in one line of at most 300 characters; one of a user's may fail at it."""
    try:
        text = str(error)
    except Exception:
        text = "it fails to say why"
    return " ".join(text.split())[:300]


@contextmanager
def ended_by(last: Callable[[], object]) -> Iterator[None]:
    """Does what is ``last`` at the end of the context. If the context fails, its error is the one
    that is raised, and what then fails too is a note of it and in the log."""
    try:
        yield
    except BaseException as first:
        try:
            last()
        except Exception as error:
            first.add_note(line := f"and then: {type(error).__name__}: {reason_of(error)}")
            log.warning(line)
        raise
    last()


class ServerFailed(RuntimeError):
    """The server's part failed for good; the message says where, and why."""


def error_line(error: UserError) -> str:
    """What a command prints of it, in one line: what the user gave may hold anything."""
    words = [w if len(w) <= LONGEST_WORD else f"{w[:60]} ... {w[-60:]}" for w in str(error).split()]
    return f"onefold: {escaped(' '.join(words))}"


def escaped(text: str) -> str:
    """The text, with what a terminal would obey and not show as an escape, but for new lines."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def check_name(kind: str, name: object, taken: Collection[str]) -> None:
    """Refuses a name for something of the user's own: it is no plain word, or taken.

    Raises:
        UserError: says what is allowed.
    """
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name)):
        raise UserError(f"{kind} name {name!r}; allowed: letters, digits and . _ + -")
    if name in taken:
        raise UserError(f"{kind} {name} comes with Onefold; give yours another name")


def unknown(kind: str, name: object, valid: Iterable[str]) -> UserError:
    """The error for a name that does not exist; lists those that do, with a guess.

    >>> str(unknown("data set", "minst", ["digits", "mnist"]))
    "unknown data set 'minst'; valid: digits, mnist; did you mean mnist?"
    """
    names = sorted(valid)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UserError(f"unknown {kind} {name!r}; valid: {', '.join(names)}{hint}")
