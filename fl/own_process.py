"""A command in a process of its own: its environment, its streams, signals, and how it ends."""

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from io import BufferedWriter, FileIO, TextIOWrapper
from types import FrameType
from typing import Any, NoReturn, TypeVar

SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
)
"""What ends a command, with exit status 128 and the signal's number, as shells have it."""
CLOSED_PIPE = 141
"""Exit status as shells have it where nobody reads on."""
LAST_RESORT_S = 4.0
NO_HOME = "/proc/no-home"
"""Home of a user who has none: nobody, not even root, can make a folder there."""

Value = TypeVar("Value")

AT_LAST: list[Callable[[], None]] = []
"""What is called where a stopped command does not end by itself in time."""
_status: list[int] = []
"""The exit status, once a signal has come."""
_said: list[str] = []


class Output(BufferedWriter):
    """A stream whose reader may leave: what is written then is dropped, and nothing is raised.

    It is the buffer and not the raw stream below, whose write would then be in Python: a signal
    just before that returned would have the buffer write the same again.
    """

    failure: OSError | None = None

    def write(self, content: Any) -> int:
        """Writes the content, or from the first failure on to nowhere."""
        try:
            return super().write(content)
        except OSError as error:
            self._write_to_nowhere(error)
            return super().write(content)

    def flush(self) -> None:
        """Writes what is kept."""
        try:
            super().flush()
        except OSError as error:
            self._write_to_nowhere(error)
            super().flush()

    def _write_to_nowhere(self, failure: OSError) -> None:
        self.failure = failure
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def prepare_process() -> None:
    """Lets neither environment nor streams stop a command, and ends it in one line by a signal.

    Before matplotlib is imported.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # it is closed: a file that is opened later must not get its number
            nowhere = open(os.devnull, mode)  # noqa: SIM115
            os.set_inheritable(nowhere.fileno(), True)
            setattr(sys, name, nowhere)
        elif name != "stdin" and stream is getattr(sys, f"__{name}__"):  # the process's own
            stream.flush()
            setattr(sys, name, _going_on(stream))
    os.environ["MPLBACKEND"] = "agg"  # pictures are files
    os.environ.pop("SOURCE_DATE_EPOCH", None)  # none has a date, and matplotlib reads it even so
    if os.path.expanduser("~") == "~":  # a user whom the system does not know
        os.environ["HOME"] = NO_HOME
    for one in SIGNALS:
        if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN:  # ignored by nohup
            signal.signal(one, _stop)


def run_as_command(
    main: Callable[[], int | None], *, goes_on: bool = False, at_once: bool = False
) -> NoReturn:
    """Runs a command and ends the process with its exit status.

    Args:
        main: the command; returns its exit status.
        goes_on: whether what it does matters though nobody reads what it prints.
        at_once: end without waiting for threads.
    """
    prepare_process()
    try:
        status = main() or 0
    except SystemExit as end:  # after help
        status, goes_on = end.code if isinstance(end.code, int) else bool(end.code), False
    except BaseException:
        if not _status:
            raise
        status = _status[0]
    if _status and status:
        say_interrupted()
        status = _status[0]
    status = status or _status_of_output(goes_on)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if at_once or _status:
        # All files are closed by now, and the regular shutdown of torch and Ray takes seconds.
        os._exit(status)
    gc.freeze()  # else Python looks a last time through all that torch and Ray made, for a second
    sys.exit(status)


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """Calls ``work`` in a thread, which is left behind when it takes longer: a `TimeoutError`.

    For calls into a driver or a file system, which cannot be interrupted when they hang.
    """
    outcome: Future[Value] = Future()

    def finish() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=finish, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome.done():
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome.result()


def say_interrupted(line: str = "interrupted") -> None:
    """Prints the line on stderr, once for the signal that ends the process."""
    if _said:
        return
    if _status:  # without a signal the process may go on and be interrupted again, as a notebook's
        _said.append(line)
    print(line, file=sys.stderr, flush=True)


def _stop(signum: int, frame: FrameType | None) -> None:
    """Has the command stop, in a few seconds at most; further signals change nothing."""
    if _status:
        return
    _status.append(128 + signum)
    # Python drops an exception that is raised in a destructor or a callback. The timer ends the
    # process even then; its files are complete at any moment.
    last_resort = threading.Timer(LAST_RESORT_S, _end_at_once)
    last_resort.daemon = True
    last_resort.start()
    raise KeyboardInterrupt


def _end_at_once() -> None:
    try:
        say_interrupted()
        for last in AT_LAST:
            last()
    finally:
        os._exit(_status[0])


def _going_on(stream: TextIOWrapper) -> TextIOWrapper:
    return TextIOWrapper(
        Output(FileIO(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace",  # some terminals' encodings lack our characters
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _status_of_output(goes_on: bool) -> int:
    """The exit status where standard output could not be written; 0 where it could."""
    sys.stdout.flush()
    output = getattr(sys.stdout, "buffer", None)
    if not isinstance(output, Output) or output.failure is None:
        return 0
    failure, output.failure = output.failure, None
    if failure.errno != errno.EPIPE:
        print(f"onefold: cannot write to standard output: {failure.strerror}", file=sys.stderr)
        return 0 if goes_on else 1
    return 0 if goes_on else CLOSED_PIPE
