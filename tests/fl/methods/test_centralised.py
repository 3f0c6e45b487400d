"""Central training on all clients' samples, against a plain fit."""

import torch

from fl.fusion.fit import FitConfig
from fl.methods.centralised import run
from tests.fl.methods.personal_runs import DATA, federation, partition, settings, sizes

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
