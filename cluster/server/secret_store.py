"""A store for ranks that share no folder: it answers only who knows the group's secret.

Torch's own store of this kind asks nobody who it is. Ours keeps a dictionary in the first rank's
process. A connection begins with a proof from either side, by HMAC over what the other has drawn;
then come questions and answers, a line of JSON each.
"""

import hmac
import json
import secrets
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from io import BufferedRWPair
from typing import Any

import torch.distributed as dist

from fl.fusion.group import PeerLostError

PROOF_S = 10.0
"""So long may who connects take for its proof."""

LINE_BYTES = 1 << 20
"""No line is longer. An address of gloo or NCCL takes some hundred bytes."""

WAIT_S = 300.0
"""How long to wait for a key where no other time is said; torch's own default."""


class StoreServer:
    """The dictionary, and the address at which it is asked; one thread for each connection."""

    def __init__(self, host: str, secret: bytes) -> None:
        """Listens on this address alone, on a port that the system chooses."""
        self._secret = secret
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family, backlog=1024)
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accepts no more connections; those that there are stay."""
        with suppress(OSError):  # it is closed
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes who accepts, which closing does not
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # it is closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as lines:
            try:
                connection.settimeout(PROOF_S)
                if not _proves(lines, self._secret):
                    return
                connection.settimeout(None)
                while line := lines.readline(LINE_BYTES):
                    _write(lines, json.dumps(self._answer(**json.loads(line))).encode())
            except (OSError, ValueError):  # it is gone, or sends no question
                return

    def _answer(
        self, do: str, keys: list[str], value: str = "", number: int = 0, timeout_s: float = 0
    ) -> Any:
        """``do``: one of set, get, add, wait and check. Bytes travel as hexadecimals."""
        with self._changed:
            if do == "set":
                self._values[keys[0]] = bytes.fromhex(value)
            elif do == "add":
                number += int(self._values.get(keys[0], b"0"))
                self._values[keys[0]] = str(number).encode()
            elif do == "wait":
                return self._changed.wait_for(lambda: self._has(keys), timeout_s)
            elif do == "check":
                return self._has(keys)
            elif do == "get":
                return self._values[keys[0]].hex()
            self._changed.notify_all()
            return number

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


class SecretStore(dist.Store):
    """What a rank asks, :class:`StoreServer` answers."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        """Connects.

        Raises:
            PeerLostError: nobody is there, or who is there does not know the secret.
        """
        super().__init__()
        self._one_at_a_time = threading.Lock()
        try:
            self._connection = socket.create_connection(address, timeout=PROOF_S)
            self._lines = self._connection.makefile("rwb")
            known = _knows(self._lines, secret)
            self._connection.settimeout(None)
        except OSError as error:
            raise PeerLostError(f"the store at {address[0]} cannot be reached: {error}") from None
        if not known:
            raise PeerLostError(f"the store at {address[0]} and this rank know different secrets")

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value, and wakes who waits for it."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(do="set", keys=[key], value=data.hex())

    def get(self, key: str) -> bytes:
        """A value, once somebody has set it."""
        self.wait([key])
        return bytes.fromhex(self._ask(do="get", keys=[key]))

    def add(self, key: str, number: int) -> int:
        """Adds to a number, which begins at 0; returns the sum."""
        return self._ask(do="add", keys=[key], number=number)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these are set."""
        return self._ask(do="check", keys=list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all of these are set.

        Raises:
            PeerLostError: they were not within the timeout.
        """
        seconds = timeout.total_seconds() if timeout else WAIT_S
        if not self._ask(do="wait", keys=list(keys), timeout_s=seconds):
            raise PeerLostError(f"no rank has set {', '.join(keys)} within {seconds:g} s")

    def _ask(self, **question: Any) -> Any:
        with self._one_at_a_time:
            try:
                _write(self._lines, json.dumps(question).encode())
                return json.loads(self._lines.readline(LINE_BYTES))
            except (OSError, ValueError):
                raise PeerLostError("the first rank, which keeps the store, is gone") from None


def _proves(lines: BufferedRWPair, secret: bytes) -> bool:
    """Whether the other side knows the secret; only then is it told that this side does."""
    drawn = secrets.token_hex(32).encode()
    _write(lines, drawn)
    theirs, told = _line(lines), _line(lines)
    if not hmac.compare_digest(told, _digest(secret, b"rank", drawn, theirs)):
        return False
    _write(lines, _digest(secret, b"store", drawn, theirs))
    return True


def _knows(lines: BufferedRWPair, secret: bytes) -> bool:
    """The other half of :func:`_proves`."""
    drawn, theirs = secrets.token_hex(32).encode(), _line(lines)
    _write(lines, drawn)
    _write(lines, _digest(secret, b"rank", theirs, drawn))
    return hmac.compare_digest(_line(lines), _digest(secret, b"store", theirs, drawn))


def _digest(secret: bytes, side: bytes, *drawn: bytes) -> bytes:
    return hmac.digest(secret, b" ".join((side, *drawn)), "sha256").hex().encode()


def _line(lines: BufferedRWPair) -> bytes:
    return lines.readline(LINE_BYTES).rstrip(b"\n")


def _write(lines: BufferedRWPair, line: bytes) -> None:
    lines.write(line + b"\n")
    lines.flush()
