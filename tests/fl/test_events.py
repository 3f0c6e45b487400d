"""Events: timed, told to every listener, and read back from their lines."""

import json

import pytest

import fl.events
from fl.events import (
    KINDS,
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    ClientProgress,
    ClientStart,
    Epoch,
    Event,
    Events,
    Phase,
    Preparing,
    RankFailure,
    RoundEnd,
    RoundsResumed,
    RunEnd,
    RunStart,
    as_line,
    parse_events,
)


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
    events.emit(ClientEnd(client=3, stats={"loss": 0.5}))
    assert heard[0] == [ClientEnd(client=3, seconds=1.235, stats={"loss": 0.5})]
    assert heard[1] == heard[0]
    assert events.elapsed == pytest.approx(1.23456)


def test_a_phase_tells_its_start_and_its_end(clock: Clock) -> None:
    heard: list[Event] = []
    events = Events(heard.append)
    with events.phase("local"):
        clock.now += 2
        events.emit(RunEnd(accuracy=0.5))
    assert [event.to_json() for event in heard] == [
        {"event": "phase", "seconds": 0, "phase": "local", "status": "start", "took": None},
        {"event": "run_end", "seconds": 2, "accuracy": 0.5},
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


def test_a_phase_within_a_phase_is_no_part_of_it(clock: Clock) -> None:
    events = Events()
    with events.phase("outer"):
        clock.now += 1
        for _ in range(2):
            with events.phase("inner"):
                clock.now += 2
                with events.phase("innermost"):
                    clock.now += 4
        clock.now += 0.5
    assert events.phase_seconds == {"innermost": 8, "inner": 4, "outer": 1.5}


EVENTS = [
    RunStart(run="a", rounds=3, seconds=1.5),
    Preparing(what="starting Ray"),
    Phase(phase="local", status="end", took=0.5),
    ClientProgress(client=1, unit="step", done=3, of=20, loss=0.5),
    ClientStart(client=1, attempt=2, requested={"cpus": 1.0}),
    ClientEnd(client=1, role="head", bytes_up=7, losses=[0.7, 0.5], stats={"epochs": 3}),
    AttemptFailed(client=1, attempt=1, reason="it died"),
    ClientDropped(client=1, reason="it died"),
    Epoch(stage="fusion", round=2, epoch=1, epochs=3, loss=0.5, accuracy=0.25),
    RoundEnd(rounds=3, took={"local": 1.0}, round=1, accuracy=0.5, bytes_up=1, bytes_down=2),
    RoundsResumed(round=1, rounds=3),
    RankFailure(rank=1, attempt=1, reason="died"),
    RunEnd(accuracy=0.5),
]


def test_every_event_is_read_back_as_it_was_written() -> None:
    assert {type(event) for event in EVENTS} == set(KINDS.values())
    lines = [as_line(event) for event in EVENTS]
    assert list(parse_events(lines)) == EVENTS


def test_what_is_no_event_is_left_out_and_what_is_new_in_one_is_passed_over() -> None:
    whole = json.dumps(RunEnd(accuracy=0.5).to_json())
    others = ['{"event": "run_end"}', '{"event": "unheard of"}', "17", "{}", whole[:9], ""]
    newer = whole.replace("{", '{"colour": "red", ', 1)
    assert list(parse_events([whole, *others, newer])) == [RunEnd(accuracy=0.5)] * 2


def test_half_a_line_is_no_event_and_a_checksum_of_an_older_version_is_no_figure() -> None:
    line = as_line(ClientEnd(client=1, stats={"train_loss": 0.5}))
    assert list(parse_events([line[:-3], "half of it " + line])) == []
    older = line.replace("}\n", ', "crc": 7}\n')
    assert list(parse_events([older])) == list(parse_events([line]))
