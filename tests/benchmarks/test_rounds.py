"""The benchmark of rounds plays every method every way."""

import json
import sys
from pathlib import Path

import pytest
import rounds

from tests.undrawn import undrawn


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_way_plays_its_rounds_and_is_told(
    tmp_path: Path, mnist_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAF alone: its plain loop is the longest, with all that the others have."""
    output_of = rounds.output_of

    def without_reports(arguments: list[str]) -> str:
        return output_of(undrawn(arguments) if "-m" in arguments else arguments)

    monkeypatch.setattr(rounds, "output_of", without_reports)
    command = ["rounds.py", "--methods", "fedaf"]
    command += ["--rounds=2", "--preset=fedaf-mnist-small", f"--data-root={mnist_root}"]
    command += ["--data.max-train=300", "--data.max-test=200", "--condensation.steps=3"]
    command += ["--num-clients=3", "--fusion.epochs=10", "--json", str(tmp_path / "figures.json")]
    monkeypatch.setattr(sys, "argv", command)
    rounds.main()
    _, *ways = map(json.loads, (tmp_path / "figures.json").read_text().splitlines())
    assert [way["method"] for way in ways] == ["fedaf"] * 3
    for row in ways:
        assert row["total"] > 0
        assert row["accuracy"] > 0.15
    assert len({row["accuracy"] for row in ways[1:]}) == 1  # ours, twice
