"""The picture of which client trained where and when: rows per device, a bar per client."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fl.report import style
from fl.report.placements import Placed

TALLEST, LOWEST = 0.3, 0.07  # inches that a row takes
ALL_ROWS = 7.0  # inches that the rows share where they are many
GAP = 0.6  # rows left free between devices
TALL = 0.86  # of a row, that its bars take
LETTERED = 0.16  # inches that a row needs to hold letters
MOST_LETTERED = 60  # clients: a few numbers among hundreds of bars would only be noise
NODE_LETTERS = 18
DARK = ("classifier",)  # roles whose colour takes white letters

Lane = list[Placed]


def placement_chart(placed: Sequence[Placed], lower_bound: float | None = None) -> Figure:
    """A bar per client, from the first one's start on; bars of one row never overlap.

    `lower_bound`, in seconds, is drawn as a line: no placement could have ended left of it.
    """
    devices = [_lanes(list(there)) for _, there in groupby(sorted(placed, key=_start), key=_start)]
    rows = sum(map(len, devices)) + GAP * (len(devices) - 1)
    inches = min(TALLEST, max(LOWEST, ALL_ROWS / rows))
    figure, axes = style.new_axes(style.WIDE, 1.1 + inches * max(rows, 3), grid="x")
    begin = min(client.start for client in placed)
    span = max(max(client.end for client in placed) - begin, lower_bound or 0.0)
    lettered = inches >= LETTERED and len(placed) <= MOST_LETTERED
    top, middles, at = 0.0, [], list[tuple[Placed, float]]()
    for lanes in devices:
        at += [(client, top + row) for row, lane in enumerate(lanes) for client in lane]
        middles.append(top + (len(lanes) - 1) / 2)
        top += len(lanes) + GAP
    _bars(axes, at, begin)
    for client, row in at:
        if lettered and (client.end - client.start) / span > _letters(client):
            _number(axes, row, client, begin)
    axes.set(xlabel="seconds since the first client started", xlim=(0, 1.01 * span))
    axes.set_yticks(middles, labels=_names(devices), parse_math=False)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _legend(axes, placed, lower_bound)
    return figure


def _start(client: Placed) -> tuple[str, str]:
    return client.node, client.device


def _lanes(clients: list[Placed]) -> list[Lane]:
    """Divides a device's clients among as few rows as hold them without overlap."""
    lanes: list[Lane] = []
    for client in sorted(clients, key=lambda c: (c.start, c.client)):
        free = [lane for lane in lanes if lane[-1].end <= client.start]
        if free:
            free[0].append(client)
        else:
            lanes.append([client])
    return lanes


def _names(devices: list[list[Lane]]) -> list[str]:
    """The label of each device, without the node's name where there is one node only."""
    firsts = [lanes[0][0] for lanes in devices]
    if len(firsts) > 1 and len({client.node for client in firsts}) == 1:
        return [client.device or "cores" for client in firsts]
    names = [(client.node[:NODE_LETTERS], client.device) for client in firsts]
    return ["\n".join(part for part in name if part) for name in names]


def _bars(axes: Axes, at: Sequence[tuple[Placed, float]], begin: float) -> None:
    """A bar per client, at its row; those of clients that were tried again over the others."""
    once_first = sorted(at, key=lambda pair: pair[0].attempts > 1)
    clients = [client for client, _ in once_first]
    bars = [(c.start - begin, row - TALL / 2, c.end - c.start, TALL) for c, row in once_first]
    again = [client.attempts > 1 for client in clients]
    edge = 0.5 if len(at) <= style.MOST_SHAPES else 0.0  # of many it would cover all
    style.add_bars(
        axes,
        np.array(bars),
        facecolors=[style.role_colour(client.role) for client in clients],
        edgecolors=[style.INK if tried else "white" for tried in again],
        linewidths=[1.4 if tried else edge for tried in again],
    )


def _letters(client: Placed) -> float:
    """The share of the axis that the client's number takes."""
    return style.LETTER * (len(str(client.client)) + 0.6) / (style.WIDE - 1.5)


def _number(axes: Axes, row: float, client: Placed, begin: float) -> None:
    middle = (client.start + client.end) / 2 - begin
    number = axes.text(middle, row, str(client.client), ha="center", va="center_baseline")
    number.set(fontsize=style.TICK, color="white" if client.role in DARK else style.INK)


def _legend(axes: Axes, placed: Sequence[Placed], lower_bound: float | None) -> None:
    roles = sorted({client.role for client in placed})
    handles: list[Patch | Line2D] = [Patch(color=style.role_colour(r), label=r) for r in roles]
    if any(client.attempts > 1 for client in placed):
        handles.append(Patch(facecolor="white", edgecolor=style.INK, label="tried again"))
    if lower_bound is not None:
        line = axes.axvline(lower_bound, color=style.INK, linestyle=(0, (4, 3)), linewidth=1.2)
        line.set_label("lower bound")
        handles.append(line)
    style.legend_above(axes, len(handles), handles)
