"""What is printed while a run goes on and output is no terminal."""

import io

from rich.console import Console

from cluster.run.plain_lines import PlainLines
from cluster.run.time_left import TimeLeft
from fl.events import ClientProgress, Epoch, Event, Phase, Preparing, RoundEnd, RunStart
from tests.cluster.run.following import MEMBERS, end, many, start, two_maps


def printed(lines_of: list[Event], count: int = 2, left: TimeLeft | None = None) -> list[str]:
    out = io.StringIO()
    members = MEMBERS if count == 2 else many(count)
    lines = PlainLines(members, Console(file=out, width=80), left)
    for event in lines_of:
        lines(event)
    return out.getvalue().splitlines()


def test_each_map_counts_its_own_clients() -> None:
    text = "\n".join(printed(two_maps()))
    assert text.count("(1 of 2 clients)") == 2
    assert text.count("(2 of 2 clients)") == 2
    assert "3 of 2" not in text


def test_a_client_that_ends_tells_how_long_the_others_are_expected_to_take() -> None:
    members = many(10)
    told: list[Event] = [start(0, 0.0), end(members[0], 5.0, 5.0), start(1, 5.0)]
    assert printed(told, 10)[0].endswith("(1 of 10 clients, about 45 s left)")


def test_what_is_prepared_is_named_and_clients_progress_makes_no_lines() -> None:
    told = [Preparing(what="starting Ray"), ClientProgress(client=0, done=1, of=2, loss=0.5)]
    assert [line.split("] ")[1] for line in printed(told)] == ["starting Ray …"]


def test_epochs_and_rounds_tell_what_is_left() -> None:
    epochs = printed(
        [
            Phase(phase="fusion", status="start"),
            Epoch(stage="fusion", epoch=1, epochs=11, loss=0.5, accuracy=0.25, seconds=3.0),
        ]
    )
    assert epochs[-1].endswith("accuracy 0.2500, about 30 s left")
    rounds = printed(
        [
            RunStart(run="run", rounds=3),
            RoundEnd(
                round=1, rounds=3, took={"local": 200.0}, accuracy=0.25, bytes_up=0, bytes_down=0
            ),
        ]
    )
    assert rounds == ["[    0.0 s] round 1/3: accuracy 0.2500 (local 200.0 s), about 7 min left"]
