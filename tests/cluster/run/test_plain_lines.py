"""What is printed while a run goes on and output is no terminal."""

import io

from rich.console import Console

from cluster.run.progress import PlainLines
from fl.events import ClientProgress, Epoch, Event, Phase, Preparing, RoundEnd, RunStart
from tests.cluster.run.following import MEMBERS, many, two_maps


def printed(lines_of: list[Event], count: int = 2) -> list[str]:
    out = io.StringIO()
    members = MEMBERS if count == 2 else many(count)
    lines = PlainLines(members, Console(file=out, width=80))
    for event in lines_of:
        lines(event)
    return out.getvalue().splitlines()


def test_each_map_counts_its_own_clients() -> None:
    text = "\n".join(printed(two_maps()))
    assert text.count("(1 of 2 clients)") == 2
    assert text.count("(2 of 2 clients)") == 2
    assert "3 of 2" not in text


def test_what_is_prepared_is_named_and_clients_progress_makes_no_lines() -> None:
    told = [Preparing(what="starting Ray"), ClientProgress(client=0, done=1, of=2, loss=0.5)]
    assert [line.split("] ")[1] for line in printed(told)] == ["starting Ray …"]


def test_epochs_and_rounds_have_a_line_each() -> None:
    epochs = printed(
        [
            Phase(phase="fusion", status="start"),
            Epoch(stage="fusion", epoch=1, epochs=11, loss=0.5, accuracy=0.25, seconds=3.0),
        ]
    )
    assert epochs[-1].endswith("fusion epoch 1/11: loss 0.5000, accuracy 0.2500")
    rounds = printed(
        [
            RunStart(run="run", rounds=3),
            RoundEnd(
                round=1, rounds=3, took={"local": 200.0}, accuracy=0.25, bytes_up=0, bytes_down=0
            ),
        ]
    )
    assert rounds == ["[    0.0 s] round 1/3: accuracy 0.2500 (local 200.0 s)"]
