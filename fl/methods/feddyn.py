"""FedDyn (Acar et al., ICLR 2021): FedAvg with a regulariser that each client corrects.

Client k minimises f_k(w) + alpha <w, g_k> + alpha/2 |w - s|^2 from the weights s that were sent,
and remembers g_k, the sum of its own drifts w_k - s. The server tests the mean of the weights, and
sends that mean plus the mean drift of all clients. Without a drift yet, the first round
gives what FedProx's gives.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fl.bounds import Positive, Within
from fl.exchange import Tensors
from fl.federation import TaskInput, Training
from fl.methods.averaging import Averaging, averaging_method
from fl.methods.method import LogUniform
from fl.methods.prototypes import ParticipationConfig, PrototypesConfig
from fl.models.common import parameters_sent
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain, received_classifier
from fl.training.personal import beside
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalFedDyn(ClassifierConfig):
    """Local training of a FedDyn client: a classifier's, regularised."""

    alpha: Positive = 0.01
    """Weight of the regulariser (FedAF's paper: 0.01). Clients gather drifts whatever it is, so
    without it FedDyn would not be FedAvg."""
    proximal: Annotated[float, Within(0, 0)] = 0.0
    """None: alpha takes its place."""
    adapted: bool = False
    """Whether alpha is multiplied by the mean number of samples over the client's own, as in the
    authors' code."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains near s - g_k: the regulariser is alpha/2 |w - (s - g_k)|^2 and a constant.

        It uploads ``classifier.*``, and ``drift.*`` for the client's own memory: g_k + w_k - s.
        """
        alpha = self.alpha
        if self.adapted:
            alpha = alpha * float(inputs.broadcast["mean_samples"]) / len(inputs.shard)
        model = received_classifier(inputs, self)
        s = {name: p.clone() for name, p in parameters_sent(model).items()}
        g = beside("drift", inputs.remembered, s, "the client's memory")

        def upload() -> Tensors:
            own = {f"drift.{n}": g[n] + w - s[n] for n, w in parameters_sent(model).items()}
            return {**recipe.upload(), **own}

        recipe = classifier_recipe(inputs, plain(self, proximal=alpha), model)
        near = [s[n] - g[n] for n, p in model.named_parameters() if p.requires_grad]
        return replace(recipe, anchor=near, upload=upload)


@dataclass(frozen=True, kw_only=True)
class FedDynConfig(ParticipationConfig, PrototypesConfig):
    """FedDyn's settings, beside those of its clients."""

    classifier: LocalFedDyn = LocalFedDyn()


def run(frame: Averaging, config: FedDynConfig) -> None:
    """Algorithm 1: s = mean_k w_k + sum_k g_k / K; the mean is tested, without the drifts.

    By the mean of m of the K clients' weights, sum_k (w_k - s) / K = m (mean_k w_k - s) / K.
    """
    drifts = frame.zeros()
    samples = torch.tensor([client.num_samples for client in frame.there]).double()
    known = {"mean_samples": samples.mean()} if config.classifier.adapted else None

    def start() -> dict[Training, Tensors]:
        s = frame.sent()
        for training, name, key, mean in frame.parameters():
            s[training][f"classifier.{name}"] = mean + drifts[key]
        return s

    for updates in frame.play(drifts, start=start, known=known, also={"drift": "client"}):
        for parameter, s, own, there in frame.moves(updates):
            drifts[parameter.key].add_(parameter.mean - s, alpha=len(own) / there)


SPACE = {"classifier.alpha": LogUniform(1e-3, 1.0)}
METHOD = averaging_method("feddyn", FedDynConfig, run, local=SPACE, any_targets=True)
