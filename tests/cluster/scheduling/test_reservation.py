"""What the longest waiting client is promised, and that whoever passes it breaks no promise."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.capacity import Bundle, FreeCapacity, Need, Slot, need_of
from cluster.scheduling.placement import Occupant, Placement, Reservation, reserve
from tests.cluster.placing import (
    Work,
    ask,
    bundle,
    bundles_and_clients,
    cores,
    examples,
    machine,
    seconds,
    started,
)

A, B = Slot(bundle="a", gpu=None), Slot(bundle="b", gpu=None)


def need(cpus: float, gpus: float = 0) -> Need:
    return need_of(ask(cpus, gpus), with_gpus=True)


def occupant(client: int, cpus: float, end: float, slot: Slot = A) -> Occupant:
    gpus = 0 if slot.gpu is None else 1
    return Occupant(client=client, need=need(cpus, gpus), slot=slot, end=end)


def left(bundle: Bundle, occupants: Sequence[Occupant]) -> FreeCapacity:
    """What those who run leave of a bundle."""
    free = FreeCapacity(bundle)
    for other in occupants:
        if other.slot.bundle == bundle.name:
            free.take(other.need, other.slot)
    return free


def reserved(
    cpus: float, occupants: Sequence[Occupant], *bundles: Bundle, gpus: float = 0
) -> Reservation | None:
    """What client 9 is promised at time 0."""
    all_free = [left(each, occupants) for each in bundles]
    return reserve(9, need(cpus, gpus), all_free, occupants, now=0.0)


def test_the_slot_that_is_free_soonest_is_promised() -> None:
    running = [occupant(0, 2, end=30), occupant(1, 2, end=20, slot=B), occupant(2, 1, end=25)]
    promise = reserved(2, running, bundle("a", cpus=3), bundle("b", cpus=2))
    assert promise is not None
    assert (promise.slot, promise.moment, [*promise.awaited]) == (B, 20, [1])


def test_a_share_waits_for_one_gpu_alone() -> None:
    first, second = (Slot(bundle="a", gpu=gpu) for gpu in (0, 1))
    running = [occupant(0, 1, end=50, slot=first), occupant(1, 1, end=40, slot=second)]
    promise = reserved(1, running, bundle(cpus=4, gpus=2), gpus=0.5)
    assert promise is not None
    assert (promise.slot, [*promise.awaited]) == (second, [1])


@pytest.mark.parametrize(
    ("cpus", "end", "slot", "admitted"),
    [
        (1, 10, A, True),  # gone when the moment comes
        (1, 11, A, True),  # there is enough for both
        (2, 11, A, False),
        (2, 99, B, True),  # elsewhere
    ],
)
def test_who_passes_is_gone_by_the_moment_or_leaves_enough(
    cpus: float, end: float, slot: Slot, admitted: bool
) -> None:
    running = [occupant(0, 3, end=10)]
    here = bundle("a", cpus=5)
    promise = reserved(4, running, here)
    assert promise is not None
    assert promise.admits(occupant(7, cpus, end, slot), left(here, running)) is admitted


def test_who_has_left_is_not_counted_twice() -> None:
    """Its cores are free already, and another has them."""
    running = [occupant(0, 2, end=10), occupant(1, 2, end=12)]
    here = bundle("a", cpus=5)
    promise = reserved(5, running, here)
    assert promise is not None
    promise.awaited.pop(0)
    late = occupant(7, 1, end=99)
    assert not promise.admits(late, left(here, running[1:]))
    assert [*promise.awaited] == [1]


@examples
@given(st.lists(st.tuples(st.integers(1, 3), seconds), max_size=6), st.integers(1, 6))
def test_once_those_awaited_have_left_it_starts(others: list[tuple[int, float]], cpus: int) -> None:
    here = bundle("a", cpus=6)
    running: list[Occupant] = []
    for client, (width, end) in enumerate(others):
        if left(here, running).fits(need(width), A):
            running.append(occupant(client, width, end))
    promise = reserved(cpus, running, here)
    assert promise is not None
    stay = [other for other in running if other.client not in promise.awaited]
    assert left(here, stay).fits(promise.need, promise.slot)
    assert promise.moment == max([0.0, *(other.end for other in promise.awaited.values())])
    assert all(other.end >= promise.moment for other in stay)


@examples
@given(bundles_and_clients())
def test_who_is_passed_waits_only_for_those_who_started_by_the_promised_moment(
    case: tuple[list[Bundle], dict[int, Work]],
) -> None:
    bundles, clients = case
    run = machine(bundles, clients)
    promises: dict[int, float] = {}
    for first, client in run.steps():
        if client != first and first not in promises:
            rate = run.placement.rates["m"]
            others = [c for c in run.running if c != client]
            ends = [run.stays[c].start + clients[c].expected * rate for c in others]
            promises[first] = max([run.now, *ends])
    for client, promise in promises.items():
        ends = [stay.end for c, stay in run.stays.items() if stay.start <= promise and c != client]
        assert run.stays[client].start <= max([promise, *ends]) + 1e-9


def test_a_wide_client_is_not_starved_by_a_stream_of_narrow_ones() -> None:
    # Two narrow ones overlap at any time: were all let past, the wide one would come last.
    narrow = [(1, 9.9 - 0.1 * k) for k in range(40)]
    run = machine([bundle(cpus=2)], cores((1, 11), (2, 10), *narrow))
    run.run()
    assert run.stays[1].start == 11
    assert run.stays[2].start == 0, "gone before the wide one can start"


def test_what_the_longest_leaves_free_is_used_meanwhile() -> None:
    run = machine([bundle(cpus=5)], cores((3, 10), (3, 9), (2, 30)))
    run.run()
    assert [run.stays[c].start for c in range(3)] == [0, 10, 0]
    run = machine([bundle(cpus=5)], cores((3, 10), (3, 9), (2, 8), (2, 7)))
    run.run()
    assert [run.stays[c].start for c in range(4)] == [0, 10, 0, 8]


def test_a_reservation_is_gone_with_its_bundle() -> None:
    placement = Placement([bundle("a", cpus=2), bundle("b", cpus=2)])
    for client, cpus in enumerate([2, 1, 2, 1]):
        placement.add(client, ask(cpus), "m", 10 - client)
    assert started(placement) == [0, 1, 3]
    placement.drop_bundle("a")
    placement.finish(1, 1)
    placement.finish(3, 1)
    assert started(placement) == [2]
