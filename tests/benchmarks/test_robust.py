"""Accuracy over the share of liars: whole in its tiny form, and what the rules are for."""

import json
from functools import cache
from pathlib import Path

import pytest
import robust
from attacks import ATTACKS
from robust import RULES, TEACHERS, Federation, Options, Size, liars

from fl.data.datasets import load
from fl.methods.registry import get_method
from fl.training.classifier import ClassifierConfig

LOCAL = ClassifierConfig(model="cnn", width=0.5, epochs=2, lr=0.05, batch_size=16)


@cache
def accuracy(rule: str, lying: bool) -> float:
    """FedAvg's after four rounds of ten clients on 600 digits, of which one flips its sign."""
    data = load("digits", Path(), max_train=600)
    method = get_method("fedavg")
    config = method.config(num_large=10, classifier=LOCAL, aggregate=rule)
    federation = Federation(data, Size(), seed=0, alpha=float("inf"))
    who = {0} if lying else set()
    return federation.play(method, config, "sign flip", who, rounds=4).epochs[-1].accuracy


def test_one_sign_flip_of_ten_clients_costs_the_mean() -> None:
    assert accuracy("mean", True) < accuracy("mean", False) - 0.1


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "norm-clip"])
def test_a_rule_stays_near_the_undisturbed_accuracy(rule: str) -> None:
    assert accuracy(rule, True) > accuracy("mean", True)
    assert accuracy(rule, True) > accuracy("mean", False) - 0.08


def test_the_tiny_form_tells_and_draws_every_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robust, "ATTACKS", ATTACKS[:1])
    options = Options(
        methods=("fedavg", "fedmho-md"),
        shares=(0.0, 0.2),
        quick=True,
        json=tmp_path / "figures.json",
        output=tmp_path / "figures.png",
    )
    assert robust.main(options) == 0
    told = capsys.readouterr().out
    assert all(len(line) <= 80 for line in told.splitlines())
    _, *methods = map(json.loads, (tmp_path / "figures.json").read_text().splitlines())
    cells = {row["method"]: row["accuracy"] for row in methods}
    assert set(cells["fedavg"]["sign flip"]) == set(RULES)
    assert set(cells["fedmho-md"]["sign flip"]) == {*RULES, *TEACHERS}
    for rows in cells.values():
        for values in rows["sign flip"].values():
            assert len(values) == 2
            assert all(0 <= value <= 1 for value in values)
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("share", "who"), [(0.0, set()), (0.1, {0}), (0.2, {0, 5}), (0.4, {0, 5, 1, 6})]
)
def test_both_halves_lie_in_turn(share: float, who: set[int]) -> None:
    assert liars(share, 10) == who
