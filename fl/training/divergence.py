"""Distillation at the clients: soft labels of a frozen teacher, and the distance to them."""

import torch
from torch import Tensor, nn


@torch.no_grad()
def logits_of(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """The model's logits of each image in eval mode, (N, classes), in the images' order.

    Args:
        model: on its device; it is left in eval mode.
        images: (N, C, H, W), on any device.
        batch_size: images per forward pass.
    """
    model.eval()
    device = next(model.parameters()).device
    return torch.cat([model(part.to(device)) for part in images.split(batch_size)])


def divergences(
    teacher: Tensor, student: Tensor, temperature: float = 1.0, weights: Tensor | None = None
) -> Tensor:
    """tau^2 * sum_c w_c t_c log(t_c / s_c) of each row, (B,), for the softmax outputs t and s.

    Args:
        teacher, student: logits, (B, classes).
        temperature: tau, by which logits are divided.
        weights: w, (B, classes) or (classes,); all 1 without it, which is the Kullback-Leibler
            divergence.
    """
    t, s = ((logits / temperature).log_softmax(1) for logits in (teacher, student))
    terms = t.exp() * (t - s)
    return temperature**2 * (terms if weights is None else weights * terms).sum(1)
