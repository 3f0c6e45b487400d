"""DynaFed (Pi et al., CVPR 2023): FedAvg whose server learns images from its first rounds.

After some rounds of FedAvg the server learns a few images on which a model takes the path that the
global model took. From then on it trains the average on them in every round, without anything
further from the clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from fl.bounds import MOST, AtLeast, AtMost, Settings
from fl.exchange import Tensors
from fl.federation import Batch, RunSpec
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.fusion.trajectory import AHEAD, MatchingConfig, match_trajectory
from fl.methods.averaging import Averaging, averaging_method
from fl.methods.method import Assignment
from fl.methods.prototypes import ParticipationConfig, assign_all
from fl.seeding import in_round, seeded
from fl.spaces import LogUniform
from fl.training.classifier import ClassifierConfig

REFRESHED = 3
"""Passes over the images by which BatchNorm's statistics are renewed before they are trained on."""


@dataclass(frozen=True, kw_only=True)
class DynaFedConfig(ParticipationConfig, Settings):
    """DynaFed's settings: FedAvg's, and the images."""

    classifier: ClassifierConfig = ClassifierConfig(epochs=2, lr=0.01, momentum=0.0, batch_size=32)
    trajectory: Annotated[int, AtLeast(AHEAD), AtMost(MOST)] = 24
    """Rounds of FedAvg before the images are learned, once."""
    matching: MatchingConfig = MatchingConfig()
    fit: FitConfig = FitConfig(epochs=20, lr=1e-4, batch_size=256)


def run(frame: Averaging, config: DynaFedConfig) -> None:
    """Algorithm 1: rounds of FedAvg with a plain mean, then with the images' training after it."""
    server, (model,) = frame.server, frame.model.values()
    memory: dict[str, Tensor] = _point(model, 0)
    for _ in frame.play(memory):
        if server.round <= config.trajectory:
            memory |= _point(model, server.round)
            continue
        if "images" not in memory:
            with server.events.phase("synthesis"):
                learned = learn_images(model, memory, config, server.run_spec)
            memory.clear()  # the path is needed no longer
            memory |= learned
        with server.events.phase("fusion"):
            train_on_images(model, memory, server, config)


def _point(model: nn.Module, number: int) -> dict[str, Tensor]:
    """The model's state as a point of the path, by round."""
    return {f"path.{number}.{n}": t.clone() for n, t in model.state_dict().items()}


def learn_images(
    model: nn.Module, memory: Tensors, config: DynaFedConfig, run_spec: RunSpec
) -> dict[str, Tensor]:
    """``images`` (N, C, H, W) and ``labels`` (N, classes) that lead along the memory's path."""
    path: Sequence[Tensors] = [
        {name: memory[f"path.{number}.{name}"] for name in model.state_dict()}
        for number in range(config.trajectory + 1)
    ]
    with seeded(run_spec.seed, "trajectory/dropout"):
        images, labels = match_trajectory(
            model.train(),
            path,
            config.matching,
            image_shape=run_spec.image_shape,
            num_classes=run_spec.num_classes,
            seed=run_spec.seed,
        )
    return {"images": images, "labels": labels}


def train_on_images(model: nn.Module, data: Batch, server: Server, config: DynaFedConfig) -> None:
    """Renews BatchNorm's statistics on the images, and trains the model on them."""
    images = data["images"].to(server.device)
    model.train()
    purpose = in_round("refresh/dropout", server.round)
    with torch.no_grad(), seeded(server.run_spec.seed, purpose):
        for _ in range(REFRESHED):
            model(images)
    server.fit(model, data, loss=SoftLabels(), config=config.fit, stage="fusion", tested=False)


@dataclass(frozen=True)
class SoftLabels:
    """Cross-entropy with soft labels: the mean over samples of -sum_c t_c log s_c."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["images"])
        return -(batch["labels"] * logits.log_softmax(1)).sum(1).mean()


def assign(config: DynaFedConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Classifiers at all clients, of images: the server learns such along the models' path."""
    _ = run_spec.image_shape  # refuses other samples
    return assign_all(config, num_clients, run_spec)


METHOD = averaging_method(
    "dynafed",
    DynaFedConfig,
    run,
    server={"fit.lr": LogUniform(1e-5, 1e-2)},
    assign=assign,
    default_ranks=1,
)
