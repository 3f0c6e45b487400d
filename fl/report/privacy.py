"""The picture of what attacks can tell of a run's training samples: ROC curves, both axes log."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from fl.json_values import JsonObject
from fl.report import style

ATTACKS = {"loss": style.TIME, "ratio": style.WORST}
"""The attacks, each with its colour."""


def roc_curves(privacy: JsonObject) -> Figure:
    """True against false positive rates: a thin line per upload, a thick one for the global
    model, dashes for chance."""
    figure, axes = style.new_axes(style.HALF, 4.0, "both")
    rates = privacy["false_positives"]
    for name, curve, is_global in _curves(privacy):
        label = f"{name}, {'global model' if is_global else 'an upload'}"
        labels = axes.get_legend_handles_labels()[1]
        axes.plot(
            rates,
            curve["curve"],
            color=ATTACKS[name],
            linewidth=2.4 if is_global else 0.8,
            label=None if label in labels else label,
        )
    axes.plot(rates, rates, color=style.MUTED, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.2))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    style.legend_above(axes, 2)
    return figure


def has_curves(privacy: JsonObject) -> bool:
    """Whether anything was attacked."""
    return any(True for _ in _curves(privacy))


def told(privacy: JsonObject) -> str:
    """The caption: the largest area under a curve of the uploads, and the global model's."""
    parts = []
    for is_global, whom in ((False, "an upload"), (True, "the global model")):
        areas = [curve["auc"] for _, curve, own in _curves(privacy) if own == is_global]
        if areas:
            parts.append(f"{max(areas):.3f} for {whom}")
    return (
        "Membership inference: how many training samples an attack finds, against how many others "
        f"it accuses; the dashes are chance. Largest area under a curve: {', '.join(parts)}."
    )


def _curves(privacy: JsonObject) -> Iterator[tuple[str, JsonObject, bool]]:
    """Each attack's name and curve, and whether it is on the global model."""
    for row in [*privacy["uploads"], privacy["global"]]:
        for name, curve in (row or {"attacks": {}})["attacks"].items():
            yield name, curve, "client" not in row
