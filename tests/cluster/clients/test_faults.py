"""Clients, processes and nodes that die, on a real cluster of two nodes: nothing is lost."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles, open_bundles
from cluster.hardware.ray_internals import forked_workers
from fl.data.datasets import Split
from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import Upload, pack, unpack
from fl.executor import InProcess
from fl.federation import Client, Job, Memory, Request, RunSpec, Task, TaskInput, TaskOutput
from fl.training.classifier import ClassifierConfig
from fl.training.sizes import work
from fl.training.task import train_by_recipe
from tests.cluster.outcomes import uploads
from tests.fl.toy import Told, into
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
TRAIN = Split(
    RNG.integers(0, 256, (60, 1, 28, 28), dtype=np.uint8), RNG.integers(0, 10, 60).astype(np.int64)
)
FOLDER = "ONEFOLD_TEST_FOLDER"


def trains(inputs: TaskInput) -> TaskOutput:
    """Trains, and shows what the client remembered."""
    output = train_by_recipe(inputs)
    return replace(output, tensors={**output.tensors, **inputs.remembered})


def hangs_at_first(inputs: TaskInput) -> TaskOutput:
    """Client 1 waits to be killed the first time; whoever else, and it later, trains."""
    marker = Path(os.environ[FOLDER]) / f"client-{inputs.client.id}"
    if inputs.client.id == 1 and not marker.exists():
        marker.write_text(f"{os.getpid()} {ray.get_runtime_context().get_node_id()}")
        time.sleep(3600)
    return trains(inputs)


def overspends(inputs: TaskInput) -> TaskOutput:
    """Client 1 needs 300 MB, client 2 more than twice what anyone has; the others train."""
    need = {1: 300 * 10**6, 2: 900 * 10**6}.get(inputs.client.id)
    if need:
        return TaskOutput(
            tensors={"size": torch.tensor([len(torch.empty(need, dtype=torch.int8))])}
        )
    return train_by_recipe(inputs)


def where(inputs: TaskInput) -> TaskOutput:
    pid = torch.tensor([os.getpid()])
    time.sleep(0.2)
    return TaskOutput(tensors={"pid": pid})


def remembers(client: int) -> Upload:
    return Upload(pack({"own": torch.tensor([client])}, {}))


def job(client: int, task: Task = train_by_recipe, request: Request | None = None) -> Job:
    return Job(
        task=task,
        client=Client(
            id=client,
            role="classifier",
            training=ClassifierConfig(model="cnn", width=0.3, epochs=2),
            num_samples=15,
            request=request or Request(cpus=1, gpus=0.5),
        ),
        run_spec=RunSpec.of_images((1, 28, 28), num_classes=10, seed=0),
        indices=np.arange(client * 8, client * 8 + 15),
        broadcast=None,
        payload=None,
        memory=Memory(f"{client}", lambda: remembers(client)),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where clients leave word; the nodes' processes are told of it when they start."""
    with pytest.MonkeyPatch.context() as patch:
        made = tmp_path_factory.mktemp("markers")
        patch.setenv(FOLDER, str(made))
        yield made


@pytest.fixture(scope="module")
def nodes(folder: Path, template: Path) -> Iterator[Cluster]:
    """Two nodes of two cores and one logical GPU."""
    with forked_workers(template):
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
        made.add_node(num_cpus=2, num_gpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def cluster(nodes: Cluster, folder: Path) -> Cluster:
    """The nodes, as many as ever, where no client has left word yet."""
    for marker in folder.iterdir():
        marker.unlink()
    if not nodes.worker_nodes:
        nodes.add_node(num_cpus=2, num_gpus=1)
    wait_until(lambda: ray.available_resources().get("CPU") == 4)
    return nodes


def run(jobs: list[Job], listener: list[Told]) -> dict[int, bytes]:
    with open_bundles() as bundles:
        executor = RayExecutor(TRAIN, bundles)
        return uploads(executor, jobs, Events(into(listener)))


def when_marked(folder: Path, act) -> threading.Thread:  # type: ignore[no-untyped-def]
    """Calls ``act(pid, node)`` as soon as client 1 hangs."""

    def watch() -> None:
        marker = folder / "client-1"
        wait_until(lambda: marker.exists() and " " in marker.read_text())
        pid, node = marker.read_text().split()
        act(int(pid), node)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def same(ours: dict[int, bytes], theirs: dict[int, bytes]) -> None:
    assert ours.keys() == theirs.keys()
    for client, packed in ours.items():
        a, b = unpack(packed)[0], unpack(theirs[client])[0]
        assert all(torch.equal(a[n], b[n]) for n in a)


def undisturbed(jobs: int) -> dict[int, bytes]:
    plain = [job(k, trains) for k in range(jobs)]
    return uploads(InProcess(TRAIN), plain)


def test_a_killed_client_is_trained_again_to_the_same_bits(cluster: Cluster, folder: Path) -> None:
    events: list[Told] = []
    when_marked(folder, lambda pid, node: os.kill(pid, signal.SIGKILL))
    updates = run([job(k, hangs_at_first) for k in range(4)], events)
    same(updates, undisturbed(4))
    failed = [e for e in events if e["event"] == "client_failed"]
    assert [e["client"] for e in failed] == [1]
    assert "process died" in failed[0]["reason"]


ROOMY = Request(cpus=1, gpus=0, memory_bytes=200 * 10**6)


def test_a_client_over_its_share_fails_alone_and_gets_twice_as_much_and_no_more(
    cluster: Cluster,
) -> None:
    heard: list[Told] = []
    jobs = [job(k, overspends, ROOMY) for k in range(4)]
    with open_bundles() as bundles:
        running = RayExecutor(TRAIN, bundles).run(jobs, Events(into(heard)))
        outcomes = {done.client.id: outcome for done, outcome in running}
    gave_up = outcomes.pop(2)
    assert isinstance(gave_up, ClientFailed)
    assert re.search(r"400000000 bytes.*with twice the share it had first", gave_up.reason)
    updates = {k: bytes(outcome) for k, outcome in outcomes.items()}  # type: ignore[arg-type]
    neighbours = {k: p for k, p in undisturbed(4).items() if k in (0, 3)}
    same({k: updates[k] for k in neighbours}, neighbours)
    assert int(unpack(updates[1])[0]["size"]) == 300 * 10**6
    failed = [e for e in heard if e["event"] == "client_failed"]
    assert sorted(e["client"] for e in failed) == [1, 2, 2]
    (reason,) = (e["reason"] for e in failed if e["client"] == 1)
    assert "200000000 bytes of memory: asked for 300000000 bytes more" in reason
    starts = [e for e in heard if e["event"] == "client_start" and e["client"] == 1]
    asked = [e["requested"]["memory_bytes"] for e in starts]
    assert asked == [200 * 10**6, 400 * 10**6]
    assert unpack(updates[1])[1]["assigned"]["memory"] == 400 * 10**6


def test_three_client_classes_are_assigned_three_different_shares(cluster: Cluster) -> None:
    """On logical GPUs, as three models of one run ask for them."""
    shares = [
        Request(cpus=2, gpus=0.75, memory_bytes=300 * 10**6),
        Request(cpus=1, gpus=0.5, memory_bytes=200 * 10**6),
        Request(cpus=0.5, gpus=0.25, memory_bytes=100 * 10**6, shared=True),
    ]
    jobs, before = [job(k, where, shares[k % 3]) for k in range(6)], ray.cluster_resources()
    with open_bundles() as bundles:
        executor = RayExecutor(TRAIN, bundles, rates={"cnn": 100.0, "vgg9": 7.0})
        updates = uploads(executor, jobs)
        nobody_holds_a_gpu(bundles)
        before_training = executor.rates
        (trained,) = uploads(executor, [job(0)]).values()
    for k, packed in updates.items():
        assigned, share = unpack(packed)[1]["assigned"], shares[k % 3]
        assert assigned["CPU"] == share.cpus
        assert assigned["GPU"] == share.gpus
        assert assigned["memory"] == share.memory_bytes
    # What clients took to train is known to the next map; another task says nothing of that.
    assert before_training == {"cnn": 100.0, "vgg9": 7.0}
    assert executor.rates["vgg9"] == 7.0
    assert executor.rates["cnn"] == unpack(trained)[1]["seconds"] / work(job(0))
    # A process serves one client after another.
    assert len({int(unpack(packed)[0]["pid"]) for packed in updates.values()}) < 6
    wait_until(lambda: ray.available_resources().get("GPU") == before["GPU"])


def nobody_holds_a_gpu(bundles: Bundles) -> None:
    """As when fusion starts."""
    name = f"GPU_group_{bundles.group.id.hex()}"
    assert ray.available_resources()[name] == ray.cluster_resources()[name] == 2
