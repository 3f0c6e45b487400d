"""Figures of a run's course: accuracies, losses, times, who trained when; and of its clients."""

from collections.abc import Iterable
from itertools import groupby
from statistics import fmean, pstdev

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from fl.json_files import JsonObject
from fl.report import style
from fl.report.read import LossCurve, RunRecord
from fl.report.words import duration, percent, size, within_a_line

STEPS = {"epoch": "fusion epoch", "round": "round"}
PARTS = {"local": "#0072b2", "server": style.GLOBAL_MODEL, "overhead": "#d55e00"}
"""What a round's time is spent on, each with its colour."""
BANDS = ((0, 100, 0.14, "all clients"), (10, 90, 0.22, "10th to 90th percentile"))
"""Percentiles between which the clients lie, how dark the band is, and its name."""
Drawn = tuple[Figure, str] | None
"""A figure with its caption; None if the run lacks what it shows."""


def accuracy(run: RunRecord) -> Drawn:
    """Accuracy after each round or fusion epoch; at 0 that before the first."""
    if not run.accuracy:
        return None
    curve, last = run.curve, max(run.accuracy)
    best = max(run.accuracy, key=run.accuracy.__getitem__)
    figure, axes = style.new_axes(style.HALF, 3.4)
    axes.plot([*curve], [*curve.values()], color=style.GLOBAL_MODEL, linewidth=2)
    if 0 in curve:
        _mark(axes, 0, curve[0], f"start {percent(curve[0])}", "white")
    if best != last:
        _mark(axes, best, curve[best], f"best {percent(curve[best])}, {run.step} {best}")
    text = f"last {percent(curve[last])}, {run.step} {last}"
    _mark(axes, last, curve[last], text, style.GLOBAL_MODEL)
    if run.client_accuracy:
        _bands(axes, run.client_accuracy)
    style.accuracy_axis(axes, within_a_line(run.metric_name))
    style.count_axis(axes, STEPS[run.step])
    style.legend(axes)
    of_one = f"{run.metric_name} of the global model on the {run.tested_on}"
    what = "Mean over clients" if run.scores else of_one
    caption = f"{what} after each {STEPS[run.step]}"
    return figure, f"{caption}; 0 is before the first." if 0 in curve else f"{caption}."


def _bands(axes: Axes, rounds: dict[int, list[float | None]]) -> None:
    """How the clients' accuracies are distributed after each round."""
    scored = [[a for a in row if a is not None] for row in rounds.values()]
    for low, high, alpha, label in BANDS:
        edges = np.array([np.percentile(row, (low, high)) for row in scored]).T
        band = axes.fill_between([*rounds], *edges, color=style.GLOBAL_MODEL, label=label)
        band.set(alpha=alpha, linewidth=0)


def _mark(axes: Axes, x: int, y: float, label: str, color: str = style.BEST) -> None:
    (mark,) = axes.plot([x], [y], "o", label=label, color=color, markersize=9, zorder=3)
    mark.set(markeredgecolor=style.MUTED if color == "white" else "white", clip_on=False)


def rounds(run: RunRecord) -> Drawn:
    """A stacked bar per round, of its seconds by kind."""
    if not run.rounds:
        return None
    figure, axes = style.new_axes(style.HALF, 3.4)
    numbers, below = [r.round for r in run.rounds], np.zeros(len(run.rounds))
    for part, colour in PARTS.items():
        spent = np.array([r.took.get(part, 0.0) for r in run.rounds])
        axes.bar(numbers, spent, bottom=below, color=colour, width=0.8, label=part)
        below += spent
    axes.set(ylabel="seconds")
    style.count_axis(axes, "round")
    style.legend_above(axes)
    overhead, total = float(spent.sum()), float(below.sum())
    return figure, (
        "The time of each round: clients' training, the server with its test, and the overhead of "
        f"the engine, {duration(overhead / len(numbers))} a round and "
        f"{overhead / max(total, 1e-9):.0%} of all."
    )


def time(run: RunRecord) -> Drawn:
    """A bar per phase, in their order; the rest of the total is shown as "other"."""
    seconds = run.result.get("seconds")
    if not seconds:
        return None
    phases = {name: spent for name, spent in seconds.items() if name != "total" and spent > 0}
    total = seconds.get("total", sum(phases.values()))
    if (other := total - sum(phases.values())) > 0.01 * total:
        phases["other"] = other
    figure, axes = style.new_axes(style.HALF, 3.4, grid="x")
    bars = axes.barh(range(len(phases)), [*phases.values()], color=style.TIME, height=0.62)
    labels = [f"{duration(spent)}  ({spent / total:.0%})" for spent in phases.values()]
    axes.bar_label(bars, labels, padding=5, fontsize=style.TICK, color=style.INK)
    axes.set(xlabel="wall time (seconds)", xlim=(0, 1.45 * max(phases.values(), default=1.0)))
    style.name_rows(figure, axes, [*phases])
    axes.invert_yaxis()
    return figure, f"The run's {duration(total)} by phase."


# Training losses: a panel for each role and model, a line for each client.

ACROSS = 3  # panels in a row
MOST_LINES = 100  # clients in a panel; the lines of more are drawn as pixels
LOG_FROM = 20.0  # losses or uploads that differ by more than this factor get a logarithmic axis


def losses(run: RunRecord) -> Drawn:
    """Each client's loss by epoch, step or round."""
    if not run.losses:
        return None
    panels = [list(own) for _, own in groupby(sorted(run.losses, key=_kind), key=_kind)]
    columns, rows = min(len(panels), ACROSS), -(-len(panels) // ACROSS)
    width = style.HALF if columns == 1 else style.WIDE
    figure = Figure(figsize=(width, 3.4 * rows), facecolor="white", layout="constrained")
    for place, own in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        _draw_losses(axes, own)
        if place % columns == 1 % columns:
            axes.set_ylabel("training loss")
    units = " or ".join(sorted({curve.unit for curve in run.losses}))
    return figure, f"Mean training loss over each client's own samples by {units}."


def _kind(curve: LossCurve) -> tuple[str, str]:
    return curve.role, curve.model or ""


def _draw_losses(axes: Axes, curves: list[LossCurve]) -> None:
    style.quiet(axes)
    count, colour = len(curves), style.role_colour(curves[0].role)
    lines = [np.column_stack([curve.steps, curve.losses]) for curve in curves]
    shade = max(0.75 / (1 + count / 30), 0.05)  # of many clients the dense parts are dark
    drawn = LineCollection(lines, colors=colour, alpha=shade, rasterized=count > MOST_LINES)
    axes.add_collection(drawn)
    dots = np.concatenate([line for line in lines if len(line) == 1] or [np.empty((0, 2))])
    axes.plot(*dots.T, "o", color=colour, alpha=shade)
    axes.autoscale()
    title = ", ".join(filter(None, _kind(curves[0])))
    look = {"fontsize": style.LABEL, "color": style.INK}
    text = f"{title}: {count:,} client{'s' if count > 1 else ''}"
    axes.set_title(text, look, loc="left", parse_math=False)
    style.count_axis(axes, curves[0].unit)
    found = np.concatenate(lines)[:, 1]
    finite = found[np.isfinite(found)]
    if len(finite) and finite.min() > 0 and finite.max() > LOG_FROM * finite.min():
        axes.set_yscale("log")
    elif len(finite) and finite.min() >= 0:
        axes.set_ylim(bottom=0)


# The placement: lanes of bars for each device.

TALLEST, LOWEST = 0.3, 0.07  # height of a lane in inches
ALL_LANES = 7.0  # inches that the lanes share if they are many
MOST_NUMBERED = 60  # clients up to which bars have their numbers
UUID_LETTERS = 12  # of "GPU-8f3c2d1e-…": enough to distinguish the devices of a run


def placement(run: RunRecord) -> Drawn:
    """Who trained where and when: a bar per client; bars of a lane never overlap."""
    placed = run.placements
    if not placed:
        return None
    lanes = [lane for _, own in groupby(sorted(placed, key=where), where) for lane in _lanes(own)]
    inches = min(TALLEST, max(LOWEST, ALL_LANES / len(lanes)))
    figure, axes = style.new_axes(style.WIDE, 1.1 + inches * max(len(lanes), 3), grid="x")
    begin, end = min(e["start"] for e in placed), max(e["end"] for e in placed)
    for row, lane in enumerate(lanes):
        _draw_lane(axes, row, lane, begin, len(placed))
    devices = {where(lane[0]): row for row, lane in reversed([*enumerate(lanes)])}
    axes.set_yticks([*devices.values()], labels=[*devices], parse_math=False)
    makespan = run.result.get("makespan") or {}
    took, bound = makespan.get("seconds"), makespan.get("lower_bound")
    axes.set(ylim=(len(lanes) - 0.4, -0.6), xlim=(0, 1.01 * max(end - begin, bound or 0.0)))
    axes.set(xlabel="seconds since the first client started")
    handles = style.role_patches(e["role"] for e in placed)
    if any(e["attempts"] > 1 for e in placed):
        handles.append(Patch(facecolor="white", edgecolor=style.INK, label="tried again"))
    caption = "Where each client was trained and when"
    if took and bound:
        handles.append(axes.axvline(bound, color=style.INK, linestyle="--", label="lower bound"))
        caption += f". Makespan {duration(took)}, lower bound {duration(bound)} for any placement"
        caption += f"; ratio {took / bound:.2f}"
    style.legend_above(axes, handles)
    return figure, f"{caption}."


def where(placed: JsonObject) -> str:
    """A client's node, and its GPU if it had one."""
    gpu = (placed["device_uuid"] or "")[:UUID_LETTERS]
    return ", ".join(filter(None, (placed["node"], gpu)))


def _lanes(clients: Iterable[JsonObject]) -> list[list[JsonObject]]:
    """Divides a device's clients among as few lanes as hold them without overlap."""
    lanes: list[list[JsonObject]] = []
    for client in sorted(clients, key=lambda e: (e["start"], e["client"])):
        free = [lane for lane in lanes if lane[-1]["end"] <= client["start"]]
        if free:
            free[0].append(client)
        else:
            lanes.append([client])
    return lanes


def _draw_lane(axes: Axes, row: int, lane: list[JsonObject], begin: float, clients: int) -> None:
    many = clients > style.MOST_SHAPES
    axes.broken_barh(
        [(e["start"] - begin, e["end"] - e["start"]) for e in lane],
        (row - 0.43, 0.86),
        facecolors=[style.role_colour(e["role"]) for e in lane],
        edgecolors=[style.INK if e["attempts"] > 1 else "white" for e in lane],
        linewidths=[1.4 if e["attempts"] > 1 else 0.0 if many else 0.5 for e in lane],
        rasterized=many,
    )
    for e in lane if clients <= MOST_NUMBERED else []:
        middle = (e["start"] + e["end"]) / 2 - begin
        number = axes.text(middle, row, str(e["client"]), ha="center", va="center")
        colour = "white" if e["role"] == "classifier" else style.INK
        number.set(fontsize=style.TICK, color=colour)


# The clients: their accuracies, uploads, data, and what attacks learn of it.

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
    wide = min(8.0, max(2.0, 40 * figure.get_figwidth() / len(ranked)))  # points
    for label, first, last, colour in (
        ("client", tenth, len(ranked), style.GLOBAL_MODEL),
        ("worst tenth", 0, tenth, style.WORST),
    ):
        (dots,) = axes.plot(range(first, last), heights[first:last], "o", color=colour)
        dots.set(label=label, markersize=wide, rasterized=len(ranked) > style.MOST_SHAPES)
    label = f"mean {percent(fmean(heights))}"
    axes.axhline(fmean(heights), color=style.INK, linestyle="--", linewidth=1.2, label=label)
    style.accuracy_axis(axes, within_a_line(run.metric_name))
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
