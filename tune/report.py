"""Writes a sweep's report page: its trials, their effects, and the best one's gain."""

import base64
from pathlib import Path

from fl.report import style
from fl.report.template import render
from fl.report.words import duration, percent, tally
from fl.whole_files import write_atomically
from tune.outcome import Sweep, gained, listed, ranked, with_spread
from tune.plots import effects, parallel_coordinates
from tune.rows import shown


def write_report(sweep: Sweep) -> Path:
    """Draws the pictures and writes ``report.html``; returns its path."""
    scored = [row for row in sweep.rows if row.scores]
    tried = [row.settings for row in scored]
    scores = [row.scores["accuracy"] for row in scored]
    best = scored.index(sweep.best)
    pictures = {
        "parallel": style.png(parallel_coordinates(sweep.space, tried, scores, best)),
        "effects": style.png(effects(sweep.space, tried, scores, best)),
    }
    for name, png in pictures.items():
        (sweep.folder / "plots").mkdir(exist_ok=True)
        write_atomically(sweep.folder / "plots" / f"{name}.png", png)
    filters = {
        "duration": duration,
        "percent": percent,
        "gained": gained,
        "listed": listed,
        "shown": shown,
        "spread": with_spread,
    }
    page = render(
        Path(__file__).with_name("sweep.html.j2"),
        filters,
        sweep=sweep,
        seeds=tally(["seed"] * len(sweep.comparison.best.values)),
        rows=ranked(sweep.rows, sweep.options),
        parallel=base64.b64encode(pictures["parallel"]).decode(),
        effects=base64.b64encode(pictures["effects"]).decode(),
    )
    path = sweep.folder / "report.html"
    write_atomically(path, page.encode())
    return path
