"""The terms of FedAF's two losses (CVPR'24), from class-wise means."""

import torch
import torch.nn.functional as F
from torch import Tensor


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Means (classes, d) of values (N, d) by class, and which classes have samples, (classes,).

    Classes without a sample have zeros. A matrix product fixes the sum's order, on GPUs too.
    """
    members = F.one_hot(labels, num_classes).to(values.dtype)
    counts = members.sum(0)
    return members.T @ values / counts.clamp(min=1).unsqueeze(1), counts > 0


def distribution_matching(real: Tensor, condensed: Tensor) -> Tensor:
    """Eq. 4: sum_c ||mu_c(real) - mu_c(condensed)||^2 of mean features, (classes, d) each."""
    return (real - condensed).square().sum()


def sliced_wasserstein(u: Tensor, v: Tensor, directions: Tensor) -> Tensor:
    """The collaborative term of Eq. 10: sum_c SWD_2(u_c, v_c) of mean logits, (classes, d) each.

    Between two single vectors, SWD_2 is the root mean square of their difference's projections on
    all unit vectors, which is ||u - v|| / sqrt(d). With ``directions`` (L, d), unit vectors, it is
    that over these; L = 0 takes the closed form.
    """
    difference = u - v
    if not len(directions):
        return difference.norm(dim=1).sum() / difference.shape[1] ** 0.5
    projected = difference @ directions.T
    return projected.norm(dim=1).sum() / len(directions) ** 0.5


def random_directions(count: int, dimensions: int, stream: torch.Generator) -> Tensor:
    """Unit vectors, uniform on the sphere, (count, dimensions)."""
    return F.normalize(torch.randn(count, dimensions, generator=stream), dim=1)


def knowledge_matching(soft_labels: Tensor, log_soft_labels: Tensor) -> Tensor:
    """Eq. 15: (KL(R || T) + KL(T || R)) / 2, summed over entries, mean over classes.

    Args:
        soft_labels: R, (classes, d), of the clients' data.
        log_soft_labels: log T, (classes, d), of the condensed data.
    """
    # Usually far from 0, but a client may be so confident that its float underflows.
    log_r = soft_labels.clamp(min=torch.finfo(soft_labels.dtype).tiny).log()
    both = (soft_labels - log_soft_labels.exp()) * (log_r - log_soft_labels)
    return both.sum() / 2 / len(soft_labels)
