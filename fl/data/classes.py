"""Label-skewed partition by a fixed number of classes per client."""

import numpy as np

from fl.errors import UserError


def class_lists(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    *,
    per_client: int,
    min_samples: int,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Gives every client `per_client` classes; returns each client's indices, int64.

    A class's samples, of labels int64 (N,), are cut evenly among its holders: sizes within a class
    differ by one at most. Raises UserError where a class has fewer samples than holders, or a
    client fewer than `min_samples`.
    """
    if per_client > num_classes:
        raise UserError(f"classes_per_client {per_client}; allowed: 1 to {num_classes}")
    held = _deal_classes(num_clients, num_classes, per_client, rng)
    pieces: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label in range(num_classes):
        holders = np.flatnonzero(held[:, label])
        samples = rng.permutation(np.flatnonzero(labels == label))
        if len(samples) < len(holders):
            raise UserError(
                f"class {label} has {len(samples)} samples for {len(holders)} clients: use fewer "
                "clients or a smaller classes_per_client"
            )
        if len(holders):
            for client, piece in zip(holders, np.array_split(samples, len(holders)), strict=True):
                pieces[client].append(piece)
    lists = [np.concatenate(own) for own in pieces]
    smallest = min(len(own) for own in lists)
    if smallest < min_samples:
        raise UserError(
            f"a client with {per_client} of {num_classes} classes gets {smallest} samples but "
            f"needs {min_samples}: use fewer clients or lower min_samples"
        )
    return lists


def _deal_classes(
    num_clients: int, num_classes: int, per_client: int, rng: np.random.Generator
) -> np.ndarray:
    """Which client has which class, bool (clients, classes), `per_client` in every row.

    Classes with the fewest holders so far go first, ties at random: so every class has a holder if
    clients times `per_client` suffice, and holders per class differ by one at most.
    """
    held = np.zeros((num_clients, num_classes), dtype=bool)
    num_holders = np.zeros(num_classes, dtype=np.int64)
    for client in range(num_clients):
        chosen = np.lexsort((rng.random(num_classes), num_holders))[:per_client]
        held[client, chosen] = True
        num_holders[chosen] += 1
    return held
