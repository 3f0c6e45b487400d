"""Sends clients' progress to the driver. Display only: nothing waits for it."""

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from fl.events import ClientProgress

MOST_PENDING = 100
"""Calls that may wait for a slow inbox; further reports of a process are lost."""


class _Mailbox:
    """An actor that holds each client's latest report until the driver takes it."""

    def __init__(self) -> None:
        self._latest: dict[int, ClientProgress] = {}

    def put(self, reports: Sequence[ClientProgress]) -> None:
        self._latest |= {report.client: report for report in reports}

    def take(self) -> list[ClientProgress]:
        found, self._latest = list(self._latest.values()), {}
        return found


class Inbox:
    """The driver's end. It asks for the next reports and goes on; an answer is read later."""

    def __init__(self) -> None:
        actor: Any = ray.remote(_Mailbox)
        self.mailbox = actor.options(num_cpus=0, max_pending_calls=MOST_PENDING).remote()
        self._asked: Any = self.mailbox.take.remote()

    def read(self, clients: Set[int]) -> Iterator[ClientProgress]:
        """The reports of these clients that have arrived; none once the actor is gone."""
        if not ray.wait([self._asked], timeout=0)[0]:
            return
        with suppress(RayError):
            reports = ray.get(self._asked)
            self._asked = self.mailbox.take.remote()
            yield from (report for report in reports if report.client in clients)

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self.mailbox)


def send(mailbox: Any, reports: Sequence[ClientProgress]) -> None:
    """Sends reports from a client's process, without waiting; they are lost if that fails."""
    with suppress(RayError):
        mailbox.put.remote(reports)
