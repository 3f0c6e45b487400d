"""Writes a run's report: its plots as files, and one self-contained page that shows them."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml

from fl.json_files import JsonObject
from fl.report import client_notes, style, words
from fl.report.figures import Picture, pictures
from fl.report.read import RunRecord, read_run
from fl.report.template import HERE, render
from fl.whole_files import write_atomically

FILES = (
    *("result.json", "privacy.json", "config.yaml", "metrics.jsonl"),
    *("partition.json", "partition.npz"),
    *("model/global.safetensors", "synthetic/samples.safetensors", "sent/examples.safetensors"),
    *("updates/", "plots/", "tensorboard/"),
)
"""What the page links to, relative to it, where the run has it."""
KINDS = {"svg": "image/svg+xml", "png": "image/png"}
"""The media type of a picture's file by its ending."""
LAST_ROUNDS = 10  # of which UA is the mean, as fl/scoring.py has it


@dataclass(frozen=True)
class Card:
    """One headline figure."""

    label: str
    value: str
    note: str = ""
    accent: bool = False


def write_report(run_dir: Path) -> Path:
    """Draws the plots of a run and writes its report.html; returns the page's path."""
    run = read_run(run_dir)
    with style.our_own():
        drawn = list(pictures(run))
    for picture in drawn:
        write(run_dir / "plots" / picture.file, picture.content)
    page = run_dir / "report.html"
    write(page, _render(run, drawn).encode())
    return page


def write(path: Path, content: bytes) -> None:
    """Writes the file in one piece, and its folder if there is none."""
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, content)


def _render(run: RunRecord, drawn: list[Picture]) -> str:
    filters = {
        "base64": style.base64,
        "duration": words.duration,
        "percent": words.percent,
        "size": words.size,
    }
    config = {key: value for key, value in run.config.items() if key not in ("versions", "call")}
    command = f"python -m cluster.launch --config {shlex.quote(str(run.path / 'config.yaml'))}"
    return render(
        HERE / "report.html.j2",
        filters,
        run=run,
        name=run.path.resolve().name,
        facts=_facts(run),
        progress=_progress(run),
        cards=_cards(run),
        pictures=drawn,
        kinds=KINDS,
        files=[name for name in FILES if (run.path / name).exists()],
        tested=run.scores.tested if run.scores else {},
        alone=run.alone.scores.tested if run.alone else {},
        losses={curve.client: curve.losses[-1] for curve in run.losses},
        below=run.scores.below(run.alone.scores) if run.scores and run.alone else [],
        client_notes=client_notes.beside_table(run),
        targets=(run.result or {}).get("rounds_to") if run.rounds else None,
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        versions=(run.result or {}).get("versions") or run.config.get("versions") or {},
        command=run.config.get("call") or command,
    )


def _facts(run: RunRecord) -> list[str]:
    """Facts about the run, in a few words each."""
    about = run.config | (run.result or {})
    named = {"\N{GREEK SMALL LETTER ALPHA} =": about.get("alpha"), "seed": about.get("seed")}
    facts = [f"{name} {value}" for name, value in named.items() if value is not None]
    if run.scores is not None:
        facts.append(f"each client scored on {client_notes.which_samples(run)}")
    elif about.get("scored_on") == "validation":
        facts.append("accuracy on held-out training images")
    if dp := (run.result or {}).get("dp"):
        known = ", but not towards who knows the seed" if dp.get("noise_from_seed") else ""
        budget = f"({dp['spent']:.3g}, {dp['delta']:g})"
        facts.append(f"every client {budget}-differentially private{known}")
    return facts + [str(about[key]) for key in ("protocol", "runtime", "device") if about.get(key)]


def _progress(run: RunRecord) -> str:
    """How far an unfinished run came."""
    reported = sum(row.bytes_up is not None for row in run.clients)
    clients = max(run.config.get("num_clients") or 0, len(run.clients))
    parts = [f"{reported} of {clients} clients had reported"]
    if run.accuracy:
        parts.append(f"it had reached {run.step} {max(run.accuracy)}")
    if run.last_event is not None:
        parts.append(f"the last event came {words.duration(run.last_event.seconds)} in")
    return "; ".join(parts)


def _cards(run: RunRecord) -> list[Card]:
    result = run.result or {}
    cards = [*_accuracy_cards(run, result)]
    total = result.get("seconds", {}).get("total")
    if total is not None:
        cards.append(Card("Total time", words.duration(total)))
    if result.get("bytes_up") is not None:
        cards.append(Card("Sent up", words.size(result["bytes_up"]), _traffic(result)))
    clients = result.get("clients") or run.config.get("num_clients") or len(run.clients)
    cards.append(Card("Clients", f"{clients}", words.tally(row.role for row in run.clients)))
    return cards


def _traffic(result: JsonObject) -> str:
    """What was sent up against FedAvg's with the same participants, and what was sent down."""
    up, down, fedavg = (result.get(key) for key in ("bytes_up", "bytes_down", "fedavg_bytes_up"))
    if not up and not down and fedavg:
        return "nothing is sent"
    against = (
        [f"{words.times(up / fedavg)} FedAvg's" if up else "nothing is sent"] if fedavg else []
    )
    return "; ".join([*against, *([] if down is None else [f"{words.size(down)} down"])])


def _accuracy_cards(run: RunRecord, result: JsonObject) -> list[Card]:
    if not result:
        if not run.accuracy:
            return []
        last, accuracy = max(run.accuracy.items())
        note = f"{run.step} {last}" + ("; mean over clients" if run.scores else "")
        return [Card("Accuracy so far", words.percent(accuracy), note, accent=True)]
    accuracy = result["accuracy"]
    best, start = result.get("best_accuracy"), result.get("start_accuracy")
    note = ""
    if best is not None:
        note = f"best {words.percent(best)}, {run.step} {result.get('best_epoch')}"
        note = note if best > accuracy else f"its best {run.step}"
    if run.scores is not None:
        note = f"mean over clients; {note}" if note else "mean over clients"
    cards = [
        Card("Accuracy", words.percent(accuracy), note, accent=True),
        *_client_cards(run, result),
    ]
    if start is not None:
        many = run.step == "round"
        before, by = (
            ("before round 1", "points") if many else ("before fusion", "points, by fusion")
        )
        cards.append(Card("Start", words.percent(start), before))
        cards.append(Card("Gain", words.points(accuracy - start), by))
    return cards


def _client_cards(run: RunRecord, result: JsonObject) -> list[Card]:
    """Beside the mean over clients after the last round."""
    if run.scores is None:
        return []
    cards = []
    if result.get("ua") is not None:
        many = (result.get("rounds") or len(run.rounds)) > LAST_ROUNDS
        rounds = "the last ten rounds" if many else "all rounds"
        cards.append(Card("UA", words.percent(result["ua"]), f"mean over clients and {rounds}"))
    worst = len(run.scores.worst)
    note = f"mean of {worst} clients" if worst > 1 else words.clients(run.scores.worst)
    cards.append(Card("Worst tenth", words.percent(run.scores.worst_tenth), note))
    return cards
