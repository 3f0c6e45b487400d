"""Label-skewed partition by a Dirichlet draw per class, after FedDF's released code."""

import numpy as np

from fl.errors import UserError

GROUP_SIZE = 10
MAX_DRAWS = 10_000
DRAWS_AT_ONCE = 100


def dirichlet_lists(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    *,
    alpha: float,
    min_samples: int,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Divides all samples, labels int64 (N,), among clients; returns their indices, int64.

    Clients form groups of ten (the last may be smaller), each with its own slice of the shuffled
    samples. In a group of k clients and n samples, every client gets at least
    max(`min_samples`, floor(n / 2k)). Raises UserError where no draw achieves that.
    """
    order = rng.permutation(len(labels))
    firsts = range(0, num_clients, GROUP_SIZE)
    bounds = [first * len(labels) // num_clients for first in firsts]
    lists: list[np.ndarray] = []
    for first, members in zip(firsts, np.split(order, bounds[1:]), strict=True):
        group_size = min(GROUP_SIZE, num_clients - first)
        class_sizes = np.bincount(labels[members], minlength=num_classes)
        minimum = max(min_samples, len(members) // (2 * group_size))
        counts = _accepted_counts(class_sizes, group_size, alpha, minimum, rng)
        if counts is None:
            lower = " or lower min_samples" if minimum == min_samples else ""
            raise UserError(
                f"no Dirichlet partition in {MAX_DRAWS:,} draws gave each of {group_size} clients "
                f"{minimum} of {len(members)} samples: raise alpha (now {alpha:g}), change the "
                f"number of clients (now {num_clients}){lower}"
            )
        lists += _deal(members, labels[members], counts)
    return lists


def recut(lists: list[np.ndarray]) -> list[np.ndarray]:
    """Concatenates the lists and cuts them into equal ones of floor(N/K); loses the remainder.

    FedMHO's released code does this, though its paper does not mention it: all clients have the
    same number of samples, some of them from a neighbour's list.
    """
    joined = np.concatenate(lists)
    size = len(joined) // len(lists)
    return list(joined[: size * len(lists)].reshape(len(lists), size))


def _accepted_counts(
    class_sizes: np.ndarray, clients: int, alpha: float, minimum: int, rng: np.random.Generator
) -> np.ndarray | None:
    """The first draw, (C, clients), that gives every client `minimum`; None if there is none."""
    for _ in range(MAX_DRAWS // DRAWS_AT_ONCE):
        draws = _draw_counts(class_sizes, clients, alpha, rng)
        accepted = np.flatnonzero(draws.sum(axis=1).min(axis=1) >= minimum)
        if len(accepted):
            return draws[accepted[0]]
    return None


def _draw_counts(
    class_sizes: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """DRAWS_AT_ONCE independent draws of samples per class and client, int64 (draws, C, clients).

    Per class in order: q ~ Dir(α·1), q_k = 0 where client k already has its even share, then
    renormalise and cut the class at floor(cumsum(q) · n_class).
    """
    even_share = class_sizes.sum() / clients
    counts = np.zeros((DRAWS_AT_ONCE, len(class_sizes), clients), dtype=np.int64)
    totals = np.zeros((DRAWS_AT_ONCE, clients), dtype=np.int64)
    for index, size in enumerate(class_sizes):
        is_open = totals < even_share
        q = rng.dirichlet(np.full(clients, alpha), size=DRAWS_AT_ONCE) * is_open
        # A tiny alpha can put all its weight on clients that are full. Its limit is one client
        # taking the whole class, so one that is open takes it. (With no client open, every
        # sample is assigned and the class is empty.)
        stuck = q.sum(axis=1) == 0
        taker = (rng.random(q.shape) * is_open).argmax(axis=1)
        q[stuck] = np.eye(clients)[taker[stuck]]
        cuts = np.floor(np.cumsum(q / q.sum(axis=1, keepdims=True), axis=1) * size)
        cuts[:, -1] = size  # rounding must not lose the last sample
        counts[:, index] = np.diff(cuts, axis=1, prepend=0)
        totals += counts[:, index]
    return counts


def _deal(members: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Cuts each class of the group's samples by its row of `counts`, (C, clients)."""
    num_classes, clients = counts.shape
    by_class = members[np.argsort(labels, kind="stable")]
    owner = np.repeat(np.tile(np.arange(clients), num_classes), counts.ravel())
    by_owner = by_class[np.argsort(owner, kind="stable")]
    return np.split(by_owner, np.cumsum(counts.sum(axis=0))[:-1])
