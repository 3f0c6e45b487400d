"""What goes to clients' processes and comes back leaves nothing in the driver's memory."""

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.clients.actors import LARGE, Sender
from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles, open_bundles
from cluster.hardware.private_ray import private_ray
from fl.events import Events
from fl.exchange import Upload, pack, unpack
from fl.federation import Job, Memory, TaskInput, TaskOutput
from tests.fl.toy import PROBLEM, client, split

TRAIN = split(4, 4, 4)
FLOATS = 4 * LARGE // 4


@pytest.fixture(scope="module")
def bundles(template: Path | None) -> Iterator[Bundles]:
    own = private_ray(cpus=2, gpus=0, memory_bytes=2**32, template=template)
    with own, open_bundles() as bundles:
        yield bundles


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
