"""FEDCVAE-KD against a naive twin of how the clients' decoders become one."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, optim

from fl.methods import fedcvae_ens, fedcvae_kd
from fl.methods.fedcvae_ens import assign, large_generator
from fl.methods.fedcvae_kd import FedCVAEKDConfig, RegressionConfig
from fl.models import Decoder
from fl.seeding import seed_for
from fl.server import Samples
from fl.training.generator import starting_generator
from tests.fl.methods.cvaes import SMALL
from tests.fl.methods.naive_fedmho import decoder
from tests.fl.methods.tiny import WatchedServer, tiny_federation

KD = FedCVAEKDConfig(
    **SMALL, decoder=RegressionConfig(num_samples=30, epochs=2, lr=1e-3, batch_size=8)
)


def test_kds_decoder_regresses_what_the_clients_draw_for_the_same_z_and_label() -> None:
    clients, server = tiny_federation(KD, assign=assign, num_clients=4)
    updates = clients.train()
    drawn_by_clients = fedcvae_kd.draw_examples(updates, server, KD)
    examples = {name: server.fetch(drawn_by_clients, name) for name in drawn_by_clients.columns}
    assert len(examples["labels"]) == 30
    assert examples["z"].abs().max() <= 1.0
    rows = fedcvae_ens.allocate(updates, server, KD, 30).sum(axis=1)
    owners = np.repeat(np.arange(4), rows)
    for z, label, image, owner in zip(
        examples["z"], examples["labels"], examples["images"], owners, strict=True
    ):
        decode = decoder(updates[owner], server.run_spec)
        drawn = torch.sigmoid(decode(z[None], torch.eye(10)[[int(label)]]))[0]
        torch.testing.assert_close(image, drawn)

    found = fedcvae_kd.regress(drawn_by_clients, server, KD)
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
    torch.testing.assert_close(fedcvae_kd.reconstruction(logits, images), expected)


def test_kds_classifier_learns_from_as_many_samples_of_each_class() -> None:
    clients, server = tiny_federation(KD, assign=assign, num_clients=4)
    outcome = fedcvae_kd.run(clients, server, KD)
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
    examples = fedcvae_kd.draw_examples(updates, server, KD)
    decoder_ = fedcvae_kd.regress(examples, server, KD)
    drawn: Samples = fedcvae_kd.draw_uniform(decoder_, updates, server, KD)
    assert torch.bincount(server.fetch(drawn, "labels"), minlength=10).tolist() == [
        0 if c == 3 else 5 for c in range(10)
    ]
