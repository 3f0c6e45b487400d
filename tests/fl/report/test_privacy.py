"""The picture of the attacks."""

from typing import Any

from fl.report.plots import attacks, roc_curves

CURVE = {"auc": 0.7, "curve": [0.0, 0.1, 1.0]}


def privacy(**more: Any) -> dict[str, Any]:
    return {"false_positives": [1e-3, 1e-2, 1.0], "uploads": [], "global": None, **more}


def test_uploads_and_global_model_have_a_line_each_beside_chance() -> None:
    uploads = [{"client": k, "attacks": {"loss": CURVE}} for k in range(3)]
    best = {"attacks": {"ratio": {**CURVE, "auc": 0.9}}}
    found = privacy(uploads=uploads, **{"global": best})
    (axes,) = roc_curves(found).axes
    assert len(axes.lines) == 3 + 1 + 1
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert len(axes.get_legend_handles_labels()[1]) == 2


def test_without_an_attack_there_is_no_picture() -> None:
    assert not attacks(privacy())
    assert not attacks(privacy(uploads=[{"client": 0, "attacks": {}}]))
