"""Traffic until an accuracy, and what members sent, told from made-up runs."""

from typing import Any

import pytest

from cluster.studies.cells import make
from cluster.studies.comparison import Figure
from cluster.studies.hfldd_tables import tell_hfldd, tell_sent, until

MIB = 2**20


def run(*accuracies: float, up: int = 2, down: int = 1, peer: int = 0) -> dict[str, Any]:
    """Two MiB up and one down in each round; between clients in the first alone."""
    rounds = [
        {
            "round": number,
            "accuracy": accuracy,
            "bytes_up": up * MIB,
            "bytes_down": down * MIB if number > 1 else 0,
            "bytes_peer": peer * MIB if number == 1 else 0,
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    return {"per_round": rounds, "accuracy": accuracies[-1], "clusters": [[0, 1, 2], [3]]}


def figure(method: str, *results: dict[str, Any], classes: int = 10) -> Figure:
    (cell,) = make("hfldd", "paper", (f"mnist-C{classes}-{method}",))
    return Figure(cell, results)


def test_traffic_is_all_that_was_sent_up_to_the_round_that_reaches_the_accuracy() -> None:
    found = figure("hfldd", run(0.5, 0.79, 0.8, peer=4), run(0.9, 0.9, 0.9, peer=4))
    assert until(found, 0.8) == (2.0, pytest.approx(((3 * 2 + 2 + 4) + (2 + 4)) / 2))
    assert until(found, 0.85) is None  # one seed never has it


def test_a_run_without_rounds_reaches_nothing() -> None:
    assert until(figure("centralised", {"accuracy": 0.9}), 0.5) is None


def test_tables_2_to_4_are_of_iid_clients_and_beside_the_papers() -> None:
    told = tell_hfldd(
        [
            figure("hfldd", run(0.7, 0.85)),
            figure("fedavg", run(0.1, 0.2, 0.8, up=4)),
            figure("fedavg", run(0.1, 0.9), classes=1),
        ]
    )
    assert "| mnist-C10 | hfldd | 80 % | 2.0 | 5.00 | 1.0 | 5 | 58.80 | 1.0 |" in told
    assert "| mnist-C10 | fedavg | 80 % | 3.0 | 14.00 | 2.8 | 17 | 593.15 | 10.1 |" in told
    assert not any(line.startswith("| mnist-C1 | fedavg | 80 %") for line in told)
    assert "| mnist-C1 | fedavg | 5.00 | 5.00 | 5.00 | 5.00 | 5.00 |" in told  # up to 90 percent


def test_what_was_sent_is_told_of_clustered_runs_alone() -> None:
    ours = run(0.5) | {
        "heads": [0, 3],
        "distilled": {"images": 20, "steps": 1.0, "nearest_real": 0.00007},
    }
    told = tell_sent([figure("hfldd", ours), figure("fedseq", run(0.5))])
    assert told[-1] == "| mnist-C10 | hfldd | 2 | 3 | 1 | 20 | 1 | 0.00007 |"
