"""What goes to clients' processes and comes back leaves nothing in the driver's memory.

Their progress reaches the driver, and nothing depends on it.
"""

import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

from cluster.clients.actors import LARGE, Inbox, Sender, send
from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles
from fl.events import ClientProgress, Events
from fl.exchange import Upload, pack, unpack
from fl.federation import Job, Memory, TaskInput, TaskOutput
from tests.fl.toy import PROBLEM, client, split

TRAIN = split(4, 4, 4)
FLOATS = 4 * LARGE // 4


def filled(value: float, floats: int = FLOATS) -> bytes:
    return pack({"x": torch.full((floats,), value)}, {})


def job(k: int, memory: bytes, broadcast: bytes, payload: bytes | None = None) -> Job:
    return Job(
        task=adds,
        client=client(k),
        run_spec=PROBLEM,
        indices=np.arange(2),
        broadcast=broadcast,
        payload=payload,
        memory=Memory(f"{k}", lambda: Upload(memory)),
    )


def adds(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"x": inputs.remembered["x"] + inputs.broadcast["x"]})


def shared_bytes() -> int:
    """Of this process's memory, what it shares with others that are not files on a disk."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssShmem"))


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_the_drivers_memory_does_not_grow_with_messages_memories_and_uploads(
    bundles: Bundles,
) -> None:
    count, before, most = 12, shared_bytes(), 0
    broadcast = filled(100)
    jobs = [job(k, filled(k), broadcast) for k in range(count)]
    executor = RayExecutor(TRAIN, bundles, reuse_processes=True)
    for done, packed in executor.run(jobs, Events()):
        assert isinstance(packed, Upload)
        found = unpack(bytes(packed))[0]["x"]
        assert found.shape == (FLOATS,)
        assert (found == 100 + done.client.id).all()
        most = max(most, shared_bytes() - before)
        count -= 1
    executor.close()
    assert count == 0
    assert most < 2 * LARGE  # half of a single message


def test_small_messages_travel_with_their_job_large_ones_beside_it(bundles: Bundles) -> None:
    small, large = filled(1, floats=3), filled(2)
    sent = Sender().send(job(0, large, small, payload=small))
    assert sent.messages.keys() == {"remembered"}
    assert (sent.job.broadcast, sent.job.payload, sent.job.remembered) == (small, small, None)
    assert sent.received() == replace(sent.job, remembered=large)
    assert sent.job.memory is None


def test_a_broadcast_to_many_clients_is_put_once_and_another_one_anew(bundles: Bundles) -> None:
    sender, first, second = Sender(), filled(1), filled(2)
    broadcasts = [first] * 3 + [second]
    sent = [sender.send(job(k, b"", each)) for k, each in enumerate(broadcasts)]
    references = [each.messages["broadcast"] for each in sent]
    assert references[0] is references[1] is references[2]
    assert references[3] is not references[0]
    assert [each.received().broadcast for each in sent] == broadcasts


@pytest.fixture
def inbox(bundles: Bundles) -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


def reported(client: int, done: int = 3) -> ClientProgress:
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
    send(inbox.mailbox, [reported(1), reported(2)])
    send(inbox.mailbox, [reported(2, done=4), reported(5)])
    found: list[ClientProgress] = []
    while not found or found[-1].done < 4:
        found += read(inbox, {2, 3})
    assert {each.client for each in found} == {2}
    assert found[-1] == reported(2, done=4)


def test_neither_end_waits_or_fails_without_the_actor(inbox: Inbox) -> None:
    ray.kill(inbox.mailbox)
    begin = time.monotonic()
    while time.monotonic() < begin + 0.5:
        send(inbox.mailbox, [reported(1)])
        assert not list(inbox.read({1}))
