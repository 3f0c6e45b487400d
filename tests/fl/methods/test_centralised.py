"""Central training on all clients' samples, against a plain fit."""

import pytest
import torch
from torch import Tensor

from fl.federation import Update
from fl.fusion.fit import FitConfig
from fl.methods.centralised import run, samples
from tests.fl.methods.personal_runs import CLIENTS, DATA, federation, partition, settings, sizes

CONFIG = settings("centralised", fit=FitConfig(epochs=3, lr=0.05, optimizer="sgd", batch_size=16))


def test_the_server_trains_on_every_sample_and_their_bytes_are_counted() -> None:
    clients, server = federation("centralised", CONFIG)
    outcome = run(clients, server, CONFIG)
    _, data, _ = server.fits["fit"]
    own = [k for client in partition().train for k in client]
    pixels = torch.from_numpy(DATA.train.images[own]).float() / 255
    torch.testing.assert_close(data["images"], pixels)
    assert torch.equal(data["labels"], torch.from_numpy(DATA.train.labels[own]))
    assert len(outcome.epochs) == 3
    each = int(torch.Size(DATA.image_shape).numel()) + 1
    assert clients.bytes_up == {k: n * each for k, n in enumerate(sizes())}
    assert not any(clients.bytes_down.values())


def test_samples_that_cannot_be_are_refused_by_the_clients_name() -> None:
    clients, server = federation("centralised", CONFIG)
    n = sizes()[4]
    good = {
        "images": torch.zeros(n, *DATA.image_shape, dtype=torch.uint8),
        "labels": torch.zeros(n, dtype=torch.uint8),
    }

    def sent(**changes: Tensor) -> list[Update]:
        member = clients.members[CLIENTS - 1]
        tensors = {**good, **changes}
        return [Update(client=member, tensors=tensors, stats={}, seconds=0, reused=False)]

    assert len(samples(sent(), server)["labels"]) == n
    for bad in (
        {"images": good["images"][1:]},
        {"images": good["images"].float() + 2},
        {"images": good["images"].long()},
        {"labels": good["labels"].long()},
        {"labels": good["labels"] + 10},
    ):
        with pytest.raises(ValueError, match="client 4"):
            samples(sent(**bad), server)
