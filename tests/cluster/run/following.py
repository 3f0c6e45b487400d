"""Events of small runs, as listeners hear them."""

from dataclasses import replace

from fl.events import ClientEnd, ClientStart
from fl.federation import Client
from tests.fl.toy import CLASSIFIER, client

MEMBERS = (client(0, CLASSIFIER), client(1, CLASSIFIER))


def many(count: int) -> tuple[Client, ...]:
    return tuple(replace(client(k), num_samples=60_000) for k in range(count))


def start(k: int, at: float = 0.0) -> ClientStart:
    return ClientStart(client=k, requested={}, seconds=at)


def end(c: Client, took: float = 0.0, at: float = 0.0) -> ClientEnd:
    return ClientEnd(
        client=c.id,
        role=c.role,
        model=c.model,
        num_samples=c.num_samples,
        seconds_training=took,
        bytes_up=10 * 2**20,
        seconds=at,
    )
