"""A cell whose loss was still falling at the end of the server's training has no rank."""

import json
from math import exp
from pathlib import Path

from cluster.studies.cell import Cell
from cluster.studies.comparison import Figure, as_json, as_markdown, remarks
from cluster.studies.undertrained import late_share, loss_curve, still_falling

AT_REST = tuple(exp(-epoch / 4) for epoch in range(30))
FALLING = tuple(2.3 - 0.01 * epoch for epoch in range(30))


def figure(method: str, accuracy: float, losses: tuple[float, ...]) -> Figure:
    result = {"accuracy": accuracy, "protocol": "one-shot"}
    return Figure(Cell("row", method, ()), (result, result), (losses, losses))


def test_a_curve_at_rest_is_told_from_one_that_falls() -> None:
    assert still_falling([FALLING, FALLING])
    assert not still_falling([AT_REST])
    flat_with_noise = (3.0, 1.0, 1.1, 0.9, 1.05, 0.95, 1.1, 0.9, 1.0, 1.0)
    assert not still_falling([flat_with_noise])


def test_nothing_is_said_of_a_few_epochs_or_of_a_loss_that_rose() -> None:
    assert late_share([3, 2, 1]) is None
    assert late_share([1, 2, 3, 4, 5]) is None
    assert not still_falling([(3.0, 2.0), ()])
    assert not still_falling([])


def test_it_says_undertrained_in_place_of_a_rank_and_the_others_move_up() -> None:
    figures = [figure("a", 0.9, FALLING), figure("b", 0.8, AT_REST), figure("c", 0.7, ())]
    lines = as_markdown("table3", "small", [0, 1], figures).splitlines()
    ranks = [line.split(" | ")[-1].rstrip(" |") for line in lines if line.startswith("| row")]
    assert ranks == ["undertrained", "1", "2"]
    assert [c["undertrained"] for c in as_json("t", "small", [0], figures)["cells"]] == [
        *(True, False, False)
    ]


def test_the_remarks_say_what_it_means_and_compare_only_what_is_ranked() -> None:
    told = remarks([figure("a", 0.9, FALLING), figure("b", 0.9, AT_REST)])
    assert told[0].startswith("Undertrained: more than 10%")
    assert not any("do not separate" in line for line in told)
    assert not any("Undertrained" in line for line in remarks([figure("b", 0.9, AT_REST)]))


def test_the_curve_is_the_last_fits_and_each_epoch_counts_once(tmp_path: Path) -> None:
    def epoch(stage: str, number: int, loss: float) -> str:
        told = {"event": "epoch", "stage": stage, "epoch": number, "epochs": 2, "accuracy": 0.5}
        return json.dumps({**told, "loss": loss, "round": 1})

    lines = [epoch("distil-init", 1, 9), epoch("fusion", 1, 3), epoch("fusion", 2, 8), "{half"]
    lines += [epoch("fusion", 2, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert loss_curve(tmp_path) == (3, 2)
    assert loss_curve(tmp_path / "gone") == ()
