"""What is shown while a run goes on: a table on a terminal of 80 columns, else plain lines."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from cluster.run.progress import NAME_WIDTH, LiveTable, PlainLines
from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientProgress,
    Epoch,
    Event,
    Phase,
    Preparing,
    RoundEnd,
)
from fl.federation import Client
from fl.training.classifier import ClassifierConfig
from tests.cluster.run.following import MEMBERS, end, many, start

LONG = "resnet18-with-squeeze-and-excitation-of-my-own"


class Own(ClassifierConfig):
    """A record whose model has a long name, without a model behind it."""

    def __post_init__(self) -> None:
        """Checks nothing."""


def shown(table: LiveTable, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(table.render())
    return out.getvalue().splitlines()


def long_named(count: int) -> tuple[Client, ...]:
    return tuple(replace(c, training=Own(model=LONG)) for c in many(count))


def busy(members: tuple[Client, ...]) -> list[Event]:
    """Events after which clients are in every state, and every kind of bar is there."""
    a, b, c, d, e, *_ = members
    return [
        Phase(phase="local", status="start"),
        *(start(m.id) for m in (a, b, c, d, e)),
        end(a, took=123.4, at=100.0),
        replace(end(b), reused=True, bytes_up=12345 * 2**16),
        ClientProgress(client=c.id, done=150, of=200, loss=0.4125),
        AttemptFailed(client=d.id, attempt=2),
        ClientDropped(client=e.id),
        RoundEnd(
            round=99, rounds=200, took={"local": 900.0}, accuracy=0.9, bytes_up=0, bytes_down=0
        ),
        Phase(phase="distillation", status="start", seconds=100.0),
        Epoch(stage="distillation", epoch=100, epochs=200, loss=0.4, accuracy=0.9, seconds=9000.0),
    ]


def words(line: str) -> list[str]:
    """Without the bar, which may be shorter."""
    return re.sub("[━╸╺]", " ", line).split()


@pytest.mark.parametrize("count", [10, 100])
def test_no_word_is_broken_at_80_columns(count: int) -> None:
    members = long_named(count)
    table = LiveTable(members)
    for event in busy(members):
        table(event)
    lines = shown(table)
    wide = shown(table, width=300)
    assert [words(line) for line in lines] == [words(line) for line in wide]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for word in ("local", "rounds", "distillation", "loss 0.400  accuracy 0.9000"):
        assert word in text
    cut = [line for line in lines if "…" in line]
    assert all(LONG[: NAME_WIDTH - 1] + "…" in line for line in cut)
    if count == 10:
        assert len(cut) == count  # the long names alone
        assert [w for line in lines if "client" in line for w in line.split()] == [
            *("client", "role", "model", "samples", "state")
        ]
        for state in (
            *("123.4 s, 10.0 MiB", "from the store, 771.6 MiB", "epoch 150/200, loss 0.412"),
            *("attempt 2 failed", "left out", "waiting"),
        ):
            assert state in text
    else:
        assert "95 waiting, 1 training, 2 done, 2 failed; loss about 0.412" in text


def test_the_time_left_is_known_from_the_second_step_also_where_steps_take_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, now = LiveTable(MEMBERS), 0.0
    monkeypatch.setattr(table._bars, "get_time", lambda: now)
    for number in (1, 2):
        now = 120.0 * number
        counts = {"round": number, "rounds": 5, "bytes_up": 0, "bytes_down": 0}
        table(RoundEnd(**counts, took={"local": 120.0}, accuracy=0.5))
    assert "06:00" in "\n".join(shown(table))


def test_what_is_prepared_is_shown_until_clients_start() -> None:
    table = LiveTable(MEMBERS)
    table(Preparing(what="starting Ray"))
    assert any(line.startswith("starting Ray …") for line in shown(table))
    table(start(0))
    assert not any("Ray" in line for line in shown(table))


def test_a_role_or_model_cannot_bring_markup_into_the_table() -> None:
    strange = (replace(MEMBERS[0], role="[bold]x"),)
    assert "[bold]x" in "\n".join(shown(LiveTable(strange)))


def printed(lines_of: list[Event], count: int = 2) -> list[str]:
    out = io.StringIO()
    members = MEMBERS if count == 2 else many(count)
    lines = PlainLines(members, Console(file=out, width=80))
    for event in lines_of:
        lines(event)
    return out.getvalue().splitlines()


def test_what_is_prepared_is_named_and_clients_progress_makes_no_lines() -> None:
    told = [Preparing(what="starting Ray"), ClientProgress(client=0, done=1, of=2, loss=0.5)]
    assert [line.split("] ")[1] for line in printed(told)] == ["starting Ray …"]
