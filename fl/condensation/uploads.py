"""The server's view of what condensing clients uploaded: each upload is checked before its use."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl.condensation.task import CondensationConfig
from fl.federation import Batch, RunSpec, Update
from fl.receiving import check_probabilities, sent


def condensed_data(
    updates: Sequence[Update], run_spec: RunSpec, config: CondensationConfig
) -> Batch:
    """All clients' condensed ``images`` (N, C, H, W), float32, and their ``labels`` (N,).

    Raises:
        ValueError: an upload has wrong shapes, types, values or classes.
    """
    images, labels = [], []
    for update in updates:
        config.check_upload(update, run_spec)
        own, classes = update.tensors["images"], update.tensors["classes"]
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
        ValueError: an upload has another shape or type.
    """
    return torch.stack([rows_of_holder(u, name, run_spec) for u in updates]).nanmean(0)


def rows_of_holder(update: Update, name: str, run_spec: RunSpec) -> Tensor:
    """A row for each class that the client sent soft labels of, (classes, classes); the others are
    NaN, whatever it sent.

    Raises:
        ValueError: an upload has another shape or type.
    """
    own = sent(update, name)
    shape = (run_spec.num_classes, run_spec.num_classes)
    if own.shape != shape or own.dtype != torch.float32:
        raise ValueError(
            f"client {update.client.id} sent {name} as {own.dtype} {tuple(own.shape)}, "
            f"expected torch.float32 {shape}"
        )
    answered = answered_classes(update)
    if own[~answered].any():
        raise ValueError(f"client {update.client.id} sent {name} of classes without soft labels")
    return own.where(answered[:, None], torch.nan)


def answered_classes(update: Update) -> Tensor:
    """Whether the client sent soft labels of each class, bool (classes,): zeros are none."""
    return sent(update, "soft_labels").any(1)


def check_knowledge(update: Update, run_spec: RunSpec) -> None:
    """Mean logits and soft labels as FedAF's clients send them (Eqs. 5, 11).

    Raises:
        ValueError: they are not that.
    """
    rows_of_holder(update, "mean_logits", run_spec)
    soft = rows_of_holder(update, "soft_labels", run_spec)
    held = soft[answered_classes(update)]
    if len(held):
        check_probabilities(held, "soft_labels")
