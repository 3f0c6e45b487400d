"""Our figures beside the paper's: ranks, differences, and what the seeds cannot tell."""

import json
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from cluster.studies.cells import Cell
from cluster.studies.comparison import (
    Figure,
    Published,
    as_json,
    as_markdown,
    client_curves,
    loss_curve,
    remarks,
    rising,
    still_falling,
    untrained_clients,
)
from cluster.studies.exhibits import Exhibit, over_time


def figure(method: str, *accuracies: float, row: str = "row", paper: float | None = 90) -> Figure:
    results = [{"accuracy": accuracy, "protocol": "one-shot"} for accuracy in accuracies]
    printed = None if paper is None else Published(paper, 1.0)
    return Figure(Cell(row, method, (), printed), tuple(results))


def test_the_table_stands_beside_the_papers() -> None:
    fedavg, dense = (0.80, 0.84), (0.90, 0.92)
    figures = [figure("fedavg", *fedavg, paper=85.91), figure("dense", *dense, paper=90.51)]
    lines = as_markdown("table3", "small", [0, 1], figures).splitlines()
    assert "| row | fedavg | 82.00 ± 2.83 | 85.91 ± 1.00 | -3.91 | 2 | 2 |" in lines
    assert "| row | dense | 91.00 ± 1.41 | 90.51 ± 1.00 | +0.49 | 1 | 1 |" in lines
    told = as_json("table3", "small", [0, 1], figures)["cells"][0]
    assert told["accuracies"] == pytest.approx([80, 84])
    assert (told["paper_mean"], told["mean"]) == (85.91, pytest.approx(82))


@pytest.mark.parametrize("split", ["test", "validation"])
def test_clients_own_models_are_not_ranked_with_global_ones_on_the_same_split(split: str) -> None:
    about = {"accuracy": 0.8, "scored_on": split, "protocol": "rounds"}
    whole, own = (
        Figure(Cell("row", name, ()), (about | more,))
        for name, more in (("fedavg", {}), ("fedper", {"ua": 0.9}))
    )
    text = as_markdown("t", None, [0], [whole, own])
    assert f"| row | fedper | 90.00 | {split}, by client, UA |" in text
    assert "| Row | Method | Accuracy, % | Scored on |" in text
    assert "scored on different samples, so they are not ranked" in text
    assert "Rank" not in text
    text = as_markdown("t", None, [0, 1], [whole, replace(own, failed=("seed 1: why",))])
    assert f"| row | fedper | 90.00 | {split}, by client, UA, failed |" in text
    assert "Failed: row-fedper, seed 1: why" in text
    assert "not ranked" in text
    assert "UA is the mean over clients and the last ten rounds" in text
    values = replace(own, results=(about | {"ua": 0.7, "metric": "R2"},))
    assert "| Row | Method | UA of R², % |" in as_markdown("t", None, [0], [values])


def test_methods_that_the_seeds_do_not_separate_are_named() -> None:
    near = [figure("a", 0.90, 0.92, 0.91), figure("b", 0.91, 0.90, 0.915)]
    far = [figure("a", 0.90, 0.92, 0.91), figure("b", 0.70, 0.725, 0.705)]
    (remark,) = remarks(near)
    assert "3 seeds do not separate" in remark
    assert remarks(far) == ["The seeds separate all neighbours in every row (paired t-test, 5 %)."]
    assert remarks([figure("a", 0.9), figure("b", 0.8)])[0].startswith("One seed")


def test_rows_that_are_equal_versions_that_differ_and_held_out_samples_are_told() -> None:
    def of(row: str, version: str, bytes_up: int) -> Figure:
        about = {"accuracy": 0.8, "accuracy_curve": [0.5, 0.8], "scored_on": "validation"}
        about |= {"protocol": "rounds", "versions": {"onefold": version}, "bytes_up": bytes_up}
        return Figure(Cell(row, "fedavg", ()), (about, about | {"accuracy_curve": [0.4, 0.8]}))

    figures = [of("alpha0.1", "0.1", 9), of("alpha0.5", "0.2", 9), of("other", "0.2", 8)]
    text = as_markdown("t", None, [0, 1], figures)
    assert "Equal to the digit: alpha0.1-fedavg, alpha0.5-fedavg. What" in text
    assert "The runs are of different versions: onefold 0.1 and 0.2." in text
    assert "| Row | Method | Accuracy, % | Scored on | Rank |" in text
    told = as_json("t", None, [0, 1], figures)["cells"]
    assert [cell["scored_on"] for cell in told] == 3 * ["validation"]
    assert not any("Equal" in line or "versions" in line for line in remarks(figures[1:]))


def test_a_teachers_accuracy_stands_beside_what_learned_from_it() -> None:
    taught = figure("dense", 0.7, 0.8, paper=None)
    results = tuple({**r, "teacher_accuracy": 0.9} for r in taught.results)
    figures = [figure("a", 0.6, 0.6, paper=None), replace(taught, results=results)]
    lines = as_markdown("t", "small", [0, 1], figures).splitlines()
    assert "| Row | Method | Accuracy, % | Its teacher | Rank |" in lines
    assert "| row | dense | 75.00 ± 7.07 | 90.00 ± 0.00 | 1 |" in lines
    assert "| row | a | 60.00 ± 0.00 | - | 2 |" in lines


def test_rows_are_ranked_each_by_itself() -> None:
    figures = [figure("a", 0.1, 0.1), figure("b", 0.9, 0.9, row="other")]
    table = as_markdown("table3", "small", [0, 1], figures)
    assert table.count("| - | - |") == 2  # a row of one has no rank: rows are not compared
    assert "separate" not in table  # a row of one has no neighbours


def test_what_the_paper_does_not_print_has_neither_difference_nor_rank() -> None:
    silent = figure("b", 0.5, paper=None)
    lines = as_markdown("table3", "small", [0], [figure("a", 0.25), silent])
    assert "| row | b | 50.00 | - | - | 1 | - |" in lines
    assert "| row | a | 25.00 | 90.00 ± 1.00 | -65.00 | 2 | 1 |" in lines
    (cell,) = as_json("table3", "small", [0], [silent])["cells"]
    assert (cell["paper_mean"], cell["paper_spread"], cell["spread"]) == (None, None, None)


AT_REST = tuple(exp(-epoch / 4) for epoch in range(30))
FALLING = tuple(2.3 - 0.01 * epoch for epoch in range(30))


def trained(method: str, accuracy: float, losses: tuple[float, ...]) -> Figure:
    return replace(figure(method, accuracy, accuracy, paper=None), losses=(losses, losses))


def test_a_curve_at_rest_is_told_from_one_that_falls() -> None:
    assert still_falling([FALLING, FALLING])
    assert not still_falling([AT_REST])
    flat_with_noise = (3.0, 1.0, 1.1, 0.9, 1.05, 0.95, 1.1, 0.9, 1.0, 1.0)
    assert not still_falling([flat_with_noise])


def test_it_says_undertrained_in_place_of_a_rank_and_the_others_move_up() -> None:
    figures = [trained("a", 0.9, FALLING), trained("b", 0.8, AT_REST), trained("c", 0.7, ())]
    lines = as_markdown("table3", "small", [0, 1], figures).splitlines()
    ranks = [line.split(" | ")[-1].rstrip(" |") for line in lines if line.startswith("| row")]
    assert ranks == ["undertrained", "1", "2"]
    assert [c["undertrained"] for c in as_json("t", "small", [0], figures)["cells"]] == [
        *(True, False, False)
    ]


def test_the_remarks_say_what_it_means_and_compare_only_what_is_ranked() -> None:
    told = remarks([trained("a", 0.9, FALLING), trained("b", 0.9, AT_REST)])
    assert told[0].startswith("Undertrained: more than 10%")
    assert not any("do not separate" in line for line in told)
    assert not any("Undertrained" in line for line in remarks([trained("b", 0.9, AT_REST)]))


def test_the_curve_is_the_last_fits_and_each_epoch_counts_once(tmp_path: Path) -> None:
    def epoch(stage: str, number: int, loss: float) -> str:
        told = {"event": "epoch", "stage": stage, "epoch": number, "epochs": 2, "accuracy": 0.5}
        return json.dumps({**told, "loss": loss, "round": 1})

    lines = [epoch("distil-init", 1, 9), epoch("fusion", 1, 3), epoch("fusion", 2, 8), "{half"]
    lines += [epoch("fusion", 2, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert loss_curve(tmp_path) == (3, 2)
    assert loss_curve(tmp_path / "gone") == ()


LEARNED = [0.1, 0.5, 0.7, 0.8, 0.85, 0.87, 0.88, 0.885, 0.888, 0.89]
LATE = [0.1, 0.1, 0.11, 0.1, 0.12, 0.1, 0.15, 0.2, 0.4, 0.7]


def test_accuracy_that_still_rises_by_rounds_is_marked_beside_the_rank() -> None:
    """LeNet after 442 steps had 26 %, and 91 % later: its loss had hardly begun to fall."""
    assert rising([LATE, LEARNED])
    assert not rising([LEARNED])
    assert not rising([[0.1, 0.9], []])
    assert not rising([[0.1, 0.1, 0.5, 0.8, 0.8], [0.1, 0.2, 0.3, 0.7, 0.79]])  # 0 and 0.13
    results = [
        {"accuracy": c[-1], "protocol": "rounds", "rounds": 10, "accuracy_curve": c}
        for c in (LEARNED, LATE)
    ]
    figures = [
        Figure(Cell("row", name, ()), (result, result))
        for name, result in zip("ab", results, strict=True)
    ]
    lines = as_markdown("t", "small", [0, 1], figures).splitlines()
    ranks = [line.split(" | ")[-1].rstrip(" |") for line in lines if line.startswith("| row")]
    assert ranks == ["1", "2 (rising)"]
    assert any(line.startswith("Rising: accuracy rose") for line in lines)
    assert not any(line.startswith("Clients:") for line in lines)


def test_clients_that_have_not_learned_their_samples_are_marked(tmp_path: Path) -> None:
    at_rest, falling = [2.3, 0.5, 0.1, 0.01, 0.01], [2.3, 2.0, 1.7, 1.4, 1.0]
    hardly = [2.3, 2.29, 2.28, 2.28, 2.28]
    assert untrained_clients([{0: at_rest, 1: falling}])
    assert untrained_clients([{0: hardly, 1: hardly, 2: at_rest}])
    assert not untrained_clients([{0: at_rest, 1: at_rest, 2: falling}])
    assert not untrained_clients([{0: [2.3, 2.2]}, {}])
    ends = [(0, 1, falling), (1, 1, at_rest), (0, 2, at_rest), (2, 1, [])]
    lines = [
        json.dumps({"event": "client_end", "client": k, "round": r, "losses": own})
        for k, r, own in ends
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert client_curves(tmp_path) == {0: falling, 1: at_rest}
    shown = replace(figure("a", 0.5, paper=None), client_losses=({0: falling},))
    text = as_markdown("t", "small", [0], [shown])
    assert "| row | a | 50.00 | - (clients) |" in text
    assert "Clients: at half of the clients" in text


def test_r2_is_not_called_accuracy() -> None:
    result = {"accuracy": 0.4, "metric": "R2", "protocol": "rounds"}
    curve = {"start_accuracy": -1.0, "accuracy_curve": [0.4]}
    found = Figure(Cell("row", "fedavg", ()), (result | curve,))
    assert "| Row | Method | R², % | Rank |" in as_markdown("t", None, [0], [found])
    (axes,) = Exhibit(over_time, "round", place=lambda figure: "").draw([found]).axes
    assert axes.get_ylabel() == "R²"
    (cell,) = as_json("t", None, [0], [found])["cells"]
    assert cell["metric"] == "R2"


def test_a_cell_says_how_many_clients_a_run_dropped() -> None:
    whole, lost = figure("a", 0.5, 0.5, paper=None), figure("b", 0.6, 0.6, paper=None)
    first, second = lost.results
    lost = replace(lost, results=(first | {"dropped": {"3": "why", "1": "why"}}, second))
    text = as_markdown("t", None, [0, 1], [whole, lost])
    assert "| row | b | 60.00 ± 0.00 | 1 (2 dropped) |" in text
    assert "Dropped: the most clients" in text
    assert "Clients: " not in text
    assert "Dropped: " not in as_markdown("t", None, [0, 1], [whole])
    cells = as_json("t", None, [0, 1], [whole, lost])["cells"]
    assert [cell["dropped"] for cell in cells] == [[[], []], [[1, 3], []]]


def test_who_is_below_a_floor_is_told() -> None:
    found = {"local": 0.9, "fedavg": 0.8, "fedict": 0.75, "fedd2s": 0.95}
    figures = [figure(method, accuracy) for method, accuracy in found.items()]
    told = remarks(figures)
    assert "- row: below training alone: fedict by 15.0" in told
    assert "- row: below fedavg: fedict by 5.0" in told
    assert not any("below" in line for line in remarks(figures[:2] + figures[3:]))
