"""Writes the table of docs/results/gpus.md from the files of first_light.py.

    python benchmarks/gpu_page.py

Reads every folder below docs/results/runs/gpu. Of several runs with a figure the last one counts;
a figure of no run is reported as never run on a card.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "gpus.md"
RUNS = PAGE.parent / "runs" / "gpu"
BEGIN, END = "<!-- made by benchmarks/gpu_page.py -->", "<!-- until here -->"
NEVER = "never run on a card"
DRIVER = "benchmarks/first_light.py"

Row = dict[str, Any]


class Run:
    """The files of one call of first_light.py."""

    def __init__(self, folder: Path) -> None:
        begun = json.loads((folder / "steps.jsonl").read_text().splitlines()[0])
        self.card: str | None = begun["card"]
        self.commit, self.date = begun["commit"], begun["begun"]
        self.rows = lines(folder / "rows.jsonl")
        doctor = folder / "doctor.json"
        self.doctor: Row = json.loads(doctor.read_text()) if doctor.exists() else {}

    def of(self, benchmark: str, kind: str) -> list[Row]:
        """The rows of that kind which a program wrote."""
        return [r for r in self.rows if (r.get("benchmark"), r["kind"]) == (benchmark, kind)]


def lines(file: Path) -> list[Row]:
    """The file's rows; a last line that was cut off does not count."""
    if not file.exists():
        return []
    text = file.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def ceilings(run: Run) -> list[str]:
    """Bytes and FLOP per second."""
    units = {"copy_bytes_per_second": "TB/s copied"}
    return [
        f"{row['rate'] / 1e12:.3g} {units.get(row['name'], row['name'].split('_')[0] + ' TFLOP/s')}"
        for row in run.of("machine", "ceiling")
    ]


def tests(*folders: str) -> Callable[[Run], list[str]]:
    """How many tests of these folders passed."""

    def count(run: Run) -> list[str]:
        rows = [r for r in run.rows if r["kind"] == "test" and r["name"].startswith(folders)]
        return [
            f"{number} {outcome}"
            for outcome in ("passed", "failed", "skipped")
            if (number := sum(row["outcome"] == outcome for row in rows))
        ]

    return count


def results(benchmark: str) -> Callable[[Run], list[str]]:
    """Accuracy and seconds of runs; of one that was cut off, how far it came."""

    def tell(run: Run) -> list[str]:
        ended = run.of(benchmark, "result")
        if ended:
            return [
                f"{row['run']}: accuracy {row['accuracy']:.4f}, {row['seconds']['total']:.0f} s"
                for row in ended
            ]
        clients = run.of(benchmark, "client_end")
        epochs = run.of(benchmark, "epoch")
        last = [f"accuracy {epochs[-1]['accuracy']:.4f}"] if epochs else []
        said = [f"cut off after {len(clients)} clients and {len(epochs)} epochs", *last]
        return said if clients else []

    return tell


def doctor(run: Run) -> list[str]:
    """The verdict."""
    return [run.doctor["verdict"]] if run.doctor else []


def filters(run: Run) -> list[str]:
    """Share of the copy bandwidth that a run's filter reaches, or the kernel alone."""
    said = []
    for row in run.of("distance", "shape"):
        name = next((n for n in row["ratios"] if n.startswith(("run, 1", "kernel, triton"))), None)
        if name is not None:
            own = row["ratios"][name]
            beside = own.get("released_over_this")
            more = f", {beside:.0f} times the released procedure" if beside else ""
            share = own["share_of_copy_bandwidth"]
            said.append(f"{' x '.join(map(str, row['shape']))}: {share:.0%} of copy{more}")
    return said


def fits(run: Run) -> list[str]:
    """Milliseconds a step, ours and the plain loop's, beside the bound."""
    said = []
    for row in run.of("fusion", "setting"):
        steps = row["fit_seconds_per_step"]
        bound = max(row.get("bound_seconds_per_step", {"": 0.0}).values())
        said.append(
            f"width {row['width']:g}, {row['precision']}: {1e3 * steps['1 rank']:.2f} ms a step, "
            f"plain {1e3 * steps['plain']:.2f}, bound {1e3 * bound:.2f}"
        )
    return said


def states(run: Run) -> list[str]:
    """What saving a fit's state takes."""
    return [
        f"width {row['width']:g}: {row['bytes'] / 1e6:.0f} MB made in {row['made_s']:.2f} s"
        for row in run.of("fusion", "state")
    ]


def cohorts(run: Run) -> list[str]:
    """Clients per second of each way."""
    bounds = [
        f"bound of {row['device']}: {row['rate']:.0f}/s" for row in run.of("stacked", "bound")
    ]
    ways = [
        f"{row['name']} on {row['device']}: {row['clients_per_second']:.0f}/s"
        for row in run.of("stacked", "summary")
    ]
    return ways and [*ways, *bounds]


def together(run: Run) -> list[str]:
    """Time of a client's step beside others, and how many times as fast as alone that is."""
    return [
        f"{row['clients']} of width {row['width']:g}: {row['together_ms']:.2f} ms a step and "
        f"client, {row['eager_ms'] / row['together_ms']:.1f} times eager one by one, "
        f"{row['alone_ms'] / row['together_ms']:.1f} times replayed one by one"
        + ("" if row["same_bits"] else ", NOT THE BITS of alone")
        for row in run.of("together", "together")
    ]


def profiles(run: Run) -> list[str]:
    """Time, kernels and the busy share of a step."""
    return [
        f"{row['name']}: {row['ms_a_step']:.2f} ms, {row['kernels_a_step']:.0f} kernels, busy "
        f"{row['busy_share']:.0%}"
        for row in run.of("profile", "profile")
    ]


def ranks(run: Run) -> list[str]:
    """How far two ranks on one card are from one."""
    return [
        f"{row['backend']}: weights apart {row['apart']:.1g} of their norm"
        for row in run.of("ranks", "ranks")
    ]


SUBJECTS: Sequence[tuple[str, str, Callable[[Run], list[str]]]] = (
    ("What the card can do at most", "ceilings", ceilings),
    ("Kernels against the reference", "kernels", tests("tests/kernels")),
    ("Trainings, methods, a run, by tolerance", "methods", tests("tests/fl", "tests/cluster/run")),
    ("The main job, on the card and on the cores", "main", results("main")),
    ("Doctor", "doctor", doctor),
    ("Ten clients share a card", "share", tests("tests/cluster/clients")),
    ("Distance filter", "filter", filters),
    ("The server's fit, 5 teachers", "fit", fits),
    ("Saving a fit's state", "fit", states),
    ("Small clients a second", "cohorts", cohorts),
    ("VGG-9 clients side by side", "together", together),
    ("Fifty steps each", "profile", profiles),
    ("Two ranks on one card", "ranks", ranks),
    ("The paper's size: full VGG-9, 60,000 images", "paper", results("paper")),
)
"""What the table tells, the step of first_light.py that shows it, and how it is read."""


def table(runs: Sequence[Run]) -> str:
    """The table, of runs in the order of their dates."""
    text = ["| What | Figure | Card | Commit, day | Command |", "|---|---|---|---|---|"]
    for subject, step, read in SUBJECTS:
        told = [(run, figures) for run in runs if run.card and (figures := read(run))]
        command = f"`{DRIVER} --only {step}`"
        if told:
            run, figures = told[-1]
            where = f"{run.card} | {run.commit}, {run.date[:10]}"
            text.append(f"| {subject} | {'; '.join(figures)} | {where} | {command} |")
        else:
            text.append(f"| {subject} | {NEVER} | | | {command} |")
    return "\n".join(text)


def main() -> int:
    """Rewrites the table of the page; returns the exit status."""
    PAGE.write_text(page(PAGE.read_text(), RUNS))
    return 0


def page(text: str, folder: Path) -> str:
    """The page's text with the table of the runs in that folder."""
    found = [Run(file.parent) for file in folder.glob("*/steps.jsonl")]
    made = table(sorted(found, key=lambda run: run.date))
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.exit(main())
