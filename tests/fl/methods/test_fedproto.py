"""FedProto against a plain loop, and the prototypes that it averages."""

import torch
from torch import Tensor, nn

from fl.methods.fedproto import feature_width
from fl.training.features import features_and_logits
from tests.fl.methods.personal_runs import (
    CLIENTS,
    SPEC,
    play,
    remembered,
    samples,
    settings,
    start,
    train,
)

ATTRACTION = 3.0


def features(model: nn.Module, images: Tensor) -> Tensor:
    return features_and_logits(model, images)[0]


def naive(rounds: int) -> list[nn.Module]:
    """Each client's own model after so many rounds."""
    own = [start(settings("fedproto")) for _ in range(CLIENTS)]
    prototypes: dict[int, Tensor] = {}
    for number in range(1, rounds + 1):
        for k, model in enumerate(own):
            images, labels = samples(k)

            def near(model: nn.Module, logits: Tensor, rows: Tensor) -> Tensor:
                z = features(model, images[rows])  # noqa: B023
                total = torch.zeros(())
                for i, label in enumerate(labels[rows].tolist()):  # noqa: B023
                    if label in prototypes:  # noqa: B023
                        total = total + (z[i] - prototypes[label]).square().mean()  # noqa: B023
                return ATTRACTION * total / len(rows)

            train(model, k, number, near)
        everyone: dict[int, list[Tensor]] = {}
        for k, model in enumerate(own):
            images, labels = samples(k)
            with torch.no_grad():
                for z, label in zip(features(model.eval(), images), labels.tolist(), strict=True):
                    everyone.setdefault(label, []).append(z)
        prototypes = {label: torch.stack(z).mean(0) for label, z in everyone.items()}
    return own


def test_three_rounds_are_those_of_a_plain_loop() -> None:
    _, clients = play("fedproto", settings("fedproto", attraction=ATTRACTION))
    assert remembered(clients, naive(3), atol=5e-5)


def test_prototypes_alone_are_sent() -> None:
    config = settings("fedproto")
    _, clients = play("fedproto", config, 2)
    size = 10 * feature_width(config.classifier, SPEC) * 4
    everyone = range(CLIENTS)
    assert clients.bytes_up == dict.fromkeys(everyone, 2 * (size + 10 * 8))
    assert clients.bytes_down == dict.fromkeys(everyone, size + 10 * 8)
