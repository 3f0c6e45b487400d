"""Figures of the clients: their accuracies, uploads, data, and what attacks learn of it."""

from statistics import fmean, pstdev

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.ticker import LogLocator, NullFormatter

from fl.report import style
from fl.report.course import LOG_FROM, Drawn
from fl.report.read import RunRecord
from fl.report.words import percent, size

MOST_COLUMNS = 500  # clients that have a column each; of more, neighbours share a pixel
ATTACKS = {"loss": style.TIME, "ratio": style.WORST}
"""The attacks on privacy, each with its colour."""


def accuracies(run: RunRecord) -> Drawn:
    """A dot for each client that was scored, the worst first."""
    scores = run.scores
    if not scores:
        return None
    ranked = sorted(scores, key=lambda k: (scores[k], k))
    heights, tenth = [scores[k] for k in ranked], max(1, len(ranked) // 10)
    figure, axes = style.new_axes(style.width_of(len(ranked)), 3.6)
    size = min(8.0, max(2.0, 40 * figure.get_figwidth() / len(ranked)))  # points
    for label, first, last, colour in (
        ("client", tenth, len(ranked), style.GLOBAL_MODEL),
        ("worst tenth", 0, tenth, style.WORST),
    ):
        (dots,) = axes.plot(range(first, last), heights[first:last], "o", color=colour)
        dots.set(label=label, markersize=size, rasterized=len(ranked) > style.MOST_SHAPES)
    label = f"mean {percent(fmean(heights))}"
    axes.axhline(fmean(heights), color=style.INK, linestyle="--", linewidth=1.2, label=label)
    style.accuracy_axis(axes, run.metric_name.lower())
    axes.set(xlabel="client, the worst first", xlim=(-0.7, len(ranked) - 0.3))
    if len(ranked) <= style.NAMES_PER_INCH * figure.get_figwidth():
        style.name_columns(figure, axes, [str(k) for k in ranked])
    else:  # the ids are not in order: a few of them would say nothing
        axes.set(xlabel=f"{len(ranked):,} clients, the worst first", xticks=[])
    style.legend_above(axes)
    return figure, (
        f"Each client after the last round: mean {percent(fmean(heights))}, standard deviation "
        f"{100 * pstdev(heights):.1f} points, worst tenth {percent(fmean(heights[:tenth]))}."
    )


def uploads(run: RunRecord) -> Drawn:
    """A dot for each client that reported, at the bytes that it sent."""
    rows = [row for row in run.clients if row.bytes_up is not None]
    sent = np.array([row.bytes_up for row in rows], dtype=float)
    if not sent.any():  # nobody has reported, or all train alone
        return None
    figure, axes = style.new_axes(style.width_of(len(rows)), 3.4)
    colours = [style.role_colour(row.role) for row in rows]
    dots = axes.scatter(range(len(rows)), sent, c=colours, s=60 if len(rows) < 60 else 16)
    dots.set_rasterized(len(rows) > style.MOST_SHAPES)
    caption = f"What each client sent to the server, {size(sent.sum())} in all"
    factor = sent.max() / sent[sent > 0].min()
    if factor > LOG_FROM:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        caption += f"; the axis is logarithmic, as the largest is {factor:,.0f} times the smallest"
    else:
        axes.set_ylim(0, 1.05 * sent.max())
    axes.yaxis.set_major_formatter(lambda value, _: size(value).replace(".0 ", " "))
    axes.set(xlabel="client", ylabel="sent to the server", xlim=(-0.7, len(rows) - 0.3))
    style.name_columns(figure, axes, [str(row.client) for row in rows])
    style.legend_above(axes, style.role_patches(row.role for row in rows))
    return figure, f"{caption}."


def partition(run: RunRecord) -> Drawn:
    """Clients across, classes up. A cell has the colour of the client's role; its shade is the
    number of samples, by the square root so that small numbers can be seen."""
    part = run.partition
    if part is None:
        return None
    clients, classes = part.counts.shape
    figure, axes = style.new_axes(style.WIDE, min(max(3.0, 1.2 + 0.3 * classes), 12.0))
    colours = np.array([to_rgb(style.role_colour(role)) for role in part.roles])[:, None]
    shades = 1 - np.sqrt(part.counts / max(part.counts.max(), 1))[..., None] * (1 - colours)
    smooth = "none" if clients <= MOST_COLUMNS else "auto"
    axes.imshow(shades.swapaxes(0, 1), aspect="auto", origin="lower", interpolation=smooth)
    axes.grid(visible=False)
    axes.set(xlabel="client", ylabel="class")
    style.name_rows(figure, axes, part.class_names)
    style.name_columns(figure, axes, [str(index) for index in range(clients)])
    style.legend_above(axes, style.role_patches(part.roles))
    return figure, (
        f"Training samples by client and class in the {part.kind} partition {part.hash[:12]}: the "
        f"darker, the more (by the square root); the darkest cell has {part.counts.max():,}."
    )


def privacy(run: RunRecord) -> Drawn:
    """What attacks reveal about a run's training samples: true against false positive rates. A thin
    line per upload, a thick one for the global model, dashes for chance."""
    if run.privacy is None:
        return None
    rows = [("an upload", row) for row in run.privacy["uploads"]]
    rows += [("the global model", run.privacy["global"])] if run.privacy["global"] else []
    attacks = [(name, whom, c) for whom, row in rows for name, c in row["attacks"].items()]
    if not attacks:
        return None
    figure, axes = style.new_axes(style.HALF, 4.0, "both")
    rates = run.privacy["false_positives"]
    labels, areas = set[str](), dict[str, float]()
    for name, whom, curve in attacks:
        label = f"{name}, {whom}"
        (line,) = axes.plot(rates, curve["curve"], color=ATTACKS[name])
        line.set(linewidth=0.8 if whom == "an upload" else 2.4)
        line.set_label(f"_{label}" if label in labels else label)  # a legend skips "_"
        labels.add(label)
        areas[whom] = max(areas.get(whom, 0.0), curve["auc"])
    axes.plot(rates, rates, color=style.MUTED, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.2))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    style.legend_above(axes, columns=2)
    largest = ", ".join(f"{area:.3f} for {whom}" for whom, area in areas.items())
    return figure, (
        "Membership inference: how many training samples an attack finds, against how many other "
        f"samples it takes for such; dashes are chance. Largest area under a curve: {largest}."
    )
