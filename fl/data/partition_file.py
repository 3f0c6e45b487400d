"""A partition as a file: each client's indices into the training split, for other programs too.

An .npz file: ``train`` has all clients' indices one after another, ``train_counts`` how many each
has; ``test`` and ``test_counts`` the same of the samples that clients hold out. Or a JSON file
with a list of indices for each client.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl.data.own import is_whole, read_arrays
from fl.errors import UserError, reason_of
from fl.whole_files import read_text, replacing

Lists = list[np.ndarray]


def save_lists(path: Path, train: Sequence[np.ndarray], test: Sequence[np.ndarray]) -> None:
    """Writes both lists of every client to an .npz file, in one piece."""
    arrays: dict[str, Any] = {}
    for name, lists in (("train", train), ("test", test)):
        arrays[name] = np.concatenate([np.empty(0, np.int64), *lists])
        arrays[f"{name}_counts"] = np.array([len(own) for own in lists], np.int64)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_lists(path: Path, num_clients: int, num_samples: int) -> tuple[Lists, Lists]:
    """Each client's sorted training and held-out indices, int64.

    Raises:
        UserError: the file cannot be read, is of another number of clients, names a sample that
            there is not, or gives one to two clients or twice.
    """
    train, test = _json(path) if path.suffix == ".json" else _npz(path)
    test = test or [np.empty(0, np.int64)] * num_clients
    for given in (train, test):
        if len(given) != num_clients:
            raise UserError(f"{path} has {len(given)} clients; num_clients is {num_clients}")
    owner = np.full(num_samples, -1)
    for k, lists in enumerate(zip(train, test, strict=True)):
        for own in lists:
            _claim(path, owner, k, own)
    empty = [k for k, own in enumerate(train) if not len(own)]
    if empty:
        raise UserError(f"{path} leaves client {empty[0]} without a training sample")
    return [np.sort(own) for own in train], [np.sort(own) for own in test]


def _claim(path: Path, owner: np.ndarray, k: int, own: np.ndarray) -> None:
    """Notes whose the samples are; none may be another's, nor be there twice."""
    outside = own[(own < 0) | (own >= len(owner))]
    if len(outside):
        raise UserError(
            f"{path} gives client {k} sample {outside[0]}; the training split has 0 to "
            f"{len(owner) - 1}"
        )
    unique, counts = np.unique(own, return_counts=True)
    taken = unique[(owner[unique] >= 0) | (counts > 1)]
    if len(taken):
        other = owner[taken[0]] if owner[taken[0]] >= 0 else k
        raise UserError(f"{path} gives sample {taken[0]} to client {other} and to client {k}")
    owner[own] = k


def _npz(path: Path) -> tuple[Lists, Lists]:
    found = read_arrays(path, ("train", "train_counts", "test", "test_counts"))
    return _cut(path, "train", *found[:2]), _cut(path, "test", *found[2:])


def _cut(path: Path, name: str, samples: np.ndarray, lengths: np.ndarray) -> Lists:
    """Each client's part of the array of that name."""
    whole, counts = _indices(path, name, samples), _indices(path, f"{name}_counts", lengths)
    if (counts < 0).any() or (counts > len(whole)).any() or counts.sum() != len(whole):
        raise UserError(f"{path}: {name}_counts do not add up to the {len(whole)} of {name}")
    return np.split(whole, np.cumsum(counts)[:-1]) if len(counts) else []


def _json(path: Path) -> tuple[Lists, Lists]:
    try:
        lists = json.loads(read_text(path))
        if not isinstance(lists, list):
            raise ValueError("expected a list of indices for each client")
        columns = [np.asarray(own) for own in lists]
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {reason_of(error)}") from None
    return [_indices(path, f"client {k}", own) for k, own in enumerate(columns)], []


def _indices(path: Path, name: str, own: np.ndarray) -> np.ndarray:
    if own.ndim != 1 or not (is_whole(own) or not own.size):
        raise UserError(f"{path}: {name} must be a list of whole numbers")
    return own.astype(np.int64)
