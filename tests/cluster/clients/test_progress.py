"""Clients' progress reaches the driver, and nothing depends on it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from cluster.clients.progress import Inbox, send
from cluster.hardware.private_ray import private_ray
from fl.events import ClientProgress


@pytest.fixture(scope="module", autouse=True)
def cluster(template: Path | None) -> Iterator[None]:
    with private_ray(cpus=1, gpus=0, memory_bytes=2**30, template=template):
        yield


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


def report(client: int, done: int = 3) -> ClientProgress:
    return ClientProgress(client=client, unit="epoch", done=done, of=20, loss=0.4125)


def read(inbox: Inbox, clients: set[int]) -> list[ClientProgress]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := list(inbox.read(clients)):
            return found
        time.sleep(0.05)
    return []


def test_the_latest_report_of_each_client_at_work_arrives(inbox: Inbox) -> None:
    assert not list(inbox.read({1}))
    send(inbox.mailbox, [report(1), report(2)])
    send(inbox.mailbox, [report(2, done=4), report(5)])
    found: list[ClientProgress] = []
    while not found or found[-1].done < 4:
        found += read(inbox, {2, 3})
    assert {each.client for each in found} == {2}
    assert found[-1] == report(2, done=4)


def test_neither_end_waits_or_fails_without_the_actor(inbox: Inbox) -> None:
    ray.kill(inbox.mailbox)
    begin = time.monotonic()
    while time.monotonic() < begin + 2:
        send(inbox.mailbox, [report(1)])
        assert not list(inbox.read({1}))


def test_a_flood_is_dropped(inbox: Inbox) -> None:
    for done in range(1, 2000):
        send(inbox.mailbox, [report(client, done) for client in range(100)])
    assert {each.client for each in read(inbox, set(range(100)))} <= set(range(100))
