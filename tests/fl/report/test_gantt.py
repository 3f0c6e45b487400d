"""Who ran where and when: the picture, the table's column, and what went wrong."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.transforms import Bbox

from fl.errors import UserError
from fl.report import style
from fl.report.page import write_report
from fl.report.plots import placement_chart
from fl.report.read import Placed, read_placements
from tests.fl.report.conftest import MakeRun
from tests.fl.report.test_page import ALL_PLOTS, Page

UUID = "GPU-8f3c2d1e-0000-0000-0000-000000000000"


def entry(client: int, start: float | None, end: float | None, **other: Any) -> dict[str, Any]:
    """One client's entry, as result.json has it."""
    defaults = {
        "client": client,
        "role": "classifier",
        "model": "vgg9",
        "requested": {"cpus": 1, "gpus": 0.2, "memory_bytes": 0},
        "assigned": {"CPU": 1, "GPU": 0.2},
        "node": "node-a",
        "device_uuid": UUID,
        "peak_bytes": 10**9,
        "seconds": 3.0,
        "start": start,
        "end": end,
        "attempts": 1,
        "reused": start is None,
        "failures": [],
    }
    return defaults | other


ENTRIES = [
    entry(0, 2.0, 8.0),
    entry(1, None, None, node=None, device_uuid=None, assigned=None, attempts=0),
    entry(2, 2.5, 4.0, role="generator", attempts=2, failures=["its process died"]),
    entry(3, 4.0, 9.0, role="generator", device_uuid=None),
]
MAKESPAN = {"seconds": 7.0, "lower_bound": 5.6}


def placed(entries: list[dict[str, Any]]) -> list[Placed]:
    return list(read_placements({"placements": entries}).values())


def bars(figure: Any) -> list[Bbox]:
    return [path.get_extents() for row in figure.axes[0].collections for path in row.get_paths()]


def place(run_dir: Path, entries: list[dict[str, Any]]) -> Path:
    """Gives a finished run these placements; returns its directory."""
    result = json.loads((run_dir / "result.json").read_text())
    result |= {"placements": entries, "makespan": MAKESPAN}
    (run_dir / "result.json").write_text(json.dumps(result))
    return run_dir


def test_a_bar_is_a_client_in_its_role_s_colour_at_its_time() -> None:
    figure = placement_chart(placed(ENTRIES), lower_bound=5.6)
    rows = figure.axes[0].collections
    colours = [to_hex(colour) for row in rows for colour in row.get_facecolor()]
    drawn = {(b.x0, b.width): colour for b, colour in zip(bars(figure), colours, strict=True)}
    edges = [to_hex(colour) for row in rows for colour in row.get_edgecolor()]
    assert edges.count(style.INK) == 1
    blue, orange = style.role_colour("classifier"), style.role_colour("generator")
    assert drawn == {(0, 6): blue, (0.5, 1.5): orange, (2, 5): orange}
    (axes,) = figure.axes
    assert sorted(text.get_text() for text in axes.texts) == ["0", "2", "3"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cores", "GPU-8f3c2d1e"]
    assert [line.get_xdata() for line in axes.lines] == [[5.6, 5.6]]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["classifier", "generator", "tried again", "lower bound"]


def test_seats_on_several_nodes_name_the_node() -> None:
    entries = [entry(0, 0, 1), entry(1, 0, 1, node="node-b", device_uuid=None)]
    (axes,) = placement_chart(placed(entries)).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["node-a\nGPU-8f3c2d1e", "node-b"]


@pytest.mark.parametrize("clients", [10, 200])
def test_bars_of_a_row_never_overlap_however_many_there_are(clients: int) -> None:
    rng = np.random.default_rng(clients)
    starts, lengths = rng.uniform(0, 50, clients), rng.exponential(8, clients)
    devices = rng.integers(0, 3, clients)
    entries = [
        entry(k, float(starts[k]), float(starts[k] + lengths[k]), device_uuid=f"GPU-{devices[k]}")
        for k in range(clients)
    ]
    figure = placement_chart(placed(entries))
    assert len(bars(figure)) == clients
    rows: dict[float, list[tuple[float, float]]] = {}
    for bar in bars(figure):
        rows.setdefault(bar.y0, []).append((bar.x0, bar.x1))
    for spans in rows.values():
        assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(sorted(spans)))
    assert bool(figure.axes[0].texts) == (clients == 10)
    assert figure.get_figheight() < 16


def test_thousands_of_bars_are_pixels_in_a_vector_picture_too() -> None:
    entries = [entry(k, k / 10, k / 10 + 0.1) for k in range(style.MOST_SHAPES + 1)]
    many, few = placement_chart(placed(entries)), placement_chart(placed(entries[:-1]))
    assert all(row.get_rasterized() for row in many.axes[0].collections)
    assert len(bars(many)) == len(entries)
    assert not few.axes[0].collections[0].get_rasterized()
    assert len(style.svg(many)) < 150_000


def test_the_page_shows_the_picture_the_places_and_the_ratio(make_run: MakeRun) -> None:
    run_dir = place(make_run(), ENTRIES)
    page = Page(write_report(run_dir))
    assert (run_dir / "plots" / "placement.svg").exists()
    assert len(page.images) == len(ALL_PLOTS) + 1
    assert "Makespan 7.0 s, lower bound 5.6 s" in page.text
    assert "ratio 1.25" in page.text
    assert "node-a, GPU-8f3c2d1e, 2 attempts" in page.text
    assert "What went wrong" not in page.text, "metrics.jsonl tells of no failure"


def test_a_run_without_placements_has_neither_picture_nor_column(make_run: MakeRun) -> None:
    run_dir = make_run()
    page = Page(write_report(run_dir))
    assert not (run_dir / "plots" / "placement.svg").exists()
    assert [tag for tag, _ in page.tags].count("th") == 7


def test_a_run_that_reused_everybody_has_no_picture(make_run: MakeRun) -> None:
    entries = [entry(k, None, None, node=None, device_uuid=None, attempts=0) for k in range(4)]
    page = Page(write_report(place(make_run(), entries)))
    assert len(page.images) == len(ALL_PLOTS)


@pytest.mark.parametrize("finished", [True, False])
def test_what_went_wrong_is_listed_in_unfinished_runs_too(
    make_run: MakeRun, finished: bool
) -> None:
    run_dir = make_run()
    if not finished:
        (run_dir / "result.json").unlink()
    failed = {"event": "client_failed", "client": 2, "attempt": 1, "reason": "<b> died"}
    before, again = failed | {"client": 7}, {"event": "run_start"}
    path = run_dir / "metrics.jsonl"
    own = path.read_text()
    path.write_text("".join(f"{json.dumps(e)}\n" for e in (before, again)) + own)
    path.write_text(path.read_text() + json.dumps(failed) + "\n")
    page = Page(write_report(run_dir))
    assert "What went wrong" in page.text
    assert "Client 2, attempt 1: <b> died" in page.text
    assert "Client 7" not in page.text, "an earlier start of the run"


@pytest.mark.parametrize("broken", [{"client": 0}, entry(0, 1, 2) | {"start": "soon"}, 17])
def test_damaged_placements_are_named_in_one_line(broken: object) -> None:
    with pytest.raises(UserError, match=r"result\.json holds placements without"):
        read_placements({"placements": [broken]})
