"""The partition: which client has which samples of the train split."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fl.bounds import Count, Settings, Within
from fl.data.datasets import Dataset
from fl.data.partition_file import Lists, read_lists
from fl.errors import UserError
from fl.seeding import numpy_generator

Rng = np.random.Generator

Kind = Literal["dirichlet", "mixture", "classes", "iid", "domains", "natural", "file"]
OWN_TEST = 0.2
"""Share of a client's samples that are held out where it is scored on them (FedD2S's paper)."""
MAX_ALPHA = 1e6  # practically even; far larger values overflow in the draw


@dataclass(frozen=True, kw_only=True)
class PartitionConfig(Settings):
    """How the train split is divided among clients."""

    kind: Kind = "dirichlet"
    """dirichlet: skewed by alpha, class by class; mixture: equal shares, each client's classes
    skewed by alpha; classes: a fixed number of classes each; iid: at random; domains: a client per
    domain, of data set folder; natural: as the data is divided already, for fewer clients those
    that the seed draws; file: as a file says"""

    file: str | None = None
    """for kind file: path of a run's partition.npz, or of a JSON file with a list for each client
    of indices of the training samples as they are given"""

    classes_per_client: Count = 2
    """classes each client holds, for kind classes"""

    min_samples: Count = 10
    """smallest number of training samples of a client; unused by kinds natural and file"""

    recut: bool = False
    """re-cut a Dirichlet partition into equal pieces, as FedMHO's released code does"""

    test_fraction: Annotated[float, Within(0, 1, "[)")] | None = None
    """share of each client's samples held out as its test samples, 0 to below 1. Default: 0.2 for
    methods that score clients on these, else 0"""

    def check_further(self) -> None:
        """``recut`` goes with kind dirichlet, and kind file with a file."""
        if self.recut and self.kind != "dirichlet":
            raise UserError(f"recut needs kind dirichlet, got {self.kind}")
        if (self.kind == "file") != (self.file is not None):
            raise UserError("kind file and the setting file need each other: set both or none")


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
    owners: tuple[np.ndarray, np.ndarray] | None = None,
    taken: tuple[np.ndarray, int] | None = None,
    tested: bool = False,
) -> Partition:
    """Divides the train split, labels int64 (N,) in 0..num_classes-1, among `num_clients` clients.

    Every sample goes to exactly one client, except that a re-cut and kind mixture lose N mod K of
    them, and that classes that no client has are left out (kind classes with too few clients).
    `alpha` is the Dirichlet concentration: the smaller, the more skewed. `domains`, int64 (N,), is
    the domain of each sample, for kind domains. `owners` are the client of each sample, int64 (N,),
    and whether it is for that client's test, bool (N,), for kind natural. `taken` says, for kind
    file, of which whole these samples are: see :class:`fl.data.datasets.Split`. `tested`: clients
    are scored on test samples of their own. Raises UserError where the settings cannot be met.
    """
    if num_clients < 1:
        raise UserError(f"{num_clients} clients; allowed: 1 or more")
    if not 0 < alpha <= MAX_ALPHA:
        raise UserError(f"alpha {alpha}; allowed: above 0, up to {MAX_ALPHA:g}")
    test: Lists = []
    if (asked := config.test_fraction) is None:
        config = replace(config, test_fraction=OWN_TEST if tested else 0.0)
    if config.kind == "natural":
        lists, test = _natural_lists(owners, num_clients, seed)
    elif owners is not None and owners[1].any():
        raise UserError(
            f"partition.kind {config.kind} would train on the clients' own test samples; data that "
            "has these needs kind natural"
        )
    elif config.file is None:
        lists = _drawn(labels, num_clients, num_classes, config, alpha, seed, domains)
    else:
        lists, test = read_lists(Path(config.file), num_clients, len(labels), taken)
    if not any(map(len, test)):
        lists, test = _split(lists, config.test_fraction or 0.0, seed, "hold-out")
    elif asked is not None and [len(own) for own in test] != [
        round(asked * (len(own) + len(held))) for own, held in zip(lists, test, strict=True)
    ]:
        raise UserError(
            f"partition.test_fraction {asked:g}: the clients have test samples already, another "
            "share; leave it out, or set it to None"
        )
    return _counted(lists, test, labels, num_classes)


def _drawn(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    config: PartitionConfig,
    alpha: float,
    seed: int,
    domains: np.ndarray | None,
) -> Lists:
    """Each client's samples before any hold-out, with enough of them to be left after it."""
    available = len(labels)
    needed = bisect_left(  # one more than there are, where no number is enough
        range(available + 1),
        config.min_samples,
        key=lambda size: size - round((config.test_fraction or 0.0) * size),
    )
    if num_clients * needed > available:
        raise UserError(
            f"{num_clients} clients of {needed} samples or more need {num_clients * needed} "
            f"samples, there are {available}: use fewer clients or lower min_samples"
        )
    if config.kind == "domains":
        return _domain_lists(domains, num_clients, needed)
    rng = numpy_generator(seed, "partition")
    if config.kind == "iid":
        return np.array_split(rng.permutation(available), num_clients)
    if config.kind == "mixture":
        return mixture_lists(labels, num_clients, num_classes, alpha=alpha, rng=rng)
    if config.kind == "classes":
        each = config.classes_per_client
        return _class_lists(labels, num_clients, num_classes, each, needed, rng)
    least = 0 if config.recut else needed  # equal pieces are large enough anyway
    lists = dirichlet_lists(
        labels, num_clients, num_classes, alpha=alpha, min_samples=least, rng=rng
    )
    return _recut(lists) if config.recut else lists


def _split(
    lists: Sequence[np.ndarray], share: float, seed: int, purpose: str
) -> tuple[Lists, Lists]:
    """The lists without a share of each that is drawn at random, and these shares; all sorted."""
    kept, drawn = [], []
    for client, indices in enumerate(lists):
        size = round(share * len(indices))
        shuffled = numpy_generator(seed, purpose, client).permutation(np.sort(indices))
        drawn.append(np.sort(shuffled[:size]))
        kept.append(np.sort(shuffled[size:]))
    return kept, drawn


def _counted(train: Lists, test: Lists, labels: np.ndarray, num_classes: int) -> Partition:
    """Counts the training samples and takes the digest."""
    counts = np.stack([np.bincount(labels[own], minlength=num_classes) for own in train])
    digest = hashlib.sha256()
    for indices in (*train, *test):
        digest.update(len(indices).to_bytes(8, "little") + indices.astype("<i8").tobytes())
    return Partition(tuple(train), tuple(test), counts, digest.hexdigest()[:16])


def _domain_lists(domains: np.ndarray | None, num_clients: int, min_samples: int) -> Lists:
    """Each client's samples: those of its domain, the clients in the domains' order."""
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


def _natural_lists(
    owners: tuple[np.ndarray, np.ndarray] | None, num_clients: int, seed: int
) -> tuple[Lists, Lists]:
    """Training and test samples of each client, of those that the seed draws, in their order."""
    if owners is None:
        raise UserError("partition.kind natural needs data that is already divided among clients")
    clients, held = owners
    there = np.unique(clients[~held])
    if num_clients > len(there):
        raise UserError(
            f"num_clients must be at most {len(there)}, the clients of the data with training "
            f"samples, got {num_clients}"
        )
    drawn = numpy_generator(seed, "natural").choice(there, num_clients, replace=False)
    lists = [
        [np.flatnonzero((clients == k) & (held == kind)) for k in np.sort(drawn)]
        for kind in (False, True)
    ]
    return lists[0], lists[1]


# Label skew by a fixed number of classes per client.


def _class_lists(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    per_client: int,
    min_samples: int,
    rng: Rng,
) -> Lists:
    """Gives every client `per_client` classes.

    A class's samples are cut evenly among its holders: sizes within a class differ by one at most.
    Raises UserError where a class has fewer samples than holders, or a client fewer than
    `min_samples`.
    """
    if per_client > num_classes:
        raise UserError(f"classes_per_client {per_client}; allowed: 1 to {num_classes}")
    held = _deal_classes(num_clients, num_classes, per_client, rng)
    holders, sizes = held.sum(axis=0), np.bincount(labels, minlength=num_classes)
    if (sizes < holders).any():
        label = int((sizes < holders).argmax())
        raise UserError(
            f"class {label} has {sizes[label]} samples for {holders[label]} clients: use fewer "
            "clients or a smaller classes_per_client"
        )
    share, over = np.divmod(sizes, np.maximum(holders, 1))
    counts = held * (share + (held.cumsum(axis=0) <= over))
    smallest = counts.sum(axis=1).min()
    if smallest < min_samples:
        raise UserError(
            f"a client with {per_client} of {num_classes} classes gets {smallest} samples but "
            f"needs {min_samples}: use fewer clients or lower min_samples"
        )
    return _dealt(labels, counts, rng)


def _deal_classes(num_clients: int, num_classes: int, per_client: int, rng: Rng) -> np.ndarray:
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


def _dealt(labels: np.ndarray, counts: np.ndarray, rng: Rng) -> Lists:
    """The samples of each class, in random order, to the clients by their counts, (clients, C)."""
    parts: list[Lists] = [[] for _ in counts]
    for label, own in enumerate(counts.T):
        samples = rng.permutation(np.flatnonzero(labels == label))
        for client, piece in enumerate(np.split(samples, np.cumsum(own))[:-1]):
            parts[client].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


# Label skew by a Dirichlet draw per class, after FedDF's released code.

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
    rng: Rng,
) -> Lists:
    """Divides all samples, labels int64 (N,), among clients; returns their indices, int64.

    Clients form groups of ten (the last may be smaller), each with its own slice of the shuffled
    samples. In a group of k clients and n samples, every client gets at least
    max(`min_samples`, floor(n / 2k)). Raises UserError where no draw achieves that.
    """
    order = rng.permutation(len(labels))
    firsts = range(0, num_clients, GROUP_SIZE)
    bounds = [first * len(labels) // num_clients for first in firsts]
    lists: Lists = []
    for first, members in zip(firsts, np.split(order, bounds[1:]), strict=True):
        group_size = min(GROUP_SIZE, num_clients - first)
        class_sizes = np.bincount(labels[members], minlength=num_classes)
        minimum = max(min_samples, len(members) // (2 * group_size))
        for _ in range(MAX_DRAWS // DRAWS_AT_ONCE):
            draws = _draw_counts(class_sizes, group_size, alpha, rng)
            accepted = np.flatnonzero(draws.sum(axis=1).min(axis=1) >= minimum)
            if len(accepted):
                lists += _deal_dirichlet(members, labels[members], draws[accepted[0]])
                break
        else:
            lower = " or lower min_samples" if minimum == min_samples else ""
            raise UserError(
                f"no Dirichlet partition in {MAX_DRAWS:,} draws gave each of {group_size} clients "
                f"{minimum} of {len(members)} samples: raise alpha (now {alpha:g}), change the "
                f"number of clients (now {num_clients}){lower}"
            )
    return lists


def _draw_counts(class_sizes: np.ndarray, clients: int, alpha: float, rng: Rng) -> np.ndarray:
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


def _deal_dirichlet(members: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> Lists:
    """Cuts each class of the group's samples by its row of `counts`, (C, clients)."""
    num_classes, clients = counts.shape
    by_class = members[np.argsort(labels, kind="stable")]
    owner = np.repeat(np.tile(np.arange(clients), num_classes), counts.ravel())
    by_owner = by_class[np.argsort(owner, kind="stable")]
    return np.split(by_owner, np.cumsum(counts.sum(axis=0))[:-1])


def _recut(lists: Lists) -> Lists:
    """Concatenates the lists and cuts them into equal ones of floor(N/K); loses the remainder.

    FedMHO's released code does this, though its paper does not mention it: all clients have the
    same number of samples, some of them from a neighbour's list.
    """
    joined = np.concatenate(lists)
    size = len(joined) // len(lists)
    return list(joined[: size * len(lists)].reshape(len(lists), size))


# Equal shares, each with a class mixture of its own: FedD2S's partition (Section IV-A).


def mixture_lists(
    labels: np.ndarray, num_clients: int, num_classes: int, *, alpha: float, rng: Rng
) -> Lists:
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


# A validation split, on which settings are chosen: training images that no client gets, or a part
# of each client's.


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The data set with a random share of its training images in place of its test split.

    The rest is for the clients, and the true test split is not used.

    Raises:
        UserError: the share leaves one of the two without an image.
    """
    if dataset.train.held is not None:  # samples of the test split
        own = dataset.train.take(np.flatnonzero(~dataset.train.held))
        dataset = replace(dataset, train=own)
    available = len(dataset.train.labels)
    size = round(share * available)
    if not 0 < size < available:
        raise UserError(f"data.validation {share:g}: {size} of {available} images are held out")
    shuffled = numpy_generator(seed, "validation").permutation(available)
    test, train = (dataset.train.take(np.sort(o)) for o in (shuffled[:size], shuffled[size:]))
    return replace(dataset, train=train, test=test)


def validated(
    partition: Partition, labels: np.ndarray, num_classes: int, share: float, seed: int
) -> Partition:
    """The partition with validation samples in place of test samples, to choose settings by.

    They are that ``share`` of each client's training samples, which lose them; the test samples are
    not used. Raises UserError where a client would have nothing left to train on.
    """
    train, held_out = _split(partition.train, share, seed, "validation")
    if min(map(len, train)) == 0:
        raise UserError(f"data.validation {share:g} leaves a client no training sample: lower it")
    return _counted(train, held_out, labels, num_classes)
