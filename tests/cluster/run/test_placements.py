"""Who ran where and when, from the events of a run."""

from dataclasses import asdict, replace

from cluster.run.runner import Placements
from cluster.scheduling.capacity import Bundle
from fl.events import AttemptFailed, ClientDropped, ClientEnd, ClientStart, RoundEnd
from fl.federation import Request
from tests.cluster.run.following import many

BUNDLE = Bundle(name="here", cpus=2, gpus=0, memory_bytes=0)


def end(client: int, seconds: float, *, reused: bool = False) -> ClientEnd:
    return ClientEnd(
        client=client,
        seconds=seconds,
        seconds_training=1.5,
        reused=reused,
        node="vm",
        assigned={"CPU": 1.0},
        peak_bytes=7,
    )


def start(client: int, seconds: float, memory_bytes: int = 0) -> ClientStart:
    requested = asdict(Request(cpus=1, gpus=0, memory_bytes=memory_bytes))
    return ClientStart(client=client, seconds=seconds, requested=requested)


def fail(client: int, seconds: float, reason: str) -> AttemptFailed:
    return AttemptFailed(client=client, attempt=1, seconds=seconds, reason=reason)


def end_of_round(seconds: float) -> RoundEnd:
    figures = {"round": 1, "rounds": 2, "accuracy": 0.5, "bytes_up": 0, "bytes_down": 0}
    return RoundEnd(seconds=seconds, took={}, **figures)


def test_a_client_that_failed_once_has_two_attempts_and_all_their_times() -> None:
    placements = Placements(many(1))
    for event in (start(0, 1.0, 10), fail(0, 2.0, "it died"), start(0, 3.0, 20), end(0, 5.0)):
        placements(event)
    (entry,) = placements.entries
    assert entry["attempts"] == 2
    assert entry["failures"] == [{"reason": "it died", "start": 1.0, "end": 2.0}]
    assert entry["requested"]["memory_bytes"] == 20
    assert placements.makespan([BUNDLE]) == {"seconds": 4.0, "lower_bound": 2.0}
    assert (entry["start"], entry["end"], entry["node"]) == (3.0, 5.0, "vm")
    assert (entry["assigned"], entry["peak_bytes"]) == ({"CPU": 1.0}, 7)


def test_makespan_stands_beside_its_lower_bound() -> None:
    placements = Placements(many(3))
    for client, (began, stop) in enumerate([(0.0, 4.0), (0.0, 2.0), (2.0, 5.0)]):
        placements(start(client, began))
        placements(end(client, stop))
    assert placements.makespan([BUNDLE]) == {"seconds": 5.0, "lower_bound": 4.5}


def test_clients_of_a_cohort_count_by_their_share_of_its_time() -> None:
    """Ten that take eight seconds together, in one process, are no eighty seconds of work."""
    placements = Placements(many(10))
    shared = asdict(Request(cpus=1, gpus=0, shared=True))
    for client in range(10):
        placements(ClientStart(client=client, seconds=0.0, requested=shared))
    for client in range(10):
        ended = replace(end(client, 8.0 + client / 100), seconds_training=0.8)
        placements(ended)
    assert placements.makespan([BUNDLE]) == {"seconds": 8.09, "lower_bound": 4.0}


def test_reused_clients_have_no_place_and_make_no_span() -> None:
    placements = Placements(many(1))
    placements(end(0, 0.1, reused=True))
    (entry,) = placements.entries
    assert (entry["reused"], entry["assigned"], entry["start"]) == (True, None, None)
    assert placements.makespan([BUNDLE]) is None


def test_a_dropped_client_is_marked_and_has_no_end() -> None:
    placements = Placements(many(2))
    dropped = ClientDropped(client=1, seconds=3.0, reason="it died")
    for event in (start(1, 1.0), fail(1, 2.0, "it died"), dropped, start(0, 1.0), end(0, 4.0)):
        placements(event)
    kept, left_out = placements.entries
    assert (kept["dropped"], left_out["dropped"], left_out["end"]) == (False, True, None)


def test_of_many_rounds_the_last_one_counts() -> None:
    placements = Placements(many(2))
    first = (start(0, 1.0), fail(0, 2.0, "it died"), start(0, 3.0), end(0, 5.0))
    for event in (*first, start(1, 1.0), end(1, 9.0), end_of_round(10.0)):
        placements(event)
    for event in (start(0, 11.0), end(0, 13.0), end_of_round(14.0)):
        placements(event)
    entry, _ = placements.entries
    assert (entry["attempts"], entry["failures"]) == (1, [])
    assert placements.makespan([BUNDLE]) == {"seconds": 2.0, "lower_bound": 2.0}
