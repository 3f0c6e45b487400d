"""FedDyn (Acar et al., ICLR 2021): FedAvg with a regulariser that each client corrects.

Client k minimises f_k(w) + alpha <w, g_k> + alpha/2 |w - s|^2 from the weights s that were sent,
and remembers g_k, the sum of its own drifts w_k - s. The server tests the mean of the weights, and
sends that mean plus the mean drift of all clients. Without a drift yet, the first round
gives what FedProx's gives.
"""

from dataclasses import dataclass, replace

import torch

from fl.bounds import NotNegative
from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors, checked
from fl.federation import TaskInput, Training
from fl.fusion.server import Server
from fl.methods.averaging import Averaging, averaging_method
from fl.methods.prototypes import ParticipationConfig, PrototypesConfig
from fl.models.state import parameters_sent
from fl.rounds import Rounds
from fl.server import Outcome
from fl.spaces import LogUniform
from fl.training.classifier import (
    ClassifierConfig,
    classifier_recipe,
    plain,
    received_classifier,
)
from fl.training.personal import AfterFedAvg
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalFedDyn(AfterFedAvg, ClassifierConfig):
    """Local training of a FedDyn client: a classifier's, regularised."""

    alpha: NotNegative = 0.01
    """Weight of the regulariser (FedAF's paper: 0.01), above 0."""
    adapted: bool = False
    """Whether alpha is multiplied by the mean number of samples over the client's own, as in the
    authors' code."""

    @property
    def first_round(self) -> ClassifierConfig:
        """Its own record: it remembers its drift from the first round on."""
        return self

    def check_further(self) -> None:
        """``alpha`` is above 0 and takes the place of ``proximal``."""
        if self.alpha == 0:
            raise UserError(
                "alpha must be above 0: clients gather drifts whatever it is, so FedDyn without it "
                "is not FedAvg; for that take method fedavg"
            )
        if self.proximal:
            raise UserError("proximal must be 0 in FedDyn: alpha takes its place")

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains near s - g_k, by which the regulariser is alpha/2 |w - (s - g_k)|^2 and a
        constant.

        It uploads ``classifier.*``, and ``drift.*`` for the client's own memory: g_k + w_k - s.
        """
        alpha = self.alpha
        if self.adapted:
            alpha = alpha * float(inputs.broadcast["mean_samples"]) / len(inputs.shard)
        model = received_classifier(inputs, self)
        s = {name: p.clone() for name, p in parameters_sent(model).items()}
        g = {name: torch.zeros_like(p) for name, p in s.items()}
        if inputs.remembered:  # none before the client's first round
            found = checked(g, inputs.remembered, "drift", "the client's memory")
            g = {name: drift.to(inputs.device) for name, drift in found.items()}

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


def run(clients: Clients, server: Server, config: FedDynConfig, *, rounds: Rounds) -> Outcome:
    """Algorithm 1: s = mean_k w_k + sum_k g_k / K; the mean is tested, without the drifts.

    By the mean of m of the K clients' weights, sum_k (w_k - s) / K = m (mean_k w_k - s) / K.
    """
    frame = Averaging(clients, server, config, rounds)
    frame.refuse_drops("drift")
    drifts = {key: torch.zeros_like(mean) for _, _, key, mean in frame.parameters()}
    samples = torch.tensor([client.num_samples for client in clients.members]).double()

    def start() -> dict[Training, Tensors]:
        s = frame.weights()
        for training, name, key, mean in frame.parameters():
            s[training][f"classifier.{name}"] = mean + drifts[key]
        return s

    for updates in frame.play(
        drifts,
        start=start,
        known={"mean_samples": samples.mean()} if config.classifier.adapted else None,
        remember=True,
        goes_to=lambda client, name: "client" if name.startswith("drift.") else "server",
        check=frame.also("drift"),
    ):
        for move in frame.moves(updates):
            share = len(move.updates) / move.clients
            drifts[move.key].add_(move.mean - move.start, alpha=share)
    return rounds.outcome(frame.ensemble)


METHOD = averaging_method(
    "feddyn",
    FedDynConfig,
    run,
    local={"classifier.alpha": LogUniform(1e-3, 1.0)},
    any_targets=True,
)
