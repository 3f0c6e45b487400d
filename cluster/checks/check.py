"""One check of the machine: a function with a time limit, and the record of what became of it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Status = Literal["passed", "failed", "skipped"]
Subject = TypeVar("Subject")
Value = TypeVar("Value")


class CheckFailed(Exception):
    """Something does not work as it should. The message is one line, and so is the advice."""

    def __init__(self, message: str, advice: str = "") -> None:
        """``advice``: what to do about it, in place of the check's own advice."""
        super().__init__(message, advice)  # both, so that it can be sent to another process
        self.advice = advice

    def __str__(self) -> str:
        return str(self.args[0])


class CheckSkipped(Exception):
    """There is nothing to check on this machine. The message says why in a few words."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a check."""

    name: str
    status: Status
    seconds: float
    finding: str
    """One line: what was seen to work, what failed, or why it was skipped."""
    advice: str = ""
    """What to do about it; empty unless it failed."""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[Subject]):
    """A check of a subject: of a folder, say, or of the nodes of a Ray cluster."""

    name: str
    run: Callable[[Subject], str]
    """Gives the finding; raises whatever went wrong, or :class:`CheckSkipped`."""
    advice: str
    timeout_s: float

    def perform(self, subject: Subject) -> Result:
        """Checks the subject. Whatever is raised on the way is a failure."""
        began = time.perf_counter()
        advice = ""
        try:
            finding = within(self.timeout_s, lambda: self.run(subject))
            status: Status = "passed"
        except CheckSkipped as reason:
            status, finding = "skipped", str(reason)
        except Exception as error:
            status, finding = "failed", last_line(error)
            advice = getattr(error, "advice", "") or self.advice
        seconds = round(time.perf_counter() - began, 2)
        return Result(
            name=self.name, status=status, seconds=seconds, finding=finding, advice=advice
        )

    def skipped(self, reason: str) -> Result:
        """The result where the check cannot be made."""
        return Result(name=self.name, status="skipped", seconds=0.0, finding=reason)


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """Calls ``work`` in a thread, which is abandoned when it takes longer.

    A call into a file system that hangs, or into Ray, cannot be interrupted.

    Raises:
        CheckFailed: it took longer.
    """
    outcome: Future[Value] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([outcome], timeout=seconds).done:
        raise CheckFailed(f"no answer within {seconds:g} s")
    return outcome.result()


def last_line(error: BaseException) -> str:
    """The last line of an error's message, with its type where that says anything."""
    kind, lines = type(error).__name__, str(error).strip().splitlines()
    if not lines:
        return kind
    return lines[-1] if isinstance(error, CheckFailed) else f"{kind}: {lines[-1].strip()}"
