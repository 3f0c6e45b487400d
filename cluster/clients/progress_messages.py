"""How far clients are, sent from their processes to the driver while they train.

As datagrams, for people to see only: sending one never waits, so no training does; the kernel drops
what the driver does not read in time, so no memory grows; and a network that lets none pass costs a
run nothing. A datagram is signed with a secret of the run, and what it says is checked.
"""

import contextlib
import hmac
import json
import math
import secrets
import socket
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import get_args

import ray

from fl.events import ClientProgress
from fl.training.telling import Unit

SIGNED = "sha256"
SIGNATURE_BYTES = 32
CLIENTS = 500
"""Clients in a datagram, at most: it must stay below 64 KiB."""
READ_AT_ONCE = 1000
"""Datagrams that are read one after another, at most: the driver has other things to do."""
MOST = 10**9
"""Epochs or steps that a client may claim."""


@dataclass(frozen=True)
class Address:
    """Where the driver reads, and the secret that signs what it believes."""

    host: str
    port: int
    secret: bytes


class Inbox:
    """The driver's end: a socket on its node's address; without one nothing is heard."""

    def __init__(self) -> None:
        self.address: Address | None = None
        self._socket: socket.socket | None = None
        host = ray.util.get_node_ip_address()
        with contextlib.suppress(OSError):
            self._socket = socket.socket(_family(host), socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind((host, 0))
            port = self._socket.getsockname()[1]
            self.address = Address(host, port, secrets.token_bytes(SIGNATURE_BYTES))

    def read(self, clients: Set[int]) -> Iterator[ClientProgress]:
        """What has arrived of these clients; whatever else has is dropped."""
        for datagram in self._datagrams():
            yield from (told for told in _believed(datagram) if told.client in clients)

    def close(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()

    def _datagrams(self) -> Iterator[bytes]:
        """The signed ones, without their signature."""
        if self._socket is None or self.address is None:
            return
        for _ in range(READ_AT_ONCE):
            try:
                received = self._socket.recv(2**16)
            except OSError:  # nothing is there
                return
            signature, body = received[:SIGNATURE_BYTES], received[SIGNATURE_BYTES:]
            if hmac.compare_digest(signature, _signature(self.address, body)):
                yield body


class Outbox:
    """A client process's end: a listener of :func:`fl.training.telling.told_to`."""

    def __init__(self, address: Address | None) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        if address is not None:
            with contextlib.suppress(OSError):
                self._socket = socket.socket(_family(address.host), socket.SOCK_DGRAM)
                self._socket.setblocking(False)

    def __call__(self, told: Sequence[ClientProgress]) -> None:
        """Sends what clients told, without waiting."""
        if self._socket is None or self._address is None:
            return
        where = self._address.host, self._address.port
        for first in range(0, len(told), CLIENTS):
            some = told[first : first + CLIENTS]
            rows = [(t.client, t.unit, t.done, t.of, float(f"{t.loss:.6g}")) for t in some]
            body = json.dumps(rows).encode()
            with contextlib.suppress(OSError):
                self._socket.sendto(_signature(self._address, body) + body, where)


def _believed(body: bytes) -> Iterator[ClientProgress]:
    """What the datagram says, as far as it can be true."""
    try:
        rows = json.loads(body)
        for client, unit, done, of, loss in rows:
            if (
                unit in get_args(Unit)
                and type(client) is int
                and type(done) is int
                and (of is None or type(of) is int)
                and 1 <= done <= (MOST if of is None else min(of, MOST))
                and isinstance(loss, float)
                and math.isfinite(loss)
            ):
                yield ClientProgress(client=client, unit=unit, done=done, of=of, loss=loss)
    except (ValueError, TypeError, RecursionError):
        return


def _signature(address: Address, body: bytes) -> bytes:
    return hmac.digest(address.secret, body, SIGNED)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
