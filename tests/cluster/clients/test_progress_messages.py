"""How far clients are, as datagrams: what is true arrives, nonsense and strangers do not."""

import hmac
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cluster.clients import progress_messages
from cluster.clients.progress_messages import Address, Inbox, Outbox
from fl.events import ClientProgress


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    monkeypatch.setattr(progress_messages.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    made = Inbox()
    yield made
    made.close()


def address(inbox: Inbox) -> Address:
    assert inbox.address is not None
    return inbox.address


def send(inbox: Inbox, body: bytes, secret: bytes | None = None) -> None:
    to = address(inbox)
    signature = hmac.digest(secret or to.secret, body, "sha256")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(signature + body, (to.host, to.port))


def read(inbox: Inbox, clients: set[int]) -> list[ClientProgress]:
    """What has arrived by now; on this host that takes no time worth speaking of."""
    for _ in range(50):
        if found := list(inbox.read(clients)):
            return found
        time.sleep(0.002)
    return []


def told(client: int) -> ClientProgress:
    return ClientProgress(client=client, unit="epoch", done=3, of=20, loss=0.4125)


def test_what_a_cohort_tells_arrives_as_it_was_told(inbox: Inbox) -> None:
    cohort = [told(k) for k in range(64)]
    Outbox(address(inbox))(cohort)
    assert read(inbox, set(range(64))) == cohort


def test_a_large_cohort_takes_several_datagrams(inbox: Inbox) -> None:
    Outbox(address(inbox))([told(k) for k in range(1200)])
    assert {t.client for t in read(inbox, set(range(1200)))} == set(range(1200))


def test_only_of_clients_that_are_at_work(inbox: Inbox) -> None:
    Outbox(address(inbox))([told(1), told(2)])
    assert read(inbox, {2, 3}) == [told(2)]


NONSENSE: list[Any] = [
    [1, "epoch", 3, 20, "0.4"],
    [1, "epoch", 3, 20, float("nan")],
    [1, "epoch", 3, 20, float("inf")],
    [1, "epoch", 21, 20, 0.4],
    [1, "epoch", 0, 20, 0.4],
    [1, "epoch", 3.5, 20, 0.4],
    [1, "epoch", True, 20, 0.4],
    [1, "epoch", 10**30, None, 0.4],
    [1, "[red]epoch", 3, 20, 0.4],
    [[1], "epoch", 3, 20, 0.4],
    [1, [], 3, 20, 0.4],
    [1, "epoch", 3, "20", 0.4],
    [1, "epoch", 3],
    {"client": 1},
    7,
]


@pytest.mark.parametrize("row", NONSENSE, ids=str)
def test_nonsense_is_dropped(inbox: Inbox, row: Any) -> None:
    send(inbox, json.dumps([row]).encode())
    send(inbox, json.dumps([[1, "step", 3, None, 0.5]]).encode())
    assert [t.unit for t in read(inbox, {1})] == ["step"]


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"7", b"null", b"[" * 50_000])
def test_what_is_no_message_is_dropped(inbox: Inbox, body: bytes) -> None:
    send(inbox, body)
    Outbox(address(inbox))([told(1)])
    assert read(inbox, {1}) == [told(1)]


def test_a_stranger_is_not_believed(inbox: Inbox) -> None:
    Outbox(replace(address(inbox), secret=b"guessed"))([told(2)])
    send(inbox, json.dumps([[2, "step", 3, None, 0.5]]).encode(), b"guessed")
    Outbox(address(inbox))([told(1)])
    assert read(inbox, {1, 2}) == [told(1)]


def test_sending_never_waits_and_nothing_piles_up(inbox: Inbox) -> None:
    """Nobody reads: the kernel keeps what fits its buffer and drops the rest."""
    outbox = Outbox(address(inbox))
    for _ in range(500):
        outbox([told(k) for k in range(400)])
    assert len(list(inbox.read({1}))) < 500


def test_without_a_socket_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_messages.ray.util, "get_node_ip_address", lambda: "192.0.2.1")
    deaf = Inbox()  # that address is no machine's
    assert deaf.address is None
    Outbox(deaf.address)([told(1)])
    assert list(deaf.read({1})) == []
    deaf.close()
