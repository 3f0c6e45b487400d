"""The plots of a run, each a matplotlib figure made of plain data. Nothing here reads a file.

Figures are built without pyplot: no global state, no display, safe in any process.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from fl.json_files import JsonObject
from fl.report import style
from fl.report.read import LossCurve, Placed, RoundRow
from fl.report.scores import Scores
from fl.report.words import duration, percent, size

MANY = 16  # a plot with a bar for each of more things than this takes the page's whole width
STEPS = {"epoch": "fusion epoch", "round": "round"}
LEAST_SPAN = 0.05  # of the accuracy axis
MOST_COLUMNS = 500  # clients that have a column each; of more, neighbours share a pixel
THINNEST = 0.5  # points that a bar is wide: thinner ones would fade
NUMBERED = 12  # classes up to which each cell of the confusion has its number
LARGE = 9.2  # inches across, of the confusion of many classes
ATTACKS = {"loss": style.TIME, "ratio": style.WORST}
"""The attacks on privacy, each with its colour."""
LOG_FROM = 20.0  # uploads that differ by more than this factor go on a logarithmic axis


def accuracy_curve(
    accuracy: Mapping[int, float], start: float | None = None, step: str = "epoch"
) -> Figure:
    """Accuracy after each fusion epoch or round; `start`, that before the first, is drawn at 0."""
    figure, axes = style.new_axes(style.HALF, 3.4)
    curve = dict(accuracy) if start is None else {0: start, **accuracy}
    colour = style.GLOBAL_MODEL
    axes.plot(list(curve), list(curve.values()), color=colour, linewidth=2)
    last = max(accuracy)
    best = max(accuracy, key=accuracy.__getitem__)
    if start is not None:
        _mark(axes, 0, start, f"start {percent(start)}", marker="o", color="white")
    if best != last:
        label = f"best {percent(accuracy[best])}, {step} {best}"
        _mark(axes, best, accuracy[best], label, marker="D", color=style.BEST)
    label = f"last {percent(accuracy[last])}, {step} {last}"
    _mark(axes, last, accuracy[last], label, marker="o", color=colour)
    axes.set(xlabel=STEPS[step], ylabel="accuracy", ylim=span(list(curve.values())))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, fontsize=style.TICK, labelcolor=style.INK)
    return figure


def span(shares: Sequence[float]) -> tuple[float, float]:
    """Limits around the shares, wide enough that noise does not look like a trend."""
    middle = (min(shares) + max(shares)) / 2
    half = max(max(shares) - min(shares), LEAST_SPAN) * 0.56
    return max(middle - half, -0.004), min(middle + half, 1.004)


def _mark(axes: Axes, x: int, y: float, label: str, marker: str, color: str) -> None:
    edge = style.MUTED if color == "white" else "white"
    (mark,) = axes.plot([x], [y], marker, label=label, color=color, markersize=9, zorder=3)
    mark.set(markeredgecolor=edge, clip_on=False)


def class_accuracy(
    values: Sequence[float | None],
    class_names: Sequence[str],
    overall: float,
    things: str = "class",
) -> Figure:
    """A bar per class (or of other things) and a line at the overall accuracy.

    None: the test split lacks the class.
    """
    heights = np.array(values, dtype=float)
    figure, axes = style.new_axes(width_of(len(heights)), 3.4)
    axes.bar(range(len(heights)), heights, color=style.GLOBAL_MODEL, width=0.72)
    axes.axhline(overall, color=style.INK, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.set(xlabel=things, ylabel="accuracy", ylim=(0, 1), xlim=(-0.7, len(heights) - 0.3))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    style.name_columns(figure, axes, list(class_names))
    return figure


def width_of(things: int) -> float:
    """The width of a plot with a bar or a dot for each of so many things."""
    return style.WIDE if things > MANY else style.HALF


def partition_map(
    counts: NDArray[np.int64], roles: Sequence[str], class_names: Sequence[str]
) -> Figure:
    """Clients across, classes up. A cell has the colour of the client's role; its shade is the
    number of samples, by the square root so that small numbers can be seen.

    Args:
        counts: (clients, classes).
        roles: of the clients.
        class_names: of the classes.
    """
    clients, classes = counts.shape
    figure, axes = style.new_axes(style.WIDE, min(max(3.0, 1.2 + 0.3 * classes), 12.0))
    colours = np.array([to_rgb(style.role_colour(role)) for role in roles])[:, None]
    shades = 1 - np.sqrt(counts / max(counts.max(), 1))[..., None] * (1 - colours)
    smooth = "none" if clients <= MOST_COLUMNS else "auto"
    image = shades.transpose(1, 0, 2)
    axes.imshow(image, aspect="auto", origin="lower", interpolation=smooth)
    axes.grid(visible=False)
    axes.set(xlabel="client", ylabel="class")
    style.name_rows(figure, axes, list(class_names))
    style.name_columns(figure, axes, [str(index) for index in range(clients)])
    _role_legend(axes, roles)
    return figure


def client_bytes(bytes_up: Mapping[int, int], roles: Sequence[str]) -> Figure:
    """What each client sent; `roles` in the order of the mapping."""
    sent = np.array(list(bytes_up.values()), dtype=float)
    figure, axes = style.new_axes(width_of(len(sent)), 3.4)
    look: Any = {"colors": [style.role_colour(role) for role in roles]}
    look["rasterized"] = len(sent) > style.MOST_SHAPES
    places = np.arange(len(sent))
    axes.set(xlabel="client", ylabel="sent to the server", xlim=(-0.7, len(sent) - 0.3))
    if is_spread(bytes_up):
        # No bars: on a logarithmic axis, which has no zero, a bar's length means nothing.
        logarithmic(axes, ones_only=False)
        colours = look.pop("colors")
        axes.scatter(places, sent, c=colours, s=60, linewidths=0, **look)
        axes.margins(y=0.15)
    else:
        room = 0.85 * 72 * figure.get_figwidth() / len(sent)  # points
        axes.vlines(places, 0, sent, linewidth=max(0.72 * room, THINNEST), **look)
        axes.set_ylim(0, 1.05 * sent.max())
    axes.yaxis.set_major_formatter(lambda value, _: size(value).replace(".0 ", " "))
    style.name_columns(figure, axes, [str(client) for client in bytes_up])
    _role_legend(axes, roles)
    return figure


def logarithmic(axes: Axes, *, ones_only: bool) -> None:
    """A logarithmic y-axis. It names powers of ten, and unless ``ones_only`` 2 and 5 times them."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if ones_only else (1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def is_spread(bytes_up: Mapping[int, int]) -> bool:
    """Whether the uploads differ so much that they take a logarithmic axis."""
    sent = [count for count in bytes_up.values() if count > 0]
    return bool(sent) and max(sent) > LOG_FROM * min(sent)


def phase_times(seconds: Mapping[str, float]) -> Figure:
    """A bar per phase, in their order; the rest of "total" is shown as "other"."""
    phases = {name: spent for name, spent in seconds.items() if name != "total" and spent > 0}
    total = seconds.get("total", sum(phases.values()))
    other = total - sum(phases.values())
    if other > 0.01 * total:
        phases["other"] = other
    figure, axes = style.new_axes(style.HALF, 3.4, grid="x")
    bars = axes.barh(range(len(phases)), list(phases.values()), color=style.TIME, height=0.62)
    labels = [f"{duration(spent)}  ({spent / total:.0%})" for spent in phases.values()]
    axes.bar_label(bars, labels, padding=5, fontsize=style.TICK, color=style.INK)
    axes.set(xlabel="wall time (seconds)", xlim=(0, 1.45 * max(phases.values(), default=1.0)))
    style.name_rows(figure, axes, list(phases))
    axes.invert_yaxis()
    axes.spines["left"].set_visible(False)
    return figure


def round_times(rounds: Sequence[RoundRow]) -> Figure:
    """A stacked bar per round, of its seconds by kind."""
    figure, axes = style.new_axes(style.HALF, 3.4)
    numbers, below = [r.number for r in rounds], np.zeros(len(rounds))
    for part, colour in style.PARTS.items():
        spent = np.array([r.seconds.get(part, 0.0) for r in rounds])
        axes.bar(numbers, spent, bottom=below, color=colour, width=0.8, label=part)
        below += spent
    axes.set(xlabel="round", ylabel="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend_above(axes, len(style.PARTS))
    return figure


def confusion_matrix(counts: NDArray[np.int64], class_names: Sequence[str]) -> Figure:
    """Rows are true classes, columns predicted ones. Each cell's share of its true class is a
    shade, by the square root so that small shares can be seen: of one colour if right, else of
    another."""
    classes = len(counts)
    inches = LARGE if classes > MANY else style.HALF
    figure, axes = style.new_axes(inches, 0.96 * inches)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    right = np.eye(classes, dtype=bool)[..., None]
    colours = np.where(right, to_rgb(style.GLOBAL_MODEL), to_rgb(style.WORST))
    axes.imshow(1 - np.sqrt(shares)[..., None] * (1 - colours), interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set(visible=True, color=style.RULE)
    axes.set(xlabel="predicted class", ylabel="true class")
    style.name_columns(figure, axes, list(class_names))
    style.name_rows(figure, axes, list(class_names))
    for true, predicted in np.argwhere(counts).tolist() if classes <= NUMBERED else []:
        number = axes.text(predicted, true, str(counts[true, predicted]))
        colour = "white" if shares[true, predicted] > 0.4 else style.INK
        number.set(fontsize=style.TICK - 1, color=colour, ha="center", va="center_baseline")
    kinds = {"right": style.GLOBAL_MODEL, "taken for another": style.WORST}
    style.legend_above(axes, 2, [Patch(color=c, label=name) for name, c in kinds.items()])
    return figure


def roc_curves(privacy: JsonObject) -> Figure:
    """What attacks can tell of a run's training samples: true against false positive rates, both
    logarithmic. A thin line per upload, a thick one for the global model, dashes for chance."""
    figure, axes = style.new_axes(style.HALF, 4.0, "both")
    rates = privacy["false_positives"]
    for name, curve, is_global in attacks(privacy):
        label = f"{name}, {'global model' if is_global else 'an upload'}"
        (line,) = axes.plot(rates, curve["curve"], color=ATTACKS[name])
        line.set_linewidth(2.4 if is_global else 0.8)
        if label not in axes.get_legend_handles_labels()[1]:
            line.set_label(label)
    axes.plot(rates, rates, color=style.MUTED, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.2))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    style.legend_above(axes, 2)
    return figure


def attacks(privacy: JsonObject) -> list[tuple[str, JsonObject, bool]]:
    """Each attack's name and curve, and whether it is on the global model."""
    rows = [row for row in [*privacy["uploads"], privacy["global"]] if row]
    return [(n, curve, "client" not in row) for row in rows for n, curve in row["attacks"].items()]


def _role_legend(axes: Axes, roles: Sequence[str]) -> None:
    handles = [Patch(color=style.role_colour(role), label=role) for role in sorted(set(roles))]
    style.legend_above(axes, len(handles), handles, handlelength=1.0)


# The plots that show clients: their accuracies, their local training, and where they trained.

BANDS = ((0, 100, 0.16, "worst to best"), (10, 90, 0.3, "10th to 90th percentile"))
"""Percentiles between which the clients lie, how dark the band is, and its name."""
LEGEND = {"handlelength": 1.4, "columnspacing": 1.2}
SMALLEST_DOT, LARGEST_DOT = 2.0, 8.0  # diameters in points

MOST_LINES = 30  # clients in a panel of losses up to which each has a line
FEW = 2.5  # decades up to which a logarithmic axis names more than the powers of ten
ACROSS = 3  # panels of losses in a row

TALLEST, LOWEST = 0.3, 0.07  # inches that a row of the placement takes
ALL_ROWS = 7.0  # inches that the rows share where they are many
GAP = 0.6  # rows left free between devices
TALL = 0.86  # of a row, that its bars take
LETTERED = 0.16  # inches that a row needs to hold letters
MOST_LETTERED = 60  # clients: a few numbers among hundreds of bars would only be noise
NODE_LETTERS = 18


def client_spread(rounds: Mapping[int, Sequence[float | None]]) -> Figure:
    """How accuracy is distributed over clients round by round: two bands and the mean.

    None: the client was not scored. In each round at least one was.
    """
    figure, axes = style.new_axes(style.HALF, 3.4)
    numbers = np.array(list(rounds), dtype=float)
    accuracy = [np.array([a for a in row if a is not None]) for row in rounds.values()]
    if len(numbers) == 1:  # a round alone gets a width, so that its bands can be seen
        numbers, accuracy = numbers + np.array([-0.4, 0.4]), accuracy * 2
    colour = style.GLOBAL_MODEL
    for low, high, alpha, label in BANDS:
        edges = np.array([np.percentile(row, (low, high)) for row in accuracy]).T
        axes.fill_between(numbers, *edges, color=colour, alpha=alpha, linewidth=0, label=label)
    axes.plot(numbers, [row.mean() for row in accuracy], color=colour, linewidth=2, label="mean")
    axes.set(xlabel="round", ylabel="accuracy", ylim=_limits(*accuracy))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    style.legend_above(axes, 3, **LEGEND)
    return figure


def client_accuracy(scores: Scores, alone: Scores | None = None) -> Figure:
    """A dot for each client that was scored, the worst first; a diamond where it was alone."""
    ranked, tested = scores.ranked, scores.tested
    here, places = np.array([tested[k] for k in ranked]), np.arange(len(ranked))
    figure, axes = style.new_axes(width_of(len(ranked)), 3.6)
    room = 72 * figure.get_figwidth() / len(ranked)
    size = min(max(0.6 * room, SMALLEST_DOT), LARGEST_DOT)
    tenth = len(scores.worst)
    for label, part, colour in (
        ("client", slice(tenth, None), style.GLOBAL_MODEL),
        ("worst tenth", slice(tenth), style.WORST),
    ):
        if len(here[part]):
            (dots,) = axes.plot(places[part], here[part], "o", color=colour, markersize=size)
            dots.set(label=label, clip_on=False)
    elsewhere = {} if alone is None else alone.tested
    there = np.array([elsewhere.get(k, np.nan) for k in ranked])
    if alone is not None:
        (dots,) = axes.plot(places, there, "D", color="white", markersize=0.55 * size, zorder=3)
        dots.set(label="the same client alone", clip_on=False)
        dots.set(markeredgecolor=style.INK, markeredgewidth=min(0.12 * size, 0.9))
        axes.vlines(places, there, here, color=style.RULE, linewidth=size / 4, zorder=1)
    mean = axes.axhline(scores.mean, color=style.INK, linestyle=(0, (4, 3)), linewidth=1.2)
    mean.set(label=f"mean {percent(scores.mean)}", zorder=1.5)
    axes.set(ylabel="accuracy", xlim=(-0.7, len(ranked) - 0.3), ylim=_limits(here, there))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _name_clients(figure, axes, ranked)
    style.legend_above(axes, 2 if figure.get_figwidth() < style.WIDE else 4, **LEGEND)
    return figure


def _limits(*shares: np.ndarray) -> tuple[float, float]:
    everyone = np.concatenate(shares)
    return span([float(np.nanmin(everyone)), float(np.nanmax(everyone))])


def _name_clients(figure: Figure, axes: Axes, ids: list[int]) -> None:
    """Names all clients or, as they stand in no order of ids, none."""
    if len(ids) <= style.NAMES_PER_INCH * figure.get_figwidth():
        axes.set(xlabel="client, the worst first")
        style.name_columns(figure, axes, [str(k) for k in ids])
    else:
        axes.set(xlabel=f"{len(ids):,} clients, the worst first", xticks=[])


def loss_curves(curves: Sequence[LossCurve]) -> Figure:
    """Each client's loss by epoch, step or round; of many clients, how they are distributed."""
    panels = _by_kind(curves)
    columns = min(len(panels), ACROSS)
    rows = -(-len(panels) // ACROSS)
    width = style.HALF if columns == 1 else style.WIDE
    figure = Figure(figsize=(width, 3.4 * rows), facecolor="white", layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes, own in zip(places, panels, strict=False):
        _panel(axes, own)
        axes.set(xlabel=own[0].unit)
    for axes in places[: len(panels) : columns]:
        axes.set(ylabel="training loss")
    for axes in places[len(panels) :]:
        axes.remove()
    return figure


def has_bands(curves: Sequence[LossCurve]) -> bool:
    """Whether a panel shows bands in place of a line for each client."""
    return any(len(own) > MOST_LINES for own in _by_kind(curves))


def _by_kind(curves: Sequence[LossCurve]) -> list[list[LossCurve]]:
    return [list(own) for _, own in groupby(sorted(curves, key=_kind), key=_kind)]


def _kind(curve: LossCurve) -> tuple[str, str]:
    return curve.role, curve.model or ""


def _panel(axes: Axes, curves: list[LossCurve]) -> None:
    style.quiet(axes)
    colour = style.role_colour(curves[0].role)
    if len(curves) > MOST_LINES:
        _bands(axes, curves, colour)
    else:
        for curve in curves:
            marker = "o" if len(curve.steps) == 1 else None
            (line,) = axes.plot(curve.steps, curve.losses, color=colour, marker=marker)
            line.set(linewidth=1.1, alpha=0.75)
    title = ", ".join(part for part in _kind(curves[0]) if part)
    count = f"{len(curves):,} client{'s' if len(curves) > 1 else ''}"
    look = {"fontsize": style.LABEL, "color": style.INK}
    axes.set_title(f"{title}: {count}", look, loc="left", parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _scale(axes, np.concatenate([curve.losses for curve in curves]))


def _bands(axes: Axes, curves: list[LossCurve], colour: str) -> None:
    """At each step over the clients that were trained in it."""
    by_step: dict[float, list[float]] = {}
    for curve in curves:
        for step, loss in zip(curve.steps, curve.losses, strict=True):
            if np.isfinite(loss):
                by_step.setdefault(step, []).append(loss)
    steps = sorted(by_step)
    if not steps:
        return
    for low, high, alpha, _ in BANDS:
        edges = np.array([np.percentile(by_step[step], (low, high)) for step in steps]).T
        axes.fill_between(steps, *edges, color=colour, alpha=alpha, linewidth=0)
    medians = [float(np.median(by_step[step])) for step in steps]
    axes.plot(steps, medians, color=colour, linewidth=2)


def _scale(axes: Axes, losses: np.ndarray) -> None:
    """A logarithmic axis where losses differ much, else one that begins at zero."""
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return
    if finite.min() > 0 and finite.max() > LOG_FROM * finite.min():
        decades = np.log10(finite.max() / finite.min())
        logarithmic(axes, ones_only=decades >= FEW)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif finite.min() >= 0:
        axes.set_ylim(bottom=0)


def placement_chart(placed: Sequence[Placed], lower_bound: float | None = None) -> Figure:
    """Who trained where and when: rows per device, a bar per client; bars of a row never overlap.

    Args:
        placed: the clients.
        lower_bound: in seconds, drawn as a line: no placement could have ended left of it.
    """
    devices = [_lanes(list(there)) for _, there in groupby(sorted(placed, key=_where), key=_where)]
    rows = sum(map(len, devices)) + GAP * (len(devices) - 1)
    inches = min(TALLEST, max(LOWEST, ALL_ROWS / rows))
    figure, axes = style.new_axes(style.WIDE, 1.1 + inches * max(rows, 3), grid="x")
    begin = min(client.start for client in placed)
    span = max(max(client.end for client in placed) - begin, lower_bound or 0.0)
    lettered = inches >= LETTERED and len(placed) <= MOST_LETTERED
    top, middles = 0.0, []
    for lanes in devices:
        for row, lane in enumerate(lanes):
            _bars(axes, lane, top + row, begin, many=len(placed) > style.MOST_SHAPES)
            for client in lane if lettered else []:
                _number(axes, client, top + row, begin, span)
        middles.append(top + (len(lanes) - 1) / 2)
        top += len(lanes) + GAP
    axes.set(xlabel="seconds since the first client started", xlim=(0, 1.01 * span))
    axes.set_yticks(middles, labels=_device_names(devices), parse_math=False)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _placement_legend(axes, placed, lower_bound)
    return figure


def _where(client: Placed) -> tuple[str, str]:
    return client.node, client.device


def _lanes(clients: list[Placed]) -> list[list[Placed]]:
    """Divides a device's clients among as few rows as hold them without overlap."""
    lanes: list[list[Placed]] = []
    for client in sorted(clients, key=lambda c: (c.start, c.client)):
        free = [lane for lane in lanes if lane[-1].end <= client.start]
        if free:
            free[0].append(client)
        else:
            lanes.append([client])
    return lanes


def _device_names(devices: list[list[list[Placed]]]) -> list[str]:
    """The label of each device, without the node's name where there is one node only."""
    firsts = [lanes[0][0] for lanes in devices]
    if len(firsts) > 1 and len({client.node for client in firsts}) == 1:
        return [client.device or "cores" for client in firsts]
    names = [(client.node[:NODE_LETTERS], client.device) for client in firsts]
    return ["\n".join(part for part in name if part) for name in names]


def _bars(axes: Axes, lane: list[Placed], row: float, begin: float, *, many: bool) -> None:
    """The bars of a row, as one artist; edges of thousands would cover them."""
    lane = sorted(lane, key=lambda client: client.attempts > 1)  # their edges over the others'
    again = [client.attempts > 1 for client in lane]
    axes.broken_barh(
        [(client.start - begin, client.end - client.start) for client in lane],
        (row - TALL / 2, TALL),
        facecolors=[style.role_colour(client.role) for client in lane],
        edgecolors=[style.INK if tried else "white" for tried in again],
        linewidths=[1.4 if tried else 0.0 if many else 0.5 for tried in again],
        rasterized=many,
    )


def _number(axes: Axes, client: Placed, row: float, begin: float, span: float) -> None:
    """The client's number on its bar, where it fits."""
    letters = style.LETTER * (len(str(client.client)) + 0.6) / (style.WIDE - 1.5)
    if (client.end - client.start) / span > letters:
        middle = (client.start + client.end) / 2 - begin
        number = axes.text(middle, row, str(client.client), ha="center", va="center_baseline")
        colour = "white" if client.role == "classifier" else style.INK
        number.set(fontsize=style.TICK, color=colour)


def _placement_legend(axes: Axes, placed: Sequence[Placed], lower_bound: float | None) -> None:
    roles = sorted({client.role for client in placed})
    handles: list[Artist] = [Patch(color=style.role_colour(r), label=r) for r in roles]
    if any(client.attempts > 1 for client in placed):
        handles.append(Patch(facecolor="white", edgecolor=style.INK, label="tried again"))
    if lower_bound is not None:
        line = axes.axvline(lower_bound, color=style.INK, linestyle=(0, (4, 3)), linewidth=1.2)
        line.set_label("lower bound")
        handles.append(line)
    style.legend_above(axes, len(handles), handles)
