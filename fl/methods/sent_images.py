"""What HFLDD's members send their heads: checked, and some of it shown in the report."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl.condensation.kip import checked_set
from fl.federation import RunSpec, Update

EXAMPLES = "examples."
"""Prefix, in the run's memory, of some images that members sent; see :func:`examples_of`."""
CLASSES_SHOWN, CLIENTS_SHOWN = 10, 2
"""As many classes at most give examples, and as many clients of each."""


def check_sent(update: Update, run_spec: RunSpec) -> None:
    """Raises `ValueError` unless it holds images by class, no more than the client has, and tells
    of its distillation."""
    found = checked_set(update.client.id, update.tensors, run_spec)
    counts = [len(images) for images in found.values()]
    if min(counts) < 1 or sum(counts) > update.client.num_samples:
        raise ValueError(f"sent {counts} images by class, and has {update.client.num_samples}")
    if not {"steps", "nearest"} <= update.stats.keys():
        raise ValueError("tells neither its steps nor how near its images are to real ones")


def examples_of(updates: Sequence[Update]) -> dict[str, Tensor]:
    """The first image of each class from some members, whatever it looks like.

    Returns:
        ``images`` (n, C, H, W), ``labels`` and ``clients`` (n,), their names after
        :data:`EXAMPLES`; nothing if nobody sent anything.
    """
    senders: dict[int, list[tuple[int, Tensor]]] = {}
    for update in updates:
        for name, images in update.tensors.items():
            own = update.client.id, images[:1]
            senders.setdefault(int(name.rpartition(".")[2]), []).append(own)
    chosen = [
        (label, client, image)
        for label in sorted(senders)[:CLASSES_SHOWN]
        for client, image in senders[label][:CLIENTS_SHOWN]
    ]
    if not chosen:
        return {}
    labels, clients, shown = zip(*chosen, strict=True)
    return {
        f"{EXAMPLES}images": torch.cat(shown),
        f"{EXAMPLES}labels": torch.tensor(labels),
        f"{EXAMPLES}clients": torch.tensor(clients),
    }
