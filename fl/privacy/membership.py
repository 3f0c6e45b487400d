"""Membership inference against a classifier: was this sample among those that it was trained on?

Two attacks: the loss alone (Yeom et al., CSF 2018), and an offline likelihood ratio that needs no
shadow models, since other clients' uploads have not seen the sample: the sample's confidence under
the attacked model against a Gaussian fit to its confidences under theirs (Carlini et al., S&P 2022;
Watson et al., ICLR 2022). As for few references there, all samples share one variance, so what is
compared is the distance to their mean.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.privacy.curve import Curve
from fl.seeding import numpy_generator
from fl.training.divergence import logits_of

BATCH = 256


def confidences(model: nn.Module, shard: Shard) -> np.ndarray:
    """log p/(1 - p) of each sample's class, (n,), float64: the higher, the smaller the loss.

    It orders samples as the cross-entropy does, and is nearer to a Gaussian (Carlini et al.).
    """
    logits = logits_of(model, shard.images, BATCH).cpu().double()
    own = logits.gather(1, shard.labels[:, None]).squeeze(1)
    rest = logits.scatter(1, shard.labels[:, None], -torch.inf).logsumexp(1)
    scores: Tensor = (own - rest).clamp(-1e6, 1e6)
    return scores.numpy()


def balanced(members: np.ndarray, others: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of as many members as others, class beside class, given the classes of both.

    Without that an attack on a client of few classes would tell classes apart, not members.
    """
    stream = numpy_generator(seed, "privacy/balanced")
    kept: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for label in np.unique(members):
        places = [np.flatnonzero(labels == label) for labels in (members, others)]
        size = min(map(len, places))
        for chosen, there in zip(kept, places, strict=True):
            chosen.append(np.sort(stream.choice(there, size, replace=False)))
    return np.concatenate(kept[0]), np.concatenate(kept[1])


def attack(
    own: tuple[np.ndarray, np.ndarray],
    references: Sequence[tuple[np.ndarray, np.ndarray]],
) -> Mapping[str, Curve]:
    """Both attacks' curves; the likelihood ratio only where there are references.

    Args:
        own: confidences of members and others under the attacked model.
        references: the same under models that have seen none of them; NaN for a sample that one
            has seen.
    """
    found = {"loss": Curve.of(*own)}
    if references:
        hardness = [np.nanmean(np.stack(each), axis=0) for each in zip(*references, strict=True)]
        members, others = (mine - mean for mine, mean in zip(own, hardness, strict=True))
        found["ratio"] = Curve.of(members, others)
    return found
