"""How a method's line looks in the figures, and in which panel a cell is."""

from math import log

from matplotlib import colormaps

from cluster.studies.comparison import Figure
from fl.json_values import JsonObject
from fl.report import style

viridis = colormaps["viridis"]
COLOURS = {
    "fedmho": style.INK,
    "fedmho-md": style.ROLES["classifier"],
    "fedmho-sd": style.ROLES["generator"],
    "feddf": style.OTHER_ROLE,
    "dense": style.GLOBAL_MODEL,
    "co-boosting": style.BEST,
    "fedcvae-ens": style.TIME,
    "fedaf": style.INK,
    "fedaf-without-cdc": style.INK,
    "fedaf-without-lgkm": style.INK,
    "fedaf-clipped": style.INK,
    "feddm": style.ROLES["generator"],
    "fedavg": style.TIME,
    "fedprox": style.BEST,
    "fedbn": style.ROLES["classifier"],
    "fedbn-by-domain": style.ROLES["classifier"],
    "moon": style.OTHER_ROLE,
    "feddyn": style.GLOBAL_MODEL,
    "fedgen": style.PARTS["overhead"],
    "local": style.WORST,
    "fedavg-tuned": style.TIME,
    "fedmd": style.OTHER_ROLE,
    "fedper": style.ROLES["classifier"],
    "fedper+": style.ROLES["classifier"],
    "fedrep": style.ROLES["generator"],
    "fedrep+": style.ROLES["generator"],
    "fedict": style.GLOBAL_MODEL,
    "pfedsd": style.BEST,
    "fedd2s": style.INK,
    "fedd2s-fixed": style.TIME,
    "fedd2s-from-F2": style.TIME,
    "fedd2s-from-F1": style.ROLES["classifier"],
    "fedd2s-from-C3": style.INK,
    "fedd2s-from-C2": style.ROLES["generator"],
    "fedd2s-mse-from-F2": style.TIME,
    "fedd2s-mse-from-F1": style.ROLES["classifier"],
    "fedd2s-mse-from-C3": style.INK,
    "fedd2s-mse-from-C2": style.ROLES["generator"],
    "hfldd": style.INK,
    "hfldd-never": style.INK,
    "hfldd-without-dd": style.ROLES["classifier"],
    "fedseq": style.ROLES["generator"],
    "dynafed": style.GLOBAL_MODEL,
    "centralised": style.OTHER_ROLE,
    **{f"hfldd-K{k}": viridis((k - 5) / 7) for k in range(5, 12)},
    **{f"hfldd-{size}": viridis(log(size / 10) / log(60)) for size in (10, 20, 50, 100, 200, 400)},
}
DASHES = {
    "fedaf-without-cdc": "--",
    "fedaf-without-lgkm": ":",
    "fedaf-clipped": "-.",
    "fedavg-tuned": "--",
    "fedper+": "--",
    "fedrep+": "--",
    "hfldd-never": "--",
    "centralised": ":",
    **{f"fedd2s-mse-from-{name}": "--" for name in ("F2", "F1", "C3", "C2")},
}
"""Variants of a method have its colour."""

CLASSES = {"1": "1 class per client", "10": "IID"}


def look(figure: Figure) -> JsonObject:
    """Colour, label and dashes of a method's line."""
    method = figure.cell.method
    return {"color": COLOURS[method], "label": method, "linestyle": DASHES.get(method, "-")}


def place(figure: Figure) -> str:
    """The panel that a cell is in: its data set, model if that is a setting, and partition."""
    settings = dict(figure.cell.settings)
    named = [figure.cell.row.partition("-")[0], *filter(None, [settings.get("classifier.model")])]
    if "alpha" in settings:
        return ", ".join([*named, f"Dir({settings['alpha']})"])
    if "C" in settings:
        return ", ".join(
            [*named, CLASSES.get(settings["C"], f"{settings['C']} classes per client")]
        )
    return "a client per domain"
