"""The naive twin of averaging by prototype."""

import copy
from collections.abc import Sequence

import torch

from fl.federation import Update
from fl.fusion.server import Server
from fl.methods.prototypes import by_prototype
from fl.methods.uploads import load_classifier
from fl.models.ensemble import Ensemble


def averages(updates: Sequence[Update], server: Server) -> Ensemble:
    """Each prototype's plain mean, weight by weight."""
    means = []
    for group in by_prototype(updates):
        models = [load_classifier(update, server) for update in group]
        mean = copy.deepcopy(models[0]).requires_grad_()
        with torch.no_grad():
            for name, parameter in mean.named_parameters():
                parameter.copy_(sum(m.get_parameter(name) for m in models) / len(models))
        means.append(mean)
    return Ensemble(means).eval()
