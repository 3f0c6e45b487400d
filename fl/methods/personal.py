"""The common parts of methods whose clients keep models of their own and are scored on their own.

All clients have one architecture. In the first round they train by FedAvg's record where what they
do is FedAvg's, so that one stored model serves all these methods.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl.clients import Clients
from fl.federation import RunSpec, Training, Update
from fl.json_values import JsonObject
from fl.methods.method import Assignment
from fl.methods.participation import ParticipationConfig
from fl.server import Server
from fl.spaces import Choice, Distribution, LogUniform
from fl.training.personal import PersonalTraining

LOCAL: dict[str, Distribution] = {
    "classifier.epochs": Choice((1, 2, 4, 8)),
    "classifier.lr": LogUniform(1e-3, 3e-2),
}
"""A sweep's space of client training, for all methods whose clients keep models of their own."""


@dataclass(frozen=True, kw_only=True)
class PersonalConfig(ParticipationConfig):
    """How many clients take part, and how all of them train."""

    classifier: PersonalTraining = PersonalTraining()


def assign(config: PersonalConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: the classifier cannot take these images.
    """
    config.classifier.check(run_spec)
    return [Assignment("classifier", config.classifier)] * num_clients


class Participations:
    """How often each client has taken part: Z_n(r) of FedD2S's Eq. 6, a tensor of the memory."""

    def __init__(self, clients: Clients) -> None:
        self.memory: dict[str, Tensor] = {
            "participations": torch.zeros(len(clients.members), dtype=torch.int64)
        }

    def count(self, chosen: Iterable[int]) -> None:
        """These clients take part in the round that begins."""
        self.memory["participations"][list(chosen)] += 1

    def __getitem__(self, client: int) -> int:
        return int(self.memory["participations"][client])

    def fedavg_bytes(self, training: Training, server: Server) -> JsonObject:
        """What FedAvg's clients would have sent in the same rounds: a model each time."""
        times = int(self.memory["participations"].sum())
        return {"fedavg_bytes_up": times * training.upload_bytes(server.run_spec)}


def checked_floats(update: Update, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor that a client uploaded, float32 of that shape; finite, as all that was received.

    Raises:
        ValueError: it is missing, or of another shape or type.
    """
    tensor = update.tensors.get(name, torch.empty(0, dtype=torch.int64))
    if tensor.shape != shape or tensor.dtype != torch.float32:
        raise ValueError(
            f"client {update.client.id} sent {name} as {tensor.dtype} {tuple(tensor.shape)}, "
            f"expected torch.float32 {shape}"
        )
    return tensor


def checked_labels(update: Update, num_classes: int) -> Tensor:
    """The labels of all of a client's samples, int64 (n,).

    Raises:
        ValueError: they are missing, of another number or type, or name no class.
    """
    labels = update.tensors.get("labels", torch.empty(0))
    expected = (update.client.num_samples,)
    if labels.shape != expected or labels.dtype != torch.int64:
        raise ValueError(f"client {update.client.id} did not send a label for each of its samples")
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise ValueError(f"client {update.client.id} sent labels outside 0 to {num_classes - 1}")
    return labels
