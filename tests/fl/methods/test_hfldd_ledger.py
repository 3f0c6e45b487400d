"""The ledger of HFLDD's Tables II to IV, against Eq. 18, Eq. 19 and what is printed.

The methods run as they are, with a hundred clients and the paper's models and sizes, but a tenth
as wide, as the equations hold for a model of any size; and an executor answers in the clients'
stead without training, with uploads of the sizes that they have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cluster.studies.comparison import published
from fl.clients import Clients
from fl.condensation.kip import KipTraining
from fl.data.datasets import Split
from fl.events import Events
from fl.exchange import ClientNote, Tensors, Upload, num_bytes, prefixed, unpack
from fl.federation import Client, Job, Request, RunSpec
from fl.methods.hfldd import keep_data, send_soft_labels
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.training.classifier import starting_classifier
from tests.fl.methods.tiny import NoStore, WatchedServer, whole
from tests.fl.toy import CPU

CLIENTS, PUBLIC, CLASSES, SET, CLUSTERS = 100, 1000, 10, 400, 10
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cinic10": (3, 32, 32)}
MODELS = {"mnist": "lenet5", "cifar10": "hfldd-cnn"}
PARAMETERS = {"mnist": 44_426, "cifar10": 1_020_160, "cinic10": 320_010}
"""|w| as the paper states it (Section VI-A)."""
HEADS = {"mnist": 16, "cifar10": 23, "cinic10": 26}
"""H of its IID clients, which it does not state: with these its Traffic comes out."""
PRINTED = {dataset: table["methods"] for dataset, table in published()["hfldd-traffic"].items()}
CELLS = [(dataset, method) for dataset, row in PRINTED.items() for method in row]
RUN = [cell for cell in CELLS if cell[0] == "mnist" or cell == ("cifar10", "hfldd")]
"""On other data sets nothing but the size of the model is another, and of HFLDD's images: CINIC-10
has CIFAR-10's."""


def equation(dataset: str, method: str, rounds: int, model: int) -> int:
    """Bytes that a method costs: Eq. 18 of HFLDD, Eq. 19 of FedSeq, Eq. 3 of the others.

    ``model`` is |w| in bytes. A pixel has one byte, a soft label four for each class.
    """
    if method == "hfldd":
        heads, image = HEADS[dataset], int(torch.Size(SHAPES[dataset]).numel())
        told = CLIENTS * PUBLIC * CLASSES * 4
        return told + (CLIENTS - heads) * SET * image + heads * model * (2 * rounds - 1)
    if method == "fedseq":
        in_each = CLIENTS // CLUSTERS
        return CLUSTERS * model * ((2 * rounds - 1) + rounds * in_each)
    return CLIENTS * model * (2 * rounds - 1)


@pytest.mark.parametrize(("dataset", "method"), CELLS)
def test_the_equations_give_what_the_paper_prints(dataset: str, method: str) -> None:
    """Its MiB are those of one round more than the rounds beside them."""
    cell = PRINTED[dataset][method]
    found = equation(dataset, method, cell["round"] + 1, 4 * PARAMETERS[dataset]) / 2**20
    assert abs(found - cell["mib"]) < 0.1  # one place after the point, rounded or cut


@pytest.mark.parametrize(("dataset", "method"), RUN)
def test_the_ledger_is_the_equation(dataset: str, method: str) -> None:
    """Three rounds are run; those that follow cost what the third one does."""
    rounds = PRINTED[dataset][method]["round"] + 1
    per_round, model = ledger(dataset, method)
    assert per_round[1] == per_round[2]
    total = sum(per_round[:2]) + (rounds - 2) * per_round[2]
    assert total == equation(dataset, method, rounds, model)


def ledger(dataset: str, method: str) -> tuple[list[int], int]:
    """Bytes of three rounds, and of the model."""
    spec = RunSpec.of_images(SHAPES[dataset], num_classes=CLASSES, seed=0)
    config = settings(method, MODELS[dataset])
    members = [
        Client(
            id=k,
            role=assignment.role,
            training=assignment.training,
            num_samples=SET,
            request=Request(cpus=1, gpus=0, shared=True),
        )
        for k, assignment in enumerate(get_method(method).assign(config, CLIENTS, spec))
    ]
    start = prefixed("classifier", starting_classifier(config.classifier, spec))
    events = Events()
    clients = Clients(
        *(members, [np.arange(SET)] * CLIENTS, spec, Untrained(start, dataset), NoStore(), events)
    )
    images = np.zeros((2, *SHAPES[dataset]), np.uint8)
    server = WatchedServer(
        *(spec, whole(Split(images, np.zeros(2, np.int64))), events, CPU, None)  # a test split
    )
    inputs = {"auxiliary": torch.zeros(PUBLIC, *SHAPES[dataset])} if method == "hfldd" else {}
    outcome = get_method(method).run(clients, server, config, rounds=Rounds(3), **inputs)
    told = outcome.figures["per_round"]
    return [r["bytes_up"] + r["bytes_down"] + r["bytes_peer"] for r in told], num_bytes(start)


def settings(method: str, model: str) -> Any:
    config = get_method(method).config()
    all_large = {"num_large": CLIENTS} if method in ("fedavg", "fedprox") else {}
    return replace(
        config, classifier=replace(config.classifier, model=model, width=0.1), **all_large
    )


class Untrained:
    """Answers in the clients' stead: the model as it was, a set of noise, soft labels by group."""

    def __init__(self, start: Tensors, dataset: str) -> None:
        self._start = ClientNote(seconds=0.0).pack(start)
        self._set = ClientNote(seconds=0.0, stats={"steps": 1.0, "nearest": 0.0}).pack(
            {
                f"images.{c}": torch.zeros(SET // CLASSES, *SHAPES[dataset], dtype=torch.uint8)
                for c in range(CLASSES)
            }
        )
        self._groups = groups(HEADS[dataset])

    def run(self, jobs: Sequence[Job], events: Events) -> Iterator[tuple[Job, Upload]]:
        for job in jobs:
            yield job, Upload(self._answer(job))

    def _answer(self, job: Job) -> bytes:
        if job.task is send_soft_labels:
            soft = torch.full((PUBLIC, CLASSES), 0.01)
            soft[:, self._groups[job.client.id]] = 0.91
            return ClientNote(seconds=0.0).pack({"soft_labels": soft})
        if job.task is keep_data:
            received = unpack(job.payload)[0] if job.payload else {}  # a lone head gets nothing
            return ClientNote(seconds=0.0).pack(received)
        if isinstance(job.client.training, KipTraining):
            return self._set
        return self._start


def groups(largest: int) -> list[int]:
    """Each client's group of ten; the first one is the largest, the others share the rest."""
    rest = [1 + k % (CLASSES - 1) for k in range(CLIENTS - largest)]
    return [0] * largest + rest
