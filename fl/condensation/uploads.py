"""The server's view of what condensing clients uploaded: each upload is checked before its use."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl.condensation.config import CondensationConfig
from fl.federation import Batch, RunSpec, Update


def condensed_data(
    updates: Sequence[Update], run_spec: RunSpec, config: CondensationConfig
) -> Batch:
    """All clients' condensed ``images`` (N, C, H, W), float32, and their ``labels`` (N,).

    Raises:
        ValueError: an upload has wrong shapes, types, values or classes.
    """
    images, labels = [], []
    for update in updates:
        own, classes = _sent(update, "images"), _sent(update, "classes")
        _check_condensed(update, own, classes, run_spec, config)
        images.append(own.float() / 255 if config.pixels == "uint8" else own)
        labels.append(classes.repeat_interleave(config.images_per_class))
    data = {"images": torch.cat(images), "labels": torch.cat(labels)}
    if not len(data["labels"]):
        raise ValueError("no client condensed any class: lower condensation.min_samples")
    return data


def mean_over_holders(updates: Sequence[Update], name: str, run_spec: RunSpec) -> Tensor:
    """Mean of each class's row over the clients that have the class (Eqs. 8, 12), (classes, d).

    The paper divides by all clients. Rows of classes that no client has are NaN.

    Raises:
        ValueError: an upload has another shape or type, or a row that is neither finite nor NaN.
    """
    rows = []
    for update in updates:
        own = _sent(update, name)
        shape = (run_spec.num_classes, run_spec.num_classes)
        if own.shape != shape or own.dtype != torch.float32:
            raise ValueError(
                f"client {update.client.id} sent {name} as {own.dtype} {tuple(own.shape)}, "
                f"expected torch.float32 {shape}"
            )
        if not (own.isfinite().all(1) | own.isnan().all(1)).all():
            raise ValueError(f"client {update.client.id} sent {name} with impossible values")
        rows.append(own)
    return torch.stack(rows).nanmean(0)


def _sent(update: Update, name: str) -> Tensor:
    if name not in update.tensors:
        raise ValueError(f"client {update.client.id} sent no {name}")
    return update.tensors[name]


def _check_condensed(
    update: Update, images: Tensor, classes: Tensor, run_spec: RunSpec, config: CondensationConfig
) -> None:
    sender = f"client {update.client.id}"
    possible = sorted(set(classes.flatten().tolist()) & set(range(run_spec.num_classes)))
    if classes.dtype != torch.int64 or classes.tolist() != possible:
        raise ValueError(f"{sender} sent impossible classes {classes.tolist()}")
    shape = (len(classes) * config.images_per_class, *run_spec.image_shape)
    dtype = torch.uint8 if config.pixels == "uint8" else torch.float32
    if images.shape != shape or images.dtype != dtype:
        raise ValueError(
            f"{sender} sent images as {images.dtype} {tuple(images.shape)}, "
            f"expected {dtype} {shape}"
        )
    if not images.isfinite().all():
        raise ValueError(f"{sender} sent images with NaN or infinite values")
