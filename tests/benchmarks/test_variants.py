"""The comparison of FedMHO's variants: what is run, what is read, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import variants
from variants import METHODS, Variants

FLAGS = ("--resume", "--fid")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Launches that finish at once: the accuracy is the seed's. What each was asked for."""
    asked: list[dict[str, str]] = []

    def launch(arguments: list[str]) -> int:
        plain = [argument for argument in arguments if argument not in FLAGS]
        options = dict(zip(plain[::2], plain[1::2], strict=True))
        asked.append(options)
        folder = Path(options["--output-dir"]) / options["--name"]
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result(int(options["--seed"]))))
        return 0

    monkeypatch.setattr(variants, "launch", launch)
    return asked


def result(seed: int) -> dict[str, Any]:
    return {
        "accuracy": 0.5 + seed / 10,
        "start_accuracy": 0.25,
        "seconds": {"local": 10.0 * (seed + 1), "fusion": 3.0},
        "teacher": {"agreement": 0.9, "confidence": 0.8, "confidence_when_wrong": 0.4},
        "oracle": {
            "agreement": 0.75,
            "teacher": {"agreement": 0.85, "agreement_where_confirmed": 0.95},
        },
    }


def options(folder: Path, **changes: Any) -> Variants:
    how = {"output_dir": folder / "runs", "alphas": (0.5,), "seeds": (0, 1), **changes}
    return Variants(json=folder / "figures.json", **how)


def test_every_variant_runs_for_every_seed_and_alpha_under_a_name_of_its_own(
    tmp_path: Path, launched: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert variants.main(options(tmp_path, alphas=(0.5, 0.1))) == 0
    asked = {(o["--method"], o["--alpha"], o["--seed"]) for o in launched}
    assert asked == {(m, a, s) for m in METHODS for a in ("0.5", "0.1") for s in ("0", "1")}
    assert len({o["--name"] for o in launched}) == len(launched) == 12
    assert "55.00 ± 7.07" in capsys.readouterr().out
