import pytest

import fl.events
from fl.events import Event, Events


class Clock:
    """Time that passes when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(fl.events.time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_every_listener_hears_every_event_stamped_with_the_time(clock: Clock) -> None:
    heard: tuple[list[Event], list[Event]] = ([], [])
    events = Events(heard[0].append, heard[1].append)
    clock.now += 1.23456
    events.emit("client_end", client=3, loss=0.5)
    assert heard[0] == [{"event": "client_end", "seconds": 1.235, "client": 3, "loss": 0.5}]
    assert heard[1] == heard[0]
    assert events.elapsed == pytest.approx(1.23456)


def test_events_need_no_listener() -> None:
    events = Events()
    events.emit("run_start", run="quiet")
    with events.phase("local"):
        pass
    assert set(events.phase_seconds) == {"local"}


def test_a_phase_tells_its_start_and_its_end(clock: Clock) -> None:
    heard: list[Event] = []
    events = Events(heard.append)
    with events.phase("local"):
        clock.now += 2
        events.emit("client_start", client=0)
    assert heard == [
        {"event": "phase", "seconds": 0, "phase": "local", "status": "start"},
        {"event": "client_start", "seconds": 2, "client": 0},
        {"event": "phase", "seconds": 2, "phase": "local", "status": "end", "took": 2},
    ]


def test_a_phase_entered_again_adds_to_its_time(clock: Clock) -> None:
    events = Events()
    for seconds in (1.0, 0.5):
        with events.phase("fusion"):
            clock.now += seconds
        clock.now += 10  # between the phases
    with events.phase("filter"):
        clock.now += 0.25
    assert events.phase_seconds == {"fusion": 1.5, "filter": 0.25}


def test_a_phase_within_a_phase_counts_for_both(clock: Clock) -> None:
    events = Events()
    with events.phase("outer"):
        clock.now += 1
        with events.phase("inner"):
            clock.now += 2
    assert events.phase_seconds == {"inner": 2, "outer": 3}
