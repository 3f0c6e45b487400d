"""FEDCVAE-ENS and FEDCVAE-KD against naive twins, and who plays what."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim

from fl.errors import UserError
from fl.federation import RunSpec
from fl.fusion.fit import FitConfig
from fl.methods import fedcvae, fedmho
from fl.methods.fedcvae import (
    FedCVAEConfig,
    FedCVAEKDConfig,
    RegressionConfig,
    assign,
    large_generator,
)
from fl.methods.fedmho import FedMHOConfig
from fl.methods.uploads import untrained_classifier
from fl.models.architectures.cvaes import Decoder, truncate
from fl.seeding import seed_for
from fl.server import Samples
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig, starting_generator
from tests.fl.methods.naive_fedmho import decoder
from tests.fl.methods.tiny import WatchedServer, tiny_federation

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
SMALL = {
    "generator": GeneratorConfig(width=0.1, latent=4, epochs=2),
    "large_width": 0.02,
    "num_samples": 40,
    "global_model": "cnn",
    "global_width": 0.3,
    "classify": FitConfig(epochs=2, batch_size=16, lr=1e-3),
}
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


def test_ens_trains_a_fresh_classifier_on_what_the_decoders_draw() -> None:
    clients, server = tiny_federation(ENS, assign=assign, num_clients=4)
    outcome = fedcvae.run(clients, server, ENS)
    updates = clients.train()
    rows = fedcvae.allocate(updates, server, ENS, 40)
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
    wanted = ClassifierConfig(model=ENS.global_model, width=ENS.global_width)
    fresh = untrained_classifier(wanted, server)
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
    rows = fedcvae.allocate(updates, server, squared, 400)
    assert rows.sum(axis=0).max() <= 40
    with pytest.raises(UserError, match="is too few"):
        fedcvae.allocate(updates, server, squared, 9)


KD = FedCVAEKDConfig(
    **SMALL, decoder=RegressionConfig(num_samples=30, epochs=2, lr=1e-3, batch_size=8)
)


def test_kds_decoder_regresses_what_the_clients_draw_for_the_same_z_and_label() -> None:
    clients, server = tiny_federation(KD, assign=assign, num_clients=4)
    updates = clients.train()
    drawn_by_clients = fedcvae.draw_examples(updates, server, KD)
    examples = {name: server.fetch(drawn_by_clients, name) for name in drawn_by_clients.columns}
    assert len(examples["labels"]) == 30
    assert examples["z"].abs().max() <= 1.0
    rows = fedcvae.allocate(updates, server, KD, 30).sum(axis=1)
    owners = np.repeat(np.arange(4), rows)
    for z, label, image, owner in zip(
        examples["z"], examples["labels"], examples["images"], owners, strict=True
    ):
        decode = decoder(updates[owner], server.run_spec)
        drawn = torch.sigmoid(decode(z[None], torch.eye(10)[[int(label)]]))[0]
        torch.testing.assert_close(image, drawn)

    found = fedcvae.regress(drawn_by_clients, server, KD)
    twin = naive_regression(examples, server, KD)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, atol=1e-5, rtol=1e-3)


def naive_regression(
    examples: dict[str, Tensor], server: WatchedServer, config: FedCVAEKDConfig
) -> Decoder:
    model = starting_generator(large_generator(config), server.run_spec).decoder
    optimizer = optim.Adam(model.parameters(), lr=config.decoder.lr)
    order = torch.Generator().manual_seed(seed_for(0, "examples/order"))
    for _ in range(config.decoder.epochs):
        for rows in torch.randperm(30, generator=order).split(8):
            loss = torch.zeros(())
            for i in rows.tolist():
                onehot = torch.eye(10)[[int(examples["labels"][i])]]
                drawn = torch.sigmoid(model(examples["z"][[i]], onehot))
                wanted = examples["images"][[i]]
                loss = loss - (wanted * drawn.log() + (1 - wanted) * (1 - drawn).log()).sum()
            optimizer.zero_grad()
            (loss / len(rows)).backward()
            optimizer.step()
    return model


def test_color_images_are_regressed_by_their_squared_error() -> None:
    logits, images = torch.randn(4, 3, 2, 2), torch.rand(4, 3, 2, 2)
    expected = ((torch.sigmoid(logits) - images) ** 2).sum() / 4
    torch.testing.assert_close(fedcvae.reconstruction(logits, images), expected)


def test_kds_classifier_learns_from_as_many_samples_of_each_class() -> None:
    clients, server = tiny_federation(KD, assign=assign, num_clients=4)
    outcome = fedcvae.run_kd(clients, server, KD)
    assert torch.bincount(outcome.synthetic["labels"]).tolist() == [4] * 10
    assert len(outcome.epochs) == 2


def test_a_class_that_nobody_holds_is_not_drawn() -> None:
    clients, server = tiny_federation(KD, assign=assign, num_clients=4)
    updates = []
    for update in clients.train():
        counts = update.tensors["label_counts"].clone()
        counts[(3 + 1) % 10] += counts[3]  # the client's samples, otherwise labelled
        counts[3] = 0
        updates.append(replace(update, tensors={**update.tensors, "label_counts": counts}))
    examples = fedcvae.draw_examples(updates, server, KD)
    decoder_ = fedcvae.regress(examples, server, KD)
    drawn: Samples = fedcvae.draw_uniform(decoder_, updates, server, KD)
    assert torch.bincount(server.fetch(drawn, "labels"), minlength=10).tolist() == [
        0 if c == 3 else 5 for c in range(10)
    ]
