"""FEDCVAE-ENS against a naive twin, and who plays what."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import RunSpec
from fl.methods import fedcvae_ens, fedmho
from fl.methods.fedcvae_ens import FedCVAEConfig, assign
from fl.methods.fedmho import FedMHOConfig
from fl.models.cvae import truncate
from fl.seeding import seed_for
from fl.training.generator import GeneratorConfig
from tests.fl.methods.cvaes import SMALL
from tests.fl.methods.naive_fedmho import decoder
from tests.fl.methods.tiny import tiny_federation

PROBLEM = RunSpec(image_shape=(1, 28, 28), num_classes=10, seed=0)
ENS = FedCVAEConfig(**SMALL)


def test_half_the_clients_have_the_large_generator_as_in_table_1() -> None:
    parts = assign(FedCVAEConfig(), 10, PROBLEM)
    assert [p.training.model for p in parts] == ["cvae-large"] * 5 + ["cvae-small"] * 5
    assert {p.role for p in parts} == {"generator"}
    assert {p.training.model for p in assign(FedCVAEConfig(num_large=10), 10, PROBLEM)} == {
        "cvae-large"
    }


def test_small_clients_train_exactly_as_fedmhos_generator_clients() -> None:
    own = GeneratorConfig(epochs=3, lr=0.1)
    mine = assign(FedCVAEConfig(generator=own), 10, PROBLEM)
    assert mine[5:] == fedmho.assign(FedMHOConfig(generator=own), 10, PROBLEM)[5:]


@pytest.mark.parametrize("large", [-1, 5])
def test_impossible_casts_are_refused(large: int) -> None:
    with pytest.raises(UserError, match="num_large must be in 0 to 4"):
        assign(FedCVAEConfig(num_large=large), 4, PROBLEM)


@pytest.mark.parametrize(
    "change",
    [
        {"truncation": 0.0},
        {"allocation": "even"},
        {"large_model": "vgg9"},
        {"global_model": "cvae-small"},
        {"num_samples": 0},
    ],
)
def test_impossible_settings_are_refused(change: dict) -> None:
    with pytest.raises(UserError):
        replace(ENS, **change)


def test_ens_trains_a_fresh_classifier_on_what_the_decoders_draw() -> None:
    clients, server = tiny_federation(ENS, assign=assign, num_clients=4)
    outcome = fedcvae_ens.run(clients, server, ENS)
    updates = clients.train()
    rows = fedcvae_ens.allocate(updates, server, ENS, 40)
    images, labels = [], []
    for update, row in zip(updates, rows, strict=True):
        decode = decoder(update, server.run_spec)
        seed = seed_for(0, "synthesis", update.client.id)
        noise = torch.randn(row.sum(), 4, generator=torch.Generator().manual_seed(seed))
        own = [c for c, n in enumerate(row) for _ in range(n)]
        for z, c in zip(noise, own, strict=True):
            with torch.no_grad():
                drawn = decode(truncate(z, 3.0)[None], torch.eye(10)[[c]])
            images.append(torch.sigmoid(drawn)[0])
        labels += own
    torch.testing.assert_close(outcome.synthetic["images"], torch.stack(images))
    assert outcome.synthetic["labels"].tolist() == labels
    start, data, result = server.fits["fusion"]
    fresh = fedcvae_ens.untrained_global(server, ENS)
    assert all(torch.equal(start[n], t) for n, t in fresh.state_dict().items())
    assert outcome.start == server.evaluate(fresh)
    assert result.step_losses[0] == pytest.approx(first_loss(fresh, data, 16), rel=1e-4)


def first_loss(model: nn.Module, data: dict[str, Tensor], batch: int) -> float:
    """Cross-entropy of logits, once, by hand."""
    order = torch.Generator().manual_seed(seed_for(0, "fusion/order"))
    rows = torch.randperm(len(data["labels"]), generator=order)[:batch]
    total = 0.0
    for x, y in zip(data["images"][rows], data["labels"][rows], strict=True):
        powers = [math.exp(v) for v in model(x[None])[0].tolist()]
        total -= math.log(powers[y] / sum(powers))
    return total / batch


def test_fedmhos_own_allocation_can_be_had() -> None:
    clients, server = tiny_federation(ENS, assign=assign, num_clients=4)
    updates = clients.train()
    squared = replace(ENS, allocation="squared-counts")
    rows = fedcvae_ens.allocate(updates, server, squared, 400)
    assert rows.sum(axis=0).max() <= 40
    with pytest.raises(UserError, match="rounds to none"):
        fedcvae_ens.allocate(updates, server, squared, 9)
