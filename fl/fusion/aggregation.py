"""Rules that combine clients' weights and bear some that lie: in place of the average.

The rules look at one tensor of all clients at a time, so that as much is held at once and no more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import ceil
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fl.bounds import Positive, Settings, Within
from fl.errors import UserError
from fl.exchange import Tensors
from fl.models.common import load_sent

# The average of models (Eq. 4), plain or weighted.


def average_states(
    states: Iterable[Tensors], weights: Iterable[float] = repeat(1), *, partial: bool = False
) -> Tensors:
    """w_0 = sum_k n_k w_k / sum_k n_k over states of one architecture; without weights the mean.

    Summed in float64, client by client, so that states may come from a generator and only one is
    held at a time. With ``partial`` states may lack names: a tensor is averaged over those that
    have it. BatchNorm's running means and variances are averaged like weights, which ignores how
    far the clients' means lie apart; its integer batch counter is averaged and rounded down.
    The average is useless if the clients did not start from the same weights.
    """
    total: Tensors = {}
    types: dict[str, torch.dtype] = {}
    counts: dict[str, float] = {}
    for state, weight in zip(states, weights, strict=False):
        if counts and not partial and state.keys() != counts.keys():
            raise KeyError(f"states of one average differ: {sorted(state.keys() ^ counts.keys())}")
        for name, tensor in state.items():
            if name not in total:
                types[name], counts[name] = tensor.dtype, 0
                total[name] = torch.zeros_like(tensor, dtype=torch.float64)
            total[name] += weight * tensor.double()
            counts[name] += weight
    if not counts and not partial:
        raise ValueError("the average needs at least one state")
    return {name: (tensor / counts[name]).to(types[name]) for name, tensor in total.items()}


def average_into(
    model: nn.Module, states: Iterable[Tensors], weights: Iterable[float] = repeat(1)
) -> nn.Module:
    """Loads the average of what was sent of models into ``model`` and returns it."""
    load_sent(model, average_states(states, weights))
    return model


States = Sequence[Mapping[str, Tensor]]
"""Each client's weights by name; a tensor may be read when it is asked for."""


@dataclass(frozen=True, kw_only=True)
class AggregationConfig(Settings):
    """How clients' weights become one model's."""

    aggregate: Literal["mean", "median", "trimmed-mean", "krum", "norm-clip"] = "mean"
    """mean; or a rule that bears clients that lie: median or trimmed-mean of each weight, krum (the
    one client nearest to the others), norm-clip (the mean of updates cut to one length). median,
    trimmed-mean and krum count all clients alike, however many samples they have. Krum is weak:
    a few clients that send the start back lie close together, and can be the ones it takes."""
    aggregate_liars: Annotated[float, Within(0, 0.5, "[)")] = 0.2
    """Share of the clients that may lie, rounded up: trimmed-mean leaves as many out at both ends,
    krum at the far end."""
    aggregate_norm: Positive | None = None
    """norm-clip: length to which updates are cut. Default: the median of the clients' lengths."""

    def check_further(self) -> None:
        """``aggregate_norm`` is norm-clip's alone, and the means count no liars."""
        liars = not self.weights_clients, "median, trimmed-mean or krum"
        norm = self.aggregate == "norm-clip", "norm-clip"
        for setting, (used, needed) in {"aggregate_liars": liars, "aggregate_norm": norm}.items():
            if not used and getattr(self, setting) != getattr(AggregationConfig, setting):
                raise UserError(f"{setting} needs aggregate {needed}, got {self.aggregate}")

    @property
    def weights_clients(self) -> bool:
        """Whether the rule can weight clients by their samples."""
        return self.aggregate in ("mean", "norm-clip")

    def liars(self, clients: int) -> int:
        """f: how many of so many clients may lie."""
        return ceil(self.aggregate_liars * clients - 1e-9)

    def check_clients(self, clients: int) -> None:
        """Refuses a rule that cannot work with so few clients of one architecture.

        Raises:
            UserError: n < 2 f + 1, or for Krum n < 2 f + 3 (Blanchard et al.).
        """
        if self.weights_clients:
            return
        liars = self.liars(clients)
        least = 2 * liars + (3 if self.aggregate == "krum" else 1)
        if clients < least:
            raise UserError(
                f"aggregate {self.aggregate} with aggregate_liars {self.aggregate_liars:g} needs "
                f"at least {least} clients of one architecture in a round, got {clients}"
            )


def aggregate_states(
    states: States,
    start: Mapping[str, Tensor],
    config: AggregationConfig,
    weights: Iterable[float] = repeat(1),
) -> Tensors:
    """The clients' weights as one model's, by any rule but mean.

    Integers (BatchNorm's batch counters) go the same way and are rounded down; norm-clip averages
    them as they are.

    Args:
        states: each client's, of one architecture.
        start: the weights from which all of them started, on the device to compute on.
        config: the rule.
        weights: of the clients, for norm-clip alone.

    Raises:
        UserError: the rule cannot work with so few clients.
        KeyError: a state has other names than ``start``.
    """
    config.check_clients(len(states))
    for state in states:
        if state.keys() != start.keys():
            raise KeyError(f"states of one model differ: {sorted(state.keys() ^ start.keys())}")
    if config.aggregate == "norm-clip":
        return norm_clipped_mean(states, start, config.aggregate_norm, weights)
    liars = config.liars(len(states))
    if config.aggregate == "krum":
        chosen = states[krum(squared_distances(states, start), liars)]
        return {name: chosen[name] for name in start}
    cut = (len(states) - 1) // 2 if config.aggregate == "median" else liars
    return {name: trimmed_mean(_stacked(states, name), cut) for name in start}


def trimmed_mean(values: Tensor, cut: int) -> Tensor:
    """Each coordinate's mean without its ``cut`` smallest and largest values (Yin et al., ICML
    2018, Definition 2); the median (Definition 1) leaves the one or two in the middle.

    Args:
        values: (clients, ...); counts all clients alike.
        cut: values left out at each end, below half of the clients.
    """
    kept = values.sort(dim=0).values[cut : len(values) - cut]
    return kept.double().mean(0).to(values.dtype)


def krum(squared: Tensor, liars: int) -> int:
    """argmin_i sum over the n - f - 2 clients j nearest to i of |w_i - w_j|^2 (Blanchard et al.,
    NeurIPS 2017): the place of one client, which is taken as it is.

    The start is in the middle of honest updates that go different ways, so clients that send it
    back may be nearest to all others: the model then has learned nothing.

    Args:
        squared: (n, n), all squared distances; counts all clients alike.
        liars: f; n is at least 2 f + 3.
    """
    # The nearest to a client is itself, at 0.
    nearest = squared.sort(dim=1).values[:, 1 : len(squared) - liars - 1]
    return int(nearest.sum(1).argmin())


def squared_distances(states: States, names: Iterable[str]) -> Tensor:
    """|w_i - w_j|^2 over all floats of these names, BatchNorm's statistics too; (n, n) float64."""
    total = torch.zeros(len(states), len(states), dtype=torch.float64)
    for name in names:
        values = _stacked(states, name)
        if values.is_floating_point():
            rows = values.double().flatten(1)
            exact = "donot_use_mm_for_euclid_dist"
            total += torch.cdist(rows, rows, compute_mode=exact).square().cpu()
    return total


def norm_clipped_mean(
    states: States, start: Mapping[str, Tensor], limit: float | None, weights: Iterable[float]
) -> Tensors:
    """w_0 + sum_k n_k d_k min(1, C / |d_k|) / sum_k n_k of updates d_k = w_k - w_0 (Sun et al.,
    "Can You Really Backdoor Federated Learning?", 2019).

    Args:
        states: the clients' weights w_k.
        start: w_0, which they started from.
        limit: C; without it the median of the norms. A norm is over all floats.
        weights: n_k.
    """
    norms = _norms(states, start)
    longest = float(norms.quantile(0.5)) if limit is None else limit
    factors = [longest / norm if norm > longest else 1.0 for norm in norms.tolist()]
    counts = [count for count, _ in zip(weights, states, strict=False)]
    found: Tensors = {}
    for name, origin in start.items():
        total = torch.zeros_like(origin, dtype=torch.float64)
        for state, factor, count in zip(states, factors, counts, strict=True):
            drift = state[name].to(origin.device).double() - origin.double()
            total += count * (factor if origin.is_floating_point() else 1.0) * drift
        found[name] = (origin.double() + total / sum(counts)).to(origin.dtype)
    return found


def _norms(states: States, start: Mapping[str, Tensor]) -> Tensor:
    """|w_k - w_0| of each client over all floats, (clients,) float64."""
    squares = torch.zeros(len(states), dtype=torch.float64)
    for name, origin in start.items():
        if origin.is_floating_point():
            for k, state in enumerate(states):
                drift = state[name].to(origin.device).double() - origin.double()
                squares[k] += drift.square().sum().cpu()
    return squares.sqrt()


def _stacked(states: States, name: str) -> Tensor:
    return torch.stack([state[name] for state in states])
