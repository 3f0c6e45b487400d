"""Equal shares of a class mixture each: FedD2S's partition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.data.partition import PartitionConfig, mixture_lists
from tests.fl.data.cuts import BALANCED, classes_held, cut

MIXTURE = PartitionConfig(kind="mixture")


def dealt(
    labels: np.ndarray, num_clients: int, num_classes: int, alpha: float, seed: int = 0
) -> np.ndarray:
    """How many samples of each class every client got, (clients, classes); all checked."""
    rng = np.random.default_rng(seed)
    lists = mixture_lists(labels, num_clients, num_classes, alpha=alpha, rng=rng)
    assert [len(own) for own in lists] == [len(labels) // num_clients] * num_clients
    everything = np.concatenate(lists)
    assert everything.dtype == np.int64
    assert len(np.unique(everything)) == len(everything)
    return np.stack([np.bincount(labels[own], minlength=num_classes) for own in lists])


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any),
    num_clients=st.integers(1, 25),
    alpha=st.one_of(st.floats(1e-3, 10), st.sampled_from([1e-300, 1e-3, 1e6])),
    seed=st.integers(0, 2**32),
)
def test_shares_are_equal_whatever_the_classes_sizes(
    sizes: list[int], num_clients: int, alpha: float, seed: int
) -> None:
    """No sample goes to two, and the remainder alone to none."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    counts = dealt(labels, num_clients, len(sizes), alpha, seed)
    assert (counts.sum(axis=0) <= sizes).all()
    assert sum(sizes) - counts.sum() == sum(sizes) % num_clients


def largest_remainders(mixture: np.ndarray, total: int) -> list[int]:
    """A seat for each whole part, and one more for those that are cut most."""
    seats = [int(share * total) for share in mixture]
    cut_off = [share * total - own for share, own in zip(mixture, seats, strict=True)]
    for label in sorted(range(len(seats)), key=lambda c: -cut_off[c])[: total - sum(seats)]:
        seats[label] += 1
    return seats


def slow_counts(labels: np.ndarray, clients: int, classes: int, alpha: float) -> np.ndarray:
    """The rule sample by class by client, in plain Python."""
    rng = np.random.default_rng(0)
    share = len(labels) // clients
    left = [int((labels == c).sum()) for c in range(classes)]
    mixtures = rng.dirichlet([alpha] * classes, size=clients)
    counts = np.zeros((clients, classes), dtype=int)
    for client in rng.permutation(clients):
        weights = list(mixtures[client])
        while missing := share - counts[client].sum():
            if sum(weights) == 0:
                weights = [float(n) for n in left]
            asked = largest_remainders(np.array(weights) / sum(weights), missing)
            for label in range(classes):
                taken = min(asked[label], left[label])
                counts[client, label] += taken
                left[label] -= taken
            weights = [d if n else 0.0 for d, n in zip(mixtures[client], left, strict=True)]
    return counts


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 0.5, 10.0, 1e6])
def test_each_has_its_mixture_and_what_is_short_is_refilled_as_the_rule_says(alpha: float) -> None:
    scarce = np.repeat(np.arange(7), [5, 300, 40, 0, 120, 80, 211])
    for labels, clients, classes in ((scarce, 12, 7), (BALANCED, 50, 10)):
        found = dealt(labels, clients, classes, alpha)
        assert np.array_equal(found, slow_counts(labels, clients, classes, alpha))


def test_the_smaller_alpha_the_fewer_classes() -> None:
    held = [
        np.mean([classes_held(cut(20, MIXTURE, alpha=alpha, seed=s)) for s in range(3)])
        for alpha in (100, 1, 0.1, 0.01)
    ]
    assert held == sorted(held, reverse=True)
    assert held[0] == 10
    assert held[-1] < 3


@pytest.mark.filterwarnings("error")  # a division 0/0 is a warning
@pytest.mark.parametrize("alpha", [1e-300, 1e-3])
def test_a_tiny_alpha_gives_one_class_until_classes_run_out(alpha: float) -> None:
    counts = dealt(BALANCED, 100, 10, alpha)
    assert np.median(counts.max(axis=1)) == 600
    assert (counts.sum(axis=0) == 6000).all()


def test_which_samples_of_a_class_a_client_gets_is_drawn() -> None:
    rng = np.random.default_rng(0)
    lists = mixture_lists(np.zeros(1000, dtype=np.int64), 2, 1, alpha=1.0, rng=rng)
    assert 450 < np.mean(lists[0]) < 550


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1e6])
def test_a_thousand_clients_and_a_hundred_classes(alpha: float) -> None:
    labels = np.random.default_rng(0).integers(0, 100, 50_000)
    assert (dealt(labels, 1000, 100, alpha).sum(axis=1) == 50).all()
