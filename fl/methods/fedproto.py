"""FedProto (Tan et al., AAAI 2022): clients share each class's mean features, and no weights.

A client trains its own model by CE + lambda |f(x) - C_y|^2 (Eq. 7; the mean over the d features, as
the authors' code has it), with the global prototype C of each class, and sends its own classes'
mean features. The server averages these by the clients' samples of the class (Eq. 6, without its
second division by the number of clients, which the authors' code has not). Each client is scored
by its own model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fl.errors import UserError
from fl.federation import RunSpec, Update
from fl.methods.method import Assignment
from fl.methods.personal import AnyModelsConfig, Personal, personal_method
from fl.methods.prototypes import assign_all
from fl.receiving import check_label_counts, sent
from fl.spaces import LogUniform
from fl.training.class_features import LocalFedProto, feature_width, send_prototypes


@dataclass(frozen=True, kw_only=True)
class FedProtoConfig(AnyModelsConfig):
    """FedProto's settings: those of its clients."""

    classifier: LocalFedProto = LocalFedProto()


def run(frame: Personal, config: FedProtoConfig) -> None:
    """Rounds of local training, of sending prototypes, and of averaging them (Algorithm 1)."""
    clients, memory, classes = frame.clients, frame.memory, frame.clients.run_spec.num_classes
    width = feature_width(clients.members[0].training, clients.run_spec)  # as check_widths has it
    memory["prototypes"] = torch.zeros(classes, width)
    memory["known"] = torch.zeros(classes, dtype=torch.int64)

    def check(update: Update, run_spec: RunSpec) -> None:
        sent(update, "prototypes", (classes, width))
        check_label_counts(update, run_spec)

    for chosen in frame.play():
        down = {name: memory[name] for name in ("prototypes", "known")}
        clients.train(only=chosen, broadcast=clients.to_send(down), remember=True, goes_to="client")
        updates = clients.map(send_prototypes, only=chosen, check=check)
        with frame.server.events.phase("fusion"):
            if updates:  # else all that took part were dropped
                average(memory, updates)


def average(memory: dict[str, Tensor], updates: list[Update]) -> None:
    """Sets each class's prototype to its mean over the samples of who sent it; one that nobody
    sent in this round stays."""
    counts = torch.stack([update.tensors["label_counts"] for update in updates]).double()
    features = torch.stack([update.tensors["prototypes"] for update in updates]).double()
    total = counts.sum(0)
    means = (counts[:, :, None] * features).sum(0) / total.clamp(min=1)[:, None]
    memory["prototypes"][total > 0] = means[total > 0].float()
    memory["known"][total > 0] = 1


def check_widths(config: FedProtoConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """As :func:`fl.methods.prototypes.assign_all`.

    Raises:
        UserError: also where architectures have features of several widths, whose means are none.
    """
    assigned = assign_all(config, num_clients, run_spec)
    trainings = dict.fromkeys(own.training for own in assigned)
    widths = {own.model: feature_width(own, run_spec) for own in trainings}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise UserError(f"fedproto averages features, which must have one width; got {found}")
    return assigned


METHOD = personal_method(
    "fedproto",
    FedProtoConfig,
    run,
    local={"classifier.attraction": LogUniform(0.1, 10.0)},
    assign=check_widths,
)
