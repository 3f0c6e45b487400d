"""FedNova (Wang et al., NeurIPS 2020): FedAvg in which no client counts for its number of steps.

A client's move is divided by a_k, the steps that its optimiser took in effect, before the mean,
which is then multiplied by the mean of a_k (Eq. 6), with p_k = n_k / n of the round's clients::

    x = x + (sum_k p_k a_k) sum_k p_k (w_k - x) / a_k

With tau local steps a = tau for SGD, a = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho) with
momentum rho, and a = (1 - (1 - lr mu)^tau) / (lr mu) with FedProx's term.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fl.errors import UserError
from fl.federation import Update
from fl.methods.averaging import Averaging, averaging_method
from fl.methods.prototypes import ParticipationConfig, PrototypesConfig
from fl.models.registry import smallest_batch
from fl.training.classifier import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class FedNovaConfig(ParticipationConfig, PrototypesConfig):
    """FedNova's settings: those of its clients, whose steps can be counted."""

    def check_further(self) -> None:
        """Refuses local training of which the paper has no a_k."""
        local = self.classifier
        local.refuse_uncounted("fednova")
        if local.momentum and local.proximal:
            raise UserError("fednova: set classifier.momentum or proximal, not both")


def run(frame: Averaging, config: FedNovaConfig) -> None:
    """Eq. 6, by the mean of weights p_k / a_k and a factor on its distance from x.

    BatchNorm's statistics are that mean.
    """
    least = {training: smallest_batch(model) for training, model in frame.model.items()}

    def a(update: Update) -> float:
        return steps(update, least[frame.clients.members[update.client.id].training])

    for updates in frame.play(weight=lambda update: update.client.num_samples / a(update)):
        for parameter, x, own, _ in frame.moves(updates):
            factor = stretch([(u.client.num_samples, a(u)) for u in own])
            parameter.mean.copy_(x + factor * (parameter.mean - x))


def steps(update: Update, least: int = 1) -> float:
    """a_k: what the steps of a client's training add up to, in gradients of equal size at the
    common rate. ``least``: samples of a batch, as of :meth:`ClassifierConfig.steps`."""
    common, config = update.client.training, update.client.trains_by
    assert isinstance(common, ClassifierConfig)
    assert isinstance(config, ClassifierConfig)
    tau, rho = config.steps(update.client.num_samples, least), config.momentum
    if config.proximal:
        shrunk = config.lr * config.proximal
        a = (1 - (1 - shrunk) ** tau) / shrunk
    else:
        a = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    return a * config.lr / common.lr


def stretch(clients: Sequence[tuple[int, float]]) -> float:
    """(sum_k p_k a_k) (sum_k p_k / a_k), of the clients' n_k and a_k."""
    n = sum(size for size, _ in clients)
    return sum(size * a for size, a in clients) * sum(size / a for size, a in clients) / n**2


METHOD = averaging_method("fednova", FedNovaConfig, run, any_targets=True)
