"""Who ran where and when, from the events of a run."""

from cluster.attendance import Attendance
from cluster.capacity import Room
from fl.federation import Client, Request
from fl.training.config import ClassifierConfig

ROOM = Room(name="here", cpus=2, gpus=0, memory_bytes=0)


def members(count: int) -> tuple[Client, ...]:
    return tuple(
        Client(
            id=k,
            role="classifier",
            training=ClassifierConfig(),
            num_samples=5,
            request=Request(cpus=1, gpus=0),
        )
        for k in range(count)
    )


def end(client: int, seconds: float, *, reused: bool = False) -> dict:
    place = {"node": "vm", "device_uuid": None, "assigned": {"CPU": 1.0}, "peak_bytes": 7}
    return {
        "event": "client_end",
        "client": client,
        "seconds": seconds,
        "seconds_training": 1.5,
        "reused": reused,
        **place,
    }


def test_a_client_that_failed_once_has_two_attempts_and_its_last_start() -> None:
    attendance = Attendance(members(1))
    for event in (
        {"event": "client_start", "client": 0, "seconds": 1.0},
        {"event": "client_failed", "client": 0, "seconds": 2.0, "reason": "its process died"},
        {"event": "client_start", "client": 0, "seconds": 3.0},
        end(0, 5.0),
    ):
        attendance(event)
    (entry,) = attendance.placements
    assert (entry["attempts"], entry["failures"]) == (2, ["its process died"])
    assert (entry["start"], entry["end"], entry["node"]) == (3.0, 5.0, "vm")
    assert (entry["assigned"], entry["peak_bytes"]) == ({"CPU": 1.0}, 7)


def test_makespan_stands_beside_its_lower_bound() -> None:
    attendance = Attendance(members(3))
    for client, (start, stop) in enumerate([(0.0, 4.0), (0.0, 2.0), (2.0, 5.0)]):
        attendance({"event": "client_start", "client": client, "seconds": start})
        attendance(end(client, stop))
    assert attendance.makespan([ROOM]) == {"seconds": 5.0, "lower_bound": 4.5}


def test_reused_clients_have_no_place_and_make_no_span() -> None:
    attendance = Attendance(members(1))
    attendance(end(0, 0.1, reused=True))
    (entry,) = attendance.placements
    assert (entry["reused"], entry["assigned"], entry["start"]) == (True, None, None)
    assert attendance.makespan([ROOM]) is None
