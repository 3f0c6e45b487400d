"""The order in which clients are offered a slot, beside a plain sort of all of them."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.capacity import Bundle, Need, need_of, spread_evenly
from cluster.scheduling.order import Entry, Queue
from fl.federation import Request
from tests.cluster.placing import ask, examples

BUNDLES = [Bundle(name="a", cpus=4, gpus=1, memory_bytes=100)]
RATES = {"m": 0.5, "n": 0.3, "none": 0.0}
asks = st.sampled_from([ask(), ask(gpus=0.5), ask(cpus=2, memory_bytes=30)])
kinds = st.tuples(asks, st.sampled_from(list(RATES)), st.integers(1, 6))


def entry(client: int, request: Request, model: str, work: int) -> Entry:
    return Entry(client, request, need_of(request, with_gpus=True), model, work)


def seconds(entry: Entry) -> float:
    return entry.work * RATES[entry.model]


def by_urgency(entries: list[Entry]) -> list[int]:
    """The rule, written plainly."""
    needed = spread_evenly(BUNDLES, [(e.need, seconds(e)) for e in entries])
    scarcest = max(range(3), key=needed.__getitem__)

    def rank(e: Entry) -> tuple[bool, float, float, int]:
        urgent = e.need[scarcest] > 0 or seconds(e) >= needed[scarcest]
        return not urgent, -seconds(e), -e.work if not RATES[e.model] else 0, e.client

    return [e.client for e in sorted(entries, key=rank)]


def queue_of(entries: list[Entry]) -> Queue:
    queue = Queue()
    for each in entries:
        queue.add(each)
    return queue


@examples
@given(st.lists(kinds, min_size=1, max_size=20), st.data())
def test_whoever_came_and_went_the_order_is_that_of_a_plain_sort(
    drawn: list[tuple[Request, str, int]], data: st.DataObject
) -> None:
    entries = [entry(k, *each) for k, each in enumerate(drawn)]
    queue, there = Queue(), dict[int, Entry]()
    for each in entries:
        queue.add(each)
        there[each.client] = each
        if len(there) > 1 and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(there)))
            queue.remove(gone)
            del there[gone]
    found = [each.client for each in queue.walk(RATES.__getitem__, BUNDLES, 0.0, {})]
    assert len(queue) == len(there)
    assert sorted(found) == sorted(there)
    # Equally long ones of a model without a rate may stand by their work.
    assert found == by_urgency(list(there.values())) or any(not seconds(e) for e in there.values())


def test_those_that_are_passed_over_are_not_given() -> None:
    narrow = [entry(k, ask(), "m", work) for k, work in enumerate([9, 7, 5, 3])]
    wide = [entry(k, ask(cpus=2), "m", work) for k, work in ((4, 8), (5, 6), (6, 4))]
    queue = queue_of([*narrow, *wide])
    latest: dict[Need, float] = {}
    walk = queue.walk(lambda model: 1.0, BUNDLES, 10.0, latest)
    assert next(walk).client == 0
    latest[narrow[0].need] = 15.0  # 1 would end at 17, 2 at 15
    assert [next(walk).client for _ in range(3)] == [4, 5, 2]
    latest[wide[0].need] = -inf
    assert [each.client for each in walk] == [3]
    assert len(queue) == 7
