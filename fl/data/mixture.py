"""Equal shares, each with a class mixture of its own: FedD2S's partition (Section IV-A)."""

import numpy as np


def mixture_lists(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    *,
    alpha: float,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Each client's samples, floor(N / K) of them, int64 indices into ``labels``, int64 (N,).

    Client n draws its mixture d ~ Dir(alpha) over the classes. In random order the clients take as
    many samples of each class as d gives them, or what is left of it; what a client is then short
    of it takes of the classes left, by d again, or, where d gives these no weight, in proportion to
    what is left of them. The N mod K samples over are left out.
    """
    share = len(labels) // num_clients
    left = np.bincount(labels, minlength=num_classes)
    counts = np.zeros((num_clients, num_classes), dtype=np.int64)
    mixtures = rng.dirichlet(np.full(num_classes, alpha), size=num_clients)
    for client in rng.permutation(num_clients):
        counts[client] = _taken(mixtures[client], share, left)
        left -= counts[client]
    return _dealt(labels, counts, rng)


def _taken(mixture: np.ndarray, share: int, left: np.ndarray) -> np.ndarray:
    """How many samples of each class, (C,), a client takes of those ``left``: ``share`` in all."""
    taken = np.minimum(_apportioned(mixture, share), left)
    while missing := share - int(taken.sum()):  # each time round, it is done or a class runs out
        there = left - taken
        weights = np.where(there > 0, mixture, 0.0)
        if not weights.any():  # a tiny alpha can give its whole mixture to classes that are gone
            weights = there.astype(float)
        taken += np.minimum(_apportioned(weights, missing), there)
    return taken


def _apportioned(weights: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers (C,) with that sum, nearest to the weights' shares: largest remainders."""
    exact = weights / weights.sum() * total
    whole = np.floor(exact).astype(np.int64)
    over = np.argsort(-(exact - whole), kind="stable")[: total - int(whole.sum())]
    whole[over] += 1
    return whole


def _dealt(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """The samples of each class, in random order, to the clients by their counts, (clients, C)."""
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for label, own in enumerate(counts.T):
        samples = rng.permutation(np.flatnonzero(labels == label))
        for client, piece in enumerate(np.split(samples, np.cumsum(own))[:-1]):
            parts[client].append(piece)
    return [np.concatenate(pieces) for pieces in parts]
