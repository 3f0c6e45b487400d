"""Accuracy and attacks over epsilon: whole in its tiny form, and where epsilons are drawn."""

import json
from importlib.util import find_spec
from math import inf, isclose
from pathlib import Path

import privacy
import pytest
from privacy import Options, rows_of

from fl.training import private


@pytest.mark.skipif(find_spec("opacus") is None, reason="needs Opacus")
def test_the_tiny_form_tells_and_draws_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Opacus' accountant takes seconds; it is tested by itself.
    monkeypatch.setattr(private, "noise_for", lambda epsilon, delta, sampling: (1.0, epsilon))
    options = Options(
        epsilons=(inf, 8.0),
        quick=True,
        json=tmp_path / "figures.json",
        output=tmp_path / "figures.png",
    )
    assert privacy.main(options) == 0
    told = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in told if "torch" not in line)
    rows = [json.loads(line) for line in (tmp_path / "figures.json").read_text().splitlines()]
    cells = [(row["method"], row["epsilon"], row["attack"]) for row in rows]
    assert cells == [
        (method, epsilon, attack)
        for method in ("fedavg", "fedmho")
        for epsilon in ("inf", "8")
        for attack in ("loss", "ratio")
    ]
    assert {row["method"]: len(row["uploads"]) for row in rows} == {"fedavg": 6, "fedmho": 3}
    assert all(0 <= row[name] <= 1 for row in rows for name in ("accuracy", "model", "found"))
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_takes_the_uploads_together() -> None:
    def curve(auc: float, found: float, error: float) -> dict[str, object]:
        return {"loss": {"auc": auc, "error": error, "at": {"0.01": {"value": found}}}}

    uploads = [{"attacks": curve(0.6, 0.02, 0.03)}, {"attacks": curve(0.8, 0.06, 0.01)}]
    found = {"global": {"attacks": curve(0.55, 0.9, 0.9)}, "uploads": uploads}
    (row,) = rows_of("fedavg", 8.0, 0.7, found)
    assert (row.model, row.uploads, row.error) == (0.55, [0.6, 0.8], 0.03)
    assert isclose(row.found, 0.04)
