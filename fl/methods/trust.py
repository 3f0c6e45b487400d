"""What label counts tell: whose labels to believe, and which classes decoders lack."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fl.clients import Clients
from fl.federation import Update
from fl.fusion.voting import SMALLEST
from fl.methods.fedgen import tell_label_counts
from fl.methods.uploads import load_label_counts
from fl.receiving import check_label_counts
from fl.server import Server


def told(
    clients: Clients, classifiers: Sequence[Update], server: Server
) -> tuple[list[Update], np.ndarray]:
    """Asks the classifier clients for their label counts: those that answered, and what they hold,
    (classifiers, classes)."""
    asked = [u.client.id for u in classifiers]
    answers = clients.map(tell_label_counts, only=asked, check=check_label_counts)
    counts = {u.client.id: load_label_counts(u, server) for u in answers}
    answered = [u for u in classifiers if u.client.id in counts]
    return answered, np.stack([counts[u.client.id] for u in answered])


def label_trust(held: np.ndarray, drawn: np.ndarray, half: float) -> Tensor:
    """r (classes,), Eq. 4 of docs/method.md: how far decoders' labels are believed,
    M / (M + min(N, ``half``)), where classifier clients' counts (clients, classes) sum to N and
    generator clients' to M."""
    against, known = np.minimum(held.sum(0), half), drawn.sum(0)
    return torch.from_numpy(known / np.maximum(against + known, SMALLEST)).float()


def open_quotas(held: np.ndarray, trust: Tensor, total: float) -> list[int]:
    """How many open-set samples are kept of each class, ``total`` together: by how little its
    decoders' labels are believed, so most of what no decoder has learned."""
    need = (1 - trust.double()) * torch.from_numpy(held.sum(0) > 0)
    return (total * need / need.sum().clamp(min=SMALLEST)).long().tolist()
