"""The partition: which client has which samples of the train split."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fl.bounds import Count, Settings, Within
from fl.data.classes import class_lists
from fl.data.dirichlet import dirichlet_lists, recut
from fl.data.mixture import mixture_lists
from fl.data.partition_file import read_lists
from fl.errors import UserError
from fl.seeding import numpy_generator

Kind = Literal["dirichlet", "mixture", "classes", "iid", "domains", "file"]
MAX_ALPHA = 1e6  # practically even; far larger values overflow in the draw


@dataclass(frozen=True, kw_only=True)
class PartitionConfig(Settings):
    """How the train split is divided among clients."""

    kind: Kind = "dirichlet"
    """dirichlet: skewed by alpha, class by class; mixture: equal shares, each client's classes
    skewed by alpha; classes: a fixed number of classes each; iid: at random; domains: a client per
    domain, of data set folder; file: as a file says"""

    file: str | None = None
    """for kind file: path of a run's partition.npz, or of a JSON file with a list for each client
    of indices into the training split"""

    classes_per_client: Count = 2
    """classes each client holds, for kind classes"""

    min_samples: Count = 10
    """every client has at least so many training samples"""

    recut: bool = False
    """re-cut a Dirichlet partition into equal pieces, as FedMHO's released code does"""

    test_fraction: Annotated[float, Within(0, 1, "[)")] | None = None
    """share of each client's samples held out for its own test, from 0 to below 1. Default: 0.2 for
    methods that score clients on these, else 0"""

    def check_further(self) -> None:
        """``recut`` goes with kind dirichlet, and kind file with a file."""
        if self.recut and self.kind != "dirichlet":
            raise UserError(f"recut with kind {self.kind}; allowed: with kind dirichlet only")
        if (self.kind == "file") != (self.file is not None):
            raise UserError("kind file and file go together: name both or none")


@dataclass(frozen=True, eq=False)
class Partition:
    """Each client's sorted indices, int64, into the train split.

    `test` holds each client's held-out samples, empty with test_fraction 0. `counts` are training
    samples, int64 (clients, classes). `digest` names the partition: equal index lists, equal
    digest.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    counts: np.ndarray
    digest: str


def make_partition(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    config: PartitionConfig,
    *,
    alpha: float,
    seed: int,
    domains: np.ndarray | None = None,
) -> Partition:
    """Divides the train split, labels int64 (N,) in 0..num_classes-1, among `num_clients` clients.

    Every sample goes to exactly one client, except that a re-cut and kind mixture lose N mod K of
    them, and that classes that no client has are left out (kind classes with too few clients).
    `alpha` is the Dirichlet concentration: the smaller, the more skewed. `domains`, int64 (N,), is
    the domain of each sample, for kind domains. Raises UserError where the settings cannot be met.
    """
    if num_clients < 1:
        raise UserError(f"{num_clients} clients; allowed: 1 or more")
    if not 0 < alpha <= MAX_ALPHA:
        raise UserError(f"alpha {alpha}; allowed: above 0, up to {MAX_ALPHA:g}")
    if config.file is not None:
        train, test = read_lists(Path(config.file), num_clients, len(labels))
        if any(map(len, test)):
            return _counted(train, test, labels, num_classes)
        return _finish(train, labels, num_classes, config.test_fraction or 0.0, seed)
    needed = _samples_needed(len(labels), config)
    if num_clients * needed > len(labels):
        raise UserError(
            f"{num_clients} clients of {needed} samples or more need {num_clients * needed} "
            f"samples, there are {len(labels)}: use fewer clients or lower min_samples"
        )
    lists: Sequence[np.ndarray]
    if config.kind == "domains":
        lists = domain_lists(domains, num_clients, needed)
    else:
        rng = numpy_generator(seed, "partition")
        lists = _deal(labels, num_clients, num_classes, config, alpha, needed, rng)
    return _finish(lists, labels, num_classes, config.test_fraction or 0.0, seed)


def _deal(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    config: PartitionConfig,
    alpha: float,
    needed: int,
    rng: np.random.Generator,
) -> Sequence[np.ndarray]:
    """Each client's samples, at least `needed`, before any hold-out."""
    if config.kind == "iid":
        return np.array_split(rng.permutation(len(labels)), num_clients)
    if config.kind == "mixture":
        return mixture_lists(labels, num_clients, num_classes, alpha=alpha, rng=rng)
    if config.kind == "classes":
        return class_lists(
            labels,
            num_clients,
            num_classes,
            per_client=config.classes_per_client,
            min_samples=needed,
            rng=rng,
        )
    lists = dirichlet_lists(
        labels,
        num_clients,
        num_classes,
        alpha=alpha,
        min_samples=0 if config.recut else needed,  # equal pieces are large enough anyway
        rng=rng,
    )
    return recut(lists) if config.recut else lists


def domain_lists(
    domains: np.ndarray | None, num_clients: int, min_samples: int
) -> list[np.ndarray]:
    """Each client's samples: those of its domain, the clients in the domains' order.

    Raises:
        UserError: no domains, not as many as clients, or one with too few samples.
    """
    if domains is None:
        raise UserError("partition.kind domains needs a data set with domains")
    sizes = np.bincount(domains)
    if len(sizes) != num_clients:
        raise UserError(
            f"partition.kind domains has a client for each of the {len(sizes)} domains: "
            f"num_clients must be {len(sizes)}, got {num_clients}"
        )
    if sizes.min() < min_samples:
        raise UserError(
            f"a domain has {sizes.min()} training samples, a client needs {min_samples}: "
            "lower min_samples"
        )
    return [np.flatnonzero(domains == own) for own in range(num_clients)]


def _held_out(size: int, test_fraction: float) -> int:
    return round(test_fraction * size)


def _samples_needed(available: int, config: PartitionConfig) -> int:
    """Samples a client needs for `min_samples` to be left after the hold-out (`available` + 1
    where no size up to `available` suffices)."""
    return bisect_left(
        range(available + 1),
        config.min_samples,
        key=lambda size: size - _held_out(size, config.test_fraction or 0.0),
    )


def validated(
    partition: Partition, labels: np.ndarray, num_classes: int, share: float, seed: int
) -> Partition:
    """The partition with validation samples in place of test samples, to choose settings by.

    They are that ``share`` of each client's training samples, which lose them; the test samples are
    not used. Raises UserError where a client would have nothing left to train on.
    """
    train, held_out = _split(partition.train, share, seed, "validation")
    if min(map(len, train)) == 0:
        raise UserError(f"data.validation {share:g} leaves a client no sample to train on")
    return _counted(train, held_out, labels, num_classes)


def _finish(
    lists: Sequence[np.ndarray],
    labels: np.ndarray,
    num_classes: int,
    test_fraction: float,
    seed: int,
) -> Partition:
    """Holds out each client's test samples."""
    train, test = _split(lists, test_fraction, seed, "hold-out")
    return _counted(train, test, labels, num_classes)


def _split(
    lists: Sequence[np.ndarray], share: float, seed: int, purpose: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The lists without a share of each that is drawn at random, and these shares; all sorted."""
    kept, drawn = [], []
    for client, indices in enumerate(lists):
        held_out = _held_out(len(indices), share)
        shuffled = numpy_generator(seed, purpose, client).permutation(np.sort(indices))
        drawn.append(np.sort(shuffled[:held_out]))
        kept.append(np.sort(shuffled[held_out:]))
    return kept, drawn


def _counted(
    train: Sequence[np.ndarray], test: Sequence[np.ndarray], labels: np.ndarray, num_classes: int
) -> Partition:
    """Counts the training samples and takes the digest."""
    counts = np.stack([np.bincount(labels[own], minlength=num_classes) for own in train])
    digest = hashlib.sha256()
    for indices in (*train, *test):
        digest.update(len(indices).to_bytes(8, "little") + indices.astype("<i8").tobytes())
    return Partition(tuple(train), tuple(test), counts, digest.hexdigest()[:16])
