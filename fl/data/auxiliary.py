"""Unlabelled images of another data set, for methods that distil on auxiliary data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.bounds import Count, OneOf, Settings
from fl.data.datasets import NAMES, load
from fl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig(Settings):
    """The auxiliary data set."""

    dataset: Annotated[str, OneOf(NAMES)] = "mnist"
    """A data set other than the run's; its labels are not used."""
    max_images: Count | None = None
    """Use a fixed random subset of this many of its training images."""


def load_auxiliary(
    config: AuxiliaryConfig, dataset: str, image_shape: tuple[int, int, int], data_root: Path
) -> Tensor:
    """Its training images, float32 (N, C, H, W) in [0, 1], in the shape of data set ``dataset``.

    Gray images become color by repetition and color ones gray by the mean of the channels; other
    sizes are scaled bilinearly. Never downloads.

    Raises:
        UserError: it is the run's own data set, or its files are missing or damaged.
    """
    if config.dataset == dataset:
        others = ", ".join(name for name in NAMES if name != dataset)
        raise UserError(
            f"auxiliary.dataset must be another data set than the run's {dataset}; valid: {others}"
        )
    try:
        split = load(config.dataset, data_root, max_train=config.max_images).train
    except UserError as error:
        raise UserError(f"auxiliary data: {error}") from None
    return fit_shape(torch.from_numpy(split.images).float() / 255, image_shape)


def fit_shape(images: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Images (N, c, h, w) in [0, 1] as (N, C, H, W), where c and C are 1 or 3."""
    channels, *sides = image_shape
    if images.shape[1] > channels:
        images = images.mean(dim=1, keepdim=True)
    if list(images.shape[2:]) != sides:
        images = F.interpolate(images, sides, mode="bilinear", antialias=True).clamp(0, 1)
    return images.expand(-1, channels, -1, -1).contiguous()
