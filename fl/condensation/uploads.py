"""What clients uploaded: each message checked before it is believed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl.condensation.config import CondensationConfig
from fl.federation import Batch, Problem, Update


def condensed_data(
    updates: Sequence[Update], problem: Problem, config: CondensationConfig
) -> Batch:
    """All clients' condensed ``images`` (N, C, H, W), float32, and their ``labels`` (N,).

    Raises:
        ValueError: an upload has other shapes, types, values or classes than it may have.
    """
    images, labels = [], []
    for update in updates:
        own, classes = update.tensors["images"], update.tensors["classes"]
        _check_condensed(update, own, classes, problem, config)
        images.append(own.float() / 255 if config.pixels == "uint8" else own)
        labels.append(classes.repeat_interleave(config.images_per_class))
    return {"images": torch.cat(images), "labels": torch.cat(labels)}


def mean_over_holders(updates: Sequence[Update], name: str, problem: Problem) -> Tensor:
    """Mean of each class's row over the clients that have the class (Eqs. 8, 12), (classes, d).

    The paper divides by all clients. Rows of classes that nobody has are NaN.

    Raises:
        ValueError: an upload has another shape or type, or a row that is neither finite nor NaN.
    """
    rows = []
    for update in updates:
        own = update.tensors[name]
        shape = (problem.num_classes, problem.num_classes)
        if own.shape != shape or own.dtype != torch.float32:
            raise ValueError(
                f"client {update.client.id} sent {name} as {own.dtype} {tuple(own.shape)}, "
                f"expected torch.float32 {shape}"
            )
        if not (own.isfinite().all(1) | own.isnan().all(1)).all():
            raise ValueError(f"client {update.client.id} sent {name} with impossible values")
        rows.append(own)
    return torch.stack(rows).nanmean(0)


def _check_condensed(
    update: Update, images: Tensor, classes: Tensor, problem: Problem, config: CondensationConfig
) -> None:
    sender = f"client {update.client.id}"
    ascending = classes.tolist() == sorted({c % problem.num_classes for c in classes.tolist()})
    if classes.dim() != 1 or classes.dtype != torch.int64 or not ascending:
        raise ValueError(f"{sender} sent impossible classes {classes.tolist()}")
    shape = (len(classes) * config.images_per_class, *problem.image_shape)
    dtype = torch.uint8 if config.pixels == "uint8" else torch.float32
    if images.shape != shape or images.dtype != dtype:
        raise ValueError(
            f"{sender} sent images as {images.dtype} {tuple(images.shape)}, "
            f"expected {dtype} {shape}"
        )
    if not images.isfinite().all():
        raise ValueError(f"{sender} sent images with NaN or infinite values")
