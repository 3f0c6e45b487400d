"""Writes a run's report: its figures as files, and one self-contained page that shows them."""

import shlex
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fl.json_files import JsonObject
from fl.report import classes, course, style
from fl.report.course import Drawn, where
from fl.report.read import RunRecord, read_run
from fl.report.words import NONE, duration, percent, points, size, tally, within_a_line
from fl.whole_files import write_atomically

FIGURES: dict[str, tuple[str, Callable[[RunRecord], Drawn]]] = {
    "accuracy": ("{metric}", course.accuracy),
    "client_accuracy": ("{metric} of each client", course.accuracies),
    "rounds": ("Rounds", course.rounds),
    "time": ("Time", course.time),
    "per_domain": ("{metric} by domain", classes.by_domain),
    "per_class": ("{metric} by class", classes.by_class),
    "confusion": ("Confusion", classes.confusion),
    "bytes": ("Communication", course.uploads),
    "losses": ("Local training", course.losses),
    "placement": ("Placement", course.placement),
    "partition": ("Partition", course.partition),
    "samples": ("Samples", classes.samples),
    "sent": ("What left the clients", classes.sent),
    "privacy": ("Privacy", course.privacy),
}
"""Every figure by its file's name, in the page's order: its title and what draws it."""
OF_IMAGES = ("samples", "sent")
"""Figures that are made of images: PNG files; the others are SVG."""
FILES = (
    *("result.json", "privacy.json", "config.yaml", "metrics.jsonl"),
    *("partition.json", "partition.npz"),
    *("model/global.safetensors", "synthetic/samples.safetensors", "sent/examples.safetensors"),
    *("updates/", "plots/", "tensorboard/"),
)
"""What the page links to, relative to it, if the run has it."""
MOST_ROWS = 1000
"""Clients that the page lists: a browser takes long for the table of a hundred thousand."""
UPDATES = {None: "not reported", True: "reused", False: "trained"}
T = TypeVar("T")
Card = tuple[str, str, str]
"""A headline figure: its label, its value, and a note."""


def write_report(run_dir: Path) -> Path:
    """Draws the figures of a run and writes its report.html; returns the page's path."""
    run = read_run(run_dir)
    with style.own_defaults():
        drawn = list(pictures(run))
    for picture in drawn:
        _write(run_dir / "plots" / picture["file"], picture["content"])
    config = {key: value for key, value in run.config.items() if key != "call"}
    command = f"python -m cluster.launch --config {shlex.quote(str(run_dir / 'config.yaml'))}"
    reached = run.result.get("rounds_to", {}) if run.rounds else {}
    page = run_dir / "report.html"
    write_page(
        page,
        "report.html.j2",
        run=run,
        facts=_facts(run),
        progress=_progress(run),
        cards=_cards(run),
        pictures=drawn,
        files=[name for name in FILES if (run_dir / name).exists()],
        targets={percent(float(target)): number for target, number in reached.items()},
        rows=_rows(run),
        notes=_notes(run),
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        command=run.config.get("call") or command,
    )
    return page


def write_page(page: Path, template: str, **values: Any) -> None:
    """Writes a page from a template: everything is escaped, and undefined values are errors."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["base64"] = lambda content: b64encode(content).decode()
    environment.filters["columns"] = _columns
    _write(page, environment.get_template(template).render(**values).encode())


def _columns(rows: list[dict[str, str]]) -> list[str]:
    """The columns of a table in which any row has a value."""
    return [name for name in rows[0] if any(row[name] != NONE for row in rows)]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, content)


def pictures(run: RunRecord) -> Iterator[dict[str, Any]]:
    """Every picture for which the run has data, in the page's order, as the page shows it: ``kind``
    is its media type, ``width`` is in CSS pixels, and a ``wide`` one takes the page's width."""
    for name, (title, draw) in FIGURES.items():
        if drawn := draw(run):
            figure, caption = drawn
            png = name in OF_IMAGES
            yield {
                "file": f"{name}.{'png' if png else 'svg'}",
                "title": title.format(metric=run.metric_name),
                "caption": caption,
                "content": style.png(figure) if png else style.svg(figure),
                "kind": "image/png" if png else "image/svg+xml",
                "width": round(100 * figure.get_figwidth()),
                "wide": figure.get_figwidth() > style.HALF + 1,
            }


def _facts(run: RunRecord) -> list[str]:
    """Facts about the run, in a few words each."""
    about = run.config | run.result
    cut = (run.config.get("partition") or {}).get("kind")
    named = {"partition": cut, "\N{GREEK SMALL LETTER ALPHA} =": about.get("alpha")}
    named["seed"] = about.get("seed")
    facts = [f"{name} {value}" for name, value in named.items() if value is not None]
    if run.scores:
        # FedBN's models are tested on the whole split.
        whose = "all" if run.config.get("tested") == "personal" else "its own"
        facts.append(f"each client scored on {whose} {run.tested_on}")
    elif about.get("scored_on") == "validation":
        facts.append(f"{within_a_line(run.metric_name)} on {run.tested_on}")
    if dp := run.result.get("dp"):
        known = ", but not towards who knows the seed" if dp.get("noise_from_seed") else ""
        budget = f"({dp['spent']:.3g}, {dp['delta']:g})"
        facts.append(f"every client {budget}-differentially private{known}")
    return facts + [str(about[key]) for key in ("protocol", "runtime", "device") if about.get(key)]


def _progress(run: RunRecord) -> str:
    """How far an unfinished run came."""
    reported = sum(row.bytes_up is not None for row in run.clients)
    total = max(run.config.get("num_clients") or 0, len(run.clients))
    parts = [f"{reported} of {total} clients had reported"]
    if run.accuracy:
        parts.append(f"it had reached {run.step} {max(run.accuracy)}")
    if run.last_event is not None:
        parts.append(f"the last event came {duration(run.last_event.seconds)} in")
    return "; ".join(parts)


def _cards(run: RunRecord) -> list[Card]:
    result, cards = run.result, _accuracy_cards(run)
    total = result.get("seconds", {}).get("total")
    if total is not None:
        reused = "without clients that the store had" if run.reused else ""
        cards.append(("Total time", duration(total), reused))
    if result.get("bytes_up") is not None:
        cards.append(("Sent up", size(result["bytes_up"]), _traffic(run)))
    count = result.get("clients") or run.config.get("num_clients") or len(run.clients)
    return [*cards, ("Clients", f"{count}", tally(row.role for row in run.clients))]


def _traffic(run: RunRecord) -> str:
    """What was sent up relative to FedAvg's with the same participants, and what was sent down."""
    up, down, fedavg = (run.result.get(n) for n in ("bytes_up", "bytes_down", "fedavg_bytes_up"))
    relative = f"{up / fedavg:.3g} times FedAvg's" if fedavg else ""
    return "; ".join(filter(None, (relative, "" if down is None else f"{size(down)} down")))


def _accuracy_cards(run: RunRecord) -> list[Card]:
    mean = ["mean over clients"] if run.scores else []
    if not run.result:
        last = max(run.accuracy, default=0)
        note = "; ".join([f"{run.step} {last}", *mean])
        return [(f"{run.metric_name} so far", percent(run.accuracy[last]), note)] if last else []
    accuracy, best = run.result["accuracy"], run.result.get("best_accuracy")
    if best is not None:
        mean.append(f"best {percent(best)}, {run.step} {run.result.get('best_epoch')}")
    cards = [(run.metric_name, percent(accuracy), "; ".join(mean))]
    if run.result.get("ua") is not None:
        cards.append(("UA", percent(run.result["ua"]), "mean over clients and the last ten rounds"))
    if scores := run.result.get("client_scores"):
        cards.append(("Worst tenth", percent(scores["worst_tenth"]), "mean over these clients"))
    if (start := run.result.get("start_accuracy")) is not None:
        before = "before round 1" if run.step == "round" else "before fusion"
        cards.append(("Start", percent(start), before))
        cards.append(("Gain", points(accuracy - start), "points"))
    return cards


def _notes(run: RunRecord) -> list[str]:
    """Sentences on the clients, above their table."""
    notes = []
    if len(run.clients) > MOST_ROWS:
        notes.append(
            f"The first {MOST_ROWS:,} of {len(run.clients):,} clients; metrics.jsonl has all."
        )
    if sent := run.result.get("distilled"):
        steps, near = sent["steps"], sent["nearest_real"]
        notes.append(
            f"{sent['images']:,} images left the clients, "
            f"{f'after {steps:,.0f} steps of' if steps else 'without'} distillation; their mean "
            f"distance to the nearest real image is {near:.2g} of the pixels' range (0: equal to a "
            "real image)."
        )
    if leaked := run.result.get("leaked"):
        notes.append(f"{leaked:,} test samples equal a training sample.")
    if untested := run.result.get("untested"):
        notes.append(f"Not scored, and left out of the mean: {tally(['client'] * len(untested))}.")
    return notes


def _rows(run: RunRecord) -> list[dict[str, str]]:
    """The table of the first clients, by the columns' names."""
    placed = {e["client"]: e for e in run.placements}
    losses = {curve.client: curve.losses[-1] for curve in run.losses}

    def place(placed: JsonObject) -> str:
        attempts = placed["attempts"]
        return where(placed) + (f", {attempts} attempts" if attempts > 1 else "")

    return [
        {
            "Client": str(row.client),
            "Role": row.role,
            "Model": row.model or NONE,
            "Samples": _cell(row.samples, "{:,}".format),
            run.metric_name: _cell(run.scores.get(row.client), percent),
            "Training": _cell(row.seconds, duration),
            "Last loss": _cell(losses.get(row.client), "{:.3g}".format),
            "Sent up": _cell(row.bytes_up, size),
            "Update": UPDATES[row.reused],
            "Where": _cell(placed.get(row.client), place),
        }
        for row in run.clients[:MOST_ROWS]
    ]


def _cell(value: T | None, text: Callable[[T], str]) -> str:
    return NONE if value is None else text(value)
