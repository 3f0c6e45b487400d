"""Central training on all clients' samples, against a plain fit."""

import numpy as np
import pytest
import torch

from fl.data.own import as_dataset
from fl.federation import RunSpec, Update
from fl.fusion.fit import FitConfig
from fl.inputs import as_inputs
from fl.methods.centralised import check_samples, run
from tests.fl.methods.personal_runs import DATA, federation, partition, settings, sizes
from tests.fl.toy import client

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


def test_a_nan_in_the_bytes_of_several_inputs_is_refused() -> None:
    table, tokens = np.linspace(-2, 2, 60).reshape(20, 3), np.arange(40).reshape(20, 2)
    data = as_dataset("d", ((table, tokens), np.arange(20) % 2))
    spec = RunSpec(inputs=data.inputs, num_classes=2, seed=0)
    rows = as_inputs(np.asarray(data.train.images))[: client(4).num_samples]
    tensors = {"images": rows.clone(), "labels": torch.zeros(len(rows), dtype=torch.uint8)}
    update = Update(client=client(4), tensors=tensors, stats={}, seconds=0, reused=False)
    check_samples(update, spec)
    tensors["images"][2, :4] = torch.tensor([torch.nan]).view(torch.uint8)
    with pytest.raises(ValueError, match="client 4 sent samples with NaN or infinite values"):
        check_samples(update, spec)
