"""Who starts when and where: never too many, nobody twice, nobody left waiting."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.capacity import Bundle, Slot, lower_bound
from cluster.scheduling.placement import Placement
from fl.errors import UserError
from fl.federation import Request
from tests.cluster.placing import (
    MEMORY,
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


@examples
@given(bundles_and_clients(), st.sampled_from([None, 1, 3]))
def test_everyone_runs_once_and_no_bundle_is_overbooked(
    case: tuple[list[Bundle], dict[int, Work]], most: int | None
) -> None:
    bundles, clients = case
    run = machine(bundles, clients, most=most)
    for _ in run.steps():
        assert most is None or len(run.running) <= most
    assert run.stays.keys() == clients.keys()
    makespan = max(stay.end for stay in run.stays.values())
    jobs = [(work.request, work.seconds) for work in clients.values()]
    assert makespan >= lower_bound(bundles, jobs) * (1 - 1e-9)


@examples
@given(bundles_and_clients(), st.randoms(use_true_random=False))
def test_the_order_of_adding_does_not_matter(
    case: tuple[list[Bundle], dict[int, Work]], random
) -> None:
    bundles, clients = case
    order = list(clients)
    random.shuffle(order)
    run, other = machine(bundles, clients), machine(bundles, {c: clients[c] for c in order})
    run.run()
    other.run()
    assert run.stays == other.stays


@examples
@given(st.integers(2, 16), st.data())
def test_on_one_resource_it_takes_at_most_twice_the_bound(total: int, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(st.integers(1, total), seconds), min_size=1, max_size=14))
    clients = cores(*pairs)
    jobs = [(work.request, work.seconds) for work in clients.values()]
    bound = lower_bound([bundle(cpus=total)], jobs)
    assert machine([bundle(cpus=total)], clients).run() <= 2 * bound * (1 + 1e-9)


@examples
@given(st.integers(1, 3), st.lists(seconds, min_size=1, max_size=6))
def test_on_equal_slots_it_keeps_longest_first_within_its_known_bound(
    slots: int, lengths: list[float]
) -> None:
    makespan = machine([bundle(cpus=slots)], cores(*((1, s) for s in lengths))).run()
    best = min(
        max(sum(s for s, at in zip(lengths, deal, strict=True) if at == slot) for slot in deal)
        for deal in product(range(slots), repeat=len(lengths))
    )
    assert makespan <= (4 / 3 - 1 / (3 * slots)) * best * (1 + 1e-9)


def test_clients_that_want_no_gpu_do_not_keep_the_cores_from_those_that_do() -> None:
    # The GPU has 40 s of work, the cores 25: the long clients on cores can wait, or nearly all.
    placement = Placement([bundle(cpus=4, gpus=1)])
    for client, (gpus, work) in enumerate([(0, 15)] * 4 + [(1, 10)] * 4):
        placement.add(client, ask(gpus=gpus), "m", work)
    assert [entry.client for entry in placement.queue()] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert started(placement) == [4, 0, 1, 2]
    placement.add(9, ask(), "m", 50)
    waiting = [entry.client for entry in placement.queue()]
    assert waiting == [5, 9, 6, 7, 3], "who alone takes longer is second"


def test_ten_tenths_fill_a_gpu_and_a_share_never_spans_two() -> None:
    for share, clients, most in ((0.1, 25, 20), (0.6, 3, 2)):
        placement = Placement([bundle(cpus=64, gpus=2)])
        for client in range(clients):
            placement.add(client, ask(gpus=share), "m", 1)
        assert len(started(placement)) == most


def test_a_share_takes_the_fullest_gpu_that_has_capacity() -> None:
    placement = Placement([bundle(cpus=8, gpus=3)])
    for client, share in enumerate([0.7, 0.5, 0.3, 0.8, 0.5]):
        placement.add(client, ask(gpus=share), "m", 10 - client)
    slots = [cohort[1] for cohort in iter(placement.start, None)]
    assert [s.gpu for s in slots] == [0, 1, 0, 2, 1]


def test_clients_without_a_share_leave_the_gpu_nodes_alone() -> None:
    bundles = [bundle("gpu", cpus=8, gpus=1), bundle("small", cpus=2), bundle("large", cpus=3)]
    placement = Placement(bundles)
    for client in range(6):
        placement.add(client, ask(), "m", 1)
    slots = [cohort[1] for cohort in iter(placement.start, None)]
    assert [s.bundle for s in slots] == ["large", "small", "large", "small", "large", "gpu"]
    assert {s.gpu for s in slots} == {None}


def test_without_gpus_no_share_is_asked_for() -> None:
    placement = Placement([bundle(cpus=1)])
    placement.add(0, ask(gpus=0.5), "m", 1)
    assert placement.start() == (0, Slot(bundle="a", gpu=None))


def test_estimates_start_from_the_prior_and_follow_what_is_measured() -> None:
    placement = Placement([bundle()], rates={"vgg9": 2.0, "cnn": 1.0})
    for client, (model, work) in enumerate(
        [("vgg9", 10), ("vgg9", 30), ("cnn", 10), ("cvae", 10), ("vgg9", 5)]
    ):
        placement.add(client, ask(), model, work)
    assert started(placement) == [1, 0, 3, 2], "60, 20, 15, 10 and 10 s"
    placement.finish(0, 50)
    assert placement.rates["vgg9"] == 5
    placement.finish(1, 30)
    assert placement.rates["vgg9"] == 2, "80 s for 40 units of work"
    placement.finish(2, None)
    assert placement.rates["cnn"] == 1, "a failure teaches nothing"
    placement.finish(3, 1, trained=False)
    assert "cvae" not in placement.rates, "nor does a job that trained nobody"


def test_unknown_models_are_ranked_by_work() -> None:
    placement = Placement([bundle(cpus=1)])
    for client, work in enumerate([5, 7, 6, 7]):
        placement.add(client, ask(), f"model {client}", work)
    order = []
    while cohort := placement.start():
        order.append(cohort[0])
        placement.finish(cohort[0], None)
    assert order == [1, 3, 2, 0]


def test_a_lost_bundle_returns_those_who_ran_there_and_starts_no_one_more() -> None:
    placement = Placement([bundle("a", cpus=2), bundle("b", cpus=2)])
    for client in range(6):
        placement.add(client, ask(), "m", 1)
    slots = dict(iter(placement.start, None))
    there, running = (sorted(c for c, s in slots.items() if s.bundle == name) for name in "ab")
    assert placement.drop_bundle("a") == there
    assert len(there) == 2
    assert placement.start() is None, "b is full"
    for client in there:
        placement.add(client, ask(), "m", 1)
    while running:
        placement.finish(running.pop(), 1)
        while cohort := placement.start():
            assert cohort[1].bundle == "b"
            running.append(cohort[0])
    assert not placement.any_waiting


def test_a_client_that_failed_may_come_back_asking_for_more() -> None:
    placement = Placement([bundle(gpus=1)])
    placement.add(0, ask(gpus=0.2), "m", 1)
    assert started(placement) == [0]
    with pytest.raises(ValueError, match="client 0 is waiting or running already"):
        placement.add(0, ask(gpus=0.2), "m", 1)
    placement.finish(0, None)
    placement.add(0, ask(gpus=1), "m", 1)
    assert started(placement) == [0]


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (ask(cpus=5), "asks for 5 cores"),
        (ask(gpus=1.5), "1.5 of a GPU"),
        (ask(memory_bytes=MEMORY + 1), "101 B of memory"),
        (ask(cpus=3, gpus=0.5), "3 cores, 0.5 of a GPU"),
    ],
)
def test_what_fits_no_bundle_is_refused_with_what_exists(request_: Request, what: str) -> None:
    placement = Placement([bundle("a", cpus=2, gpus=2), bundle("b", cpus=4)])
    with pytest.raises(UserError, match=what) as refused:
        placement.add(7, request_, "vgg9", 1)
    assert "client 7 (vgg9)" in str(refused.value)
    assert "2 cores, 2 GPUs and 100 B of memory; 4 cores, 0 GPUs" in str(refused.value)


def test_who_no_longer_fits_anywhere_is_refused_once_the_others_are_done() -> None:
    placement = Placement([bundle("a", gpus=1), bundle("b", cpus=1)])
    placement.add(0, ask(gpus=1), "m", 10)
    placement.add(1, ask(gpus=1), "m", 9)
    placement.add(2, ask(), "m", 8)
    placement.add(3, ask(), "m", 7)
    assert started(placement) == [0, 2, 3]
    assert placement.drop_bundle("a") == [0, 3]
    placement.add(3, ask(), "m", 7)
    placement.finish(2, 1)
    assert started(placement) == [3]
    placement.finish(3, 1)
    with pytest.raises(UserError, match=r"client 1 .* fits nowhere"):
        placement.start()
