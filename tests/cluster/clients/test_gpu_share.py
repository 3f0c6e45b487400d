"""Shares of a real GPU: ten clients of three kinds on one card, one of whom overspends."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from cluster.clients.memory_cap import CUDA_BYTES
from cluster.hardware.inventory import take_inventory
from cluster.hardware.private_ray import private_ray
from cluster.profiling import measured
from fl.data.datasets import Split
from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import Upload
from fl.federation import Client, Job, RunSpec, TaskInput, TaskOutput
from fl.methods.method import Assignment
from fl.resources import ResourcesConfig
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.cluster.outcomes import uploads
from tests.fl.toy import Told, into

if TYPE_CHECKING:  # Ray may be missing
    from cluster.hardware.bundles import Bundles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

RNG = np.random.default_rng(0)
TRAIN = Split(RNG.integers(0, 256, (200, 1, 28, 28), dtype=np.uint8), RNG.integers(0, 10, 200))
PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
CLASSES = [
    Assignment("classifier", ClassifierConfig(width=1.0, epochs=2)),
    Assignment("classifier", ClassifierConfig(model="cnn", width=1.0, epochs=2)),
    Assignment("generator", GeneratorConfig(epochs=2)),
]
PARTS = [CLASSES[k % 3] for k in range(10)]


def takes_the_card(inputs: TaskInput) -> TaskOutput:
    """Client 4 asks for far more than its share."""
    if inputs.client.id == 4:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.empty(total // 2, dtype=torch.int8, device=inputs.device)
    return inputs.client.training.task(inputs)


@pytest.fixture(scope="module")
def bundles() -> "Iterator[Bundles]":
    pytest.importorskip("ray")
    from cluster.hardware.bundles import open_bundles

    inventory = take_inventory()
    with (
        private_ray(inventory.bundle),
        open_bundles() as bundles,
    ):
        yield bundles


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    inventory = take_inventory()
    found = measured(PARTS, [20] * 10, PROBLEM, ResourcesConfig(), inventory)
    return [
        Job(
            task=takes_the_card,
            client=Client(
                id=k,
                role=part.role,
                training=part.training,
                num_samples=20,
                request=found.by_assignment[part],
            ),
            run_spec=PROBLEM,
            indices=np.arange(20 * k, 20 * k + 20),
            broadcast=None,
            payload=None,
        )
        for k, part in enumerate(PARTS)
    ]


def test_ten_clients_share_a_card_and_the_one_that_overspends_fails_alone(
    bundles: "Bundles", jobs: list[Job]
) -> None:
    from cluster.clients.executor import RayExecutor

    events: list[Told] = []
    outcomes = {}
    for job, outcome in RayExecutor(TRAIN, bundles).run(jobs, Events(into(events))):
        outcomes[job.client.id] = outcome
    assert isinstance(outcomes[4], ClientFailed)
    assert "of the GPU" in outcomes[4].reason
    notes = {k: p.header.note for k, p in outcomes.items() if isinstance(p, Upload)}
    assert sorted(notes) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    total = min(gpu.memory_bytes for gpu in take_inventory().gpus)
    uuids = {gpu.uuid for gpu in take_inventory().gpus}
    for k, note in notes.items():
        share = jobs[k].client.request.gpus
        assert note["assigned"]["GPU"] == pytest.approx(share, abs=1e-4)
        assert note["device_uuid"] in uuids
        assert 0 < note["peak_bytes"] <= share * total - CUDA_BYTES


def test_no_client_holds_memory_of_the_card_when_the_map_is_over(
    bundles: "Bundles", jobs: list[Job]
) -> None:
    from cluster.clients.executor import RayExecutor

    before, _ = torch.cuda.mem_get_info()
    uploads(RayExecutor(TRAIN, bundles), [job for job in jobs if job.client.id != 4])
    after, _ = torch.cuda.mem_get_info()
    assert before - after < CUDA_BYTES / 2
