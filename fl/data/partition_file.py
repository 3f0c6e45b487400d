"""A partition as a file, for other programs too.

The file is an .npz: ``train`` has all clients' indices one after another, ``train_counts`` how many
each has; ``test`` and ``test_counts`` the same of samples that clients hold out; ``samples`` how
many there are, or nothing. Or it is JSON, with a list of indices for each client. Indices are of
the training samples as they are given, before ``data.max_train``, a validation share or a test
split takes some away: these are no client's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl.data.catalogue import read_arrays
from fl.errors import UserError, reason_of
from fl.inputs import is_whole
from fl.whole_files import read_text, replacing

Lists = list[np.ndarray]
"""Each client's indices, int64."""


def save_lists(
    path: Path,
    train: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    num_samples: int | None = None,
) -> None:
    """Writes both lists of every client to an .npz file, in one piece.

    ``num_samples``: how many samples there are, of which these are indices; None: not known.
    """
    known = [] if num_samples is None else [num_samples]
    arrays: dict[str, Any] = {"samples": np.array(known, np.int64)}
    for name, lists in (("train", train), ("test", test)):
        arrays[name] = np.concatenate([np.empty(0, np.int64), *lists])
        arrays[f"{name}_counts"] = np.array([len(own) for own in lists], np.int64)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_lists(
    path: Path, num_clients: int, num_samples: int, taken: tuple[np.ndarray, int] | None = None
) -> tuple[Lists, Lists]:
    """Each client's training and held-out samples, sorted positions in a split, int64.

    Args:
        path: of the file.
        num_clients: which it must have.
        num_samples: of the split, N.
        taken: which samples of a whole these N are: the file's indices are of the whole, and what
            is not in the split is left out.

    Raises:
        UserError: the file cannot be read, is of another number of clients or samples, names a
            sample that there is not, gives one to two clients or twice, or leaves one without.
    """
    rows, whole = (np.arange(num_samples), num_samples) if taken is None else taken
    train, test = _json(path) if path.suffix == ".json" else _npz(path, whole)
    test = test or [np.empty(0, np.int64)] * num_clients
    for given in (train, test):
        if len(given) != num_clients:
            raise UserError(f"{path} has {len(given)} clients, but num_clients is {num_clients}")
    _check_owners(path, [*train, *test], num_clients, whole)
    place = np.full(whole, -1)
    place[rows] = np.arange(len(rows))
    train, test = ([np.sort(place[own][place[own] >= 0]) for own in part] for part in (train, test))
    for k, own in enumerate(train):
        if not len(own):
            raise UserError(f"{path} gives client {k} no training sample")
    return train, test


def _check_owners(path: Path, lists: Lists, num_clients: int, num_samples: int) -> None:
    """Refuses samples that there are not, and those that are in the lists twice."""
    samples = np.concatenate(lists)
    owners = np.repeat(np.arange(len(lists)) % num_clients, list(map(len, lists)))
    outside = np.flatnonzero((samples < 0) | (samples >= num_samples))
    if len(outside):
        raise UserError(
            f"{path} gives client {owners[outside[0]]} sample {samples[outside[0]]}; the training "
            f"split has 0 to {num_samples - 1}"
        )
    order = np.lexsort((owners, samples))
    twice = np.flatnonzero(np.diff(samples[order]) == 0)
    if len(twice):
        one, other = order[twice[0] : twice[0] + 2]
        raise UserError(
            f"{path} gives sample {samples[one]} to client {owners[one]} and to client "
            f"{owners[other]}"
        )


def _npz(path: Path, whole: int) -> tuple[Lists, Lists]:
    names = ("train", "train_counts", "test", "test_counts", "samples")
    train, counts, test, test_counts, recorded = read_arrays(path, names)
    if recorded.tolist() not in ([], [whole]):
        raise UserError(f"{path} is for {recorded.ravel()[:1]} training samples; there are {whole}")
    return _cut(path, "train", train, counts), _cut(path, "test", test, test_counts)


def _cut(path: Path, name: str, samples: np.ndarray, lengths: np.ndarray) -> Lists:
    """Each client's part of the array of that name."""
    whole, counts = _indices(path, name, samples), _indices(path, f"{name}_counts", lengths)
    if (counts < 0).any() or (counts > len(whole)).any() or counts.sum() != len(whole):
        raise UserError(f"{path}: {name}_counts must add up to the length of {name}, {len(whole)}")
    return np.split(whole, np.cumsum(counts)[:-1]) if len(counts) else []


def _json(path: Path) -> tuple[Lists, Lists]:
    text = read_text(path)
    try:
        lists = json.loads(text)
        if not isinstance(lists, list):
            raise ValueError("expected a list of indices for each client")
        columns = [np.asarray(own) for own in lists]
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {reason_of(error)}") from None
    return [_indices(path, f"client {k}", own) for k, own in enumerate(columns)], []


def _indices(path: Path, name: str, own: np.ndarray) -> np.ndarray:
    if own.ndim != 1 or not (is_whole(own) or not own.size):
        raise UserError(f"{path}: {name} must be a list of whole numbers")
    return own.astype(np.int64)
