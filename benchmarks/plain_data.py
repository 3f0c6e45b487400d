"""Data and models of the plain loops that plain_rounds.py runs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cluster.run.prepare import Prepared
from fl.models import build_classifier

Data = tuple[Tensor, Tensor]
"""Images and labels."""


def batches(data: Data, size: int) -> DataLoader[Any]:
    """Shuffled batches."""
    return DataLoader(TensorDataset(*data), size, shuffle=True)


def new_model(prepared: Prepared, name: str, width: float) -> nn.Module:
    """An untrained model."""
    run_spec = prepared.run_spec
    return build_classifier(name, run_spec.image_shape, run_spec.num_classes, width=width)


def as_images(pixels: Any, device: torch.device) -> Tensor:
    """Bytes (N, C, H, W) as float32 in [0, 1]."""
    return torch.from_numpy(pixels).to(device).float() / 255
