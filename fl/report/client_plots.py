"""The plots that show clients: their accuracies, their local training, and where they trained."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl.report import style
from fl.report.plots import LOG_FROM, logarithmic, span, width_of
from fl.report.read import LossCurve, Placed
from fl.report.scores import Scores
from fl.report.words import percent

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
