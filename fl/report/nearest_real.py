"""Puts examples of the images that left clients beside the nearest real ones, for the report."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fl.condensation.nearest import nearest
from fl.data.datasets import Split
from fl.wire import Tensors


def beside_real(train: Split, shards: Sequence[np.ndarray], sent: Tensors) -> Tensors:
    """The examples with ``real``, the nearest image of its class at the client that sent it.

    Args:
        train: the training split, which this process has since the federation is simulated.
        shards: each client's indices into it.
        sent: ``images`` uint8 (n, C, H, W), ``labels`` and ``clients`` (n,).

    Returns:
        The same on the CPU, and ``real`` as ``images``.
    """
    sent = {name: tensor.cpu() for name, tensor in sent.items()}
    senders = zip(sent["images"], sent["labels"].tolist(), sent["clients"].tolist(), strict=True)
    real = [_nearest(image, train, shards[client], label) for image, label, client in senders]
    return {**sent, "real": torch.stack(real)}


def _nearest(image: Tensor, train: Split, own: np.ndarray, label: int) -> Tensor:
    candidates = torch.from_numpy(train.images[own[train.labels[own] == label]])
    _, places = nearest(image[None], candidates)
    return candidates[places[0]]
