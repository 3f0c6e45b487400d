"""FedMHO's variants on the same uploads: averaged start, plain, -MD, -SD over seeds and alphas.

    python benchmarks/variants.py --preset mnist-small --data-root DIR --json FILE

Every cell is a run of ``python -m cluster.launch``; the clients of a partition are trained once
and reused by the variants. Finished cells are read from their directories, not repeated.
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from cluster.launch import main as launch
from fl.json_files import JsonObject

METHODS = ("fedmho", "fedmho-md", "fedmho-sd")

PAPER = {  # Table 3, in percent
    ("paper-mnist", 0.5): ("93.45 ± 0.65", "95.71 ± 0.68", "95.67 ± 0.47"),
    ("paper-mnist", 0.3): ("92.43 ± 0.42", "93.98 ± 0.69", "94.25 ± 0.18"),
    ("paper-mnist", 0.1): ("88.48 ± 0.99", "91.22 ± 0.56", "91.55 ± 0.27"),
}


@dataclass(frozen=True, kw_only=True)
class Variants:
    """Runs each variant for every alpha and seed, and prints mean and spread."""

    preset: str = "mnist-small"
    """Settings of every run."""
    data_root: Path = Path("data")
    """Where the data sets lie."""
    output_dir: Path = Path("runs/variants")
    """Directory of the runs."""
    alphas: tuple[float, ...] = (0.5, 0.1)
    """Dirichlet concentrations."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; spread is the standard deviation over them."""
    json: Path | None = None
    """Also write the figures here."""


def main(options: Variants) -> int:
    """Runs what is missing and prints the table; returns the exit status."""
    cells: dict[float, dict[str, list[JsonObject]]] = {}
    for alpha in options.alphas:
        cells[alpha] = {}
        for method in METHODS:
            results = [run(options, method, alpha, seed) for seed in options.seeds]
            cells[alpha][method] = results
    table = Table("alpha", "averaged start", *METHODS, "seconds a run, local / fusion")
    figures = []
    for alpha, by_method in cells.items():
        rows = {"start": [r["start_accuracy"] for r in by_method["fedmho"]]}
        rows |= {m: [r["accuracy"] for r in by_method[m]] for m in METHODS}
        trained = [r["seconds"] for r in by_method[METHODS[0]]]
        local = statistics.mean(s["local"] for s in trained)
        fusion = statistics.mean(s["fusion"] for s in trained)
        table.add_row(f"{alpha:g}", *map(spread, rows.values()), f"{local:.0f} / {fusion:.0f}")
        if (options.preset, alpha) in PAPER:
            table.add_row("paper", "", *PAPER[options.preset, alpha], "", style="dim")
        figures.append({"alpha": alpha, "accuracy": rows, "seconds": trained})
        for method in METHODS[1:]:
            figures[-1][f"{method} teacher"] = [teacher(r) for r in by_method[method]]
    console = Console(width=120)
    console.print(table)
    print_teachers(figures, console)
    if options.json:
        options.json.write_text(json.dumps({"preset": options.preset, "rows": figures}, indent=2))
    return 0


def print_teachers(figures: list[JsonObject], console: Console) -> None:
    """Prints how far teachers agree with the synthetic labels, their confidence elsewhere, and both
    beside an oracle trained on the real images, as synthetic labels may be wrong themselves."""
    oracles = "oracle agrees", "teacher as the oracle", "where that confirms the label"
    table = Table("alpha", "teacher of", "agrees", "confidence", "where it disagrees", *oracles)
    for row in figures:
        for method in METHODS[1:]:
            teachers = row[f"{method} teacher"]
            columns = [[t[k] for t in teachers] for k in teachers[0]]
            table.add_row(f"{row['alpha']:g}", method, *map(spread, columns))
    console.print(table)


def teacher(result: JsonObject) -> dict[str, float]:
    """What a run's result says of its teacher, and of the oracle beside it."""
    oracle = result["oracle"]
    return {
        **result["teacher"],
        "oracle_agreement": oracle["agreement"],
        "agreement_with_oracle": oracle["teacher"]["agreement"],
        "agreement_where_confirmed": oracle["teacher"]["agreement_where_confirmed"],
    }


def run(options: Variants, method: str, alpha: float, seed: int) -> JsonObject:
    """The result of one run, from its directory where it is finished."""
    name = f"{options.preset}-{method}-alpha{alpha:g}-seed{seed}"
    result = options.output_dir / name / "result.json"
    if not result.exists():
        status = launch(
            [
                *("--preset", options.preset, "--method", method, "--alpha", str(alpha)),
                *("--seed", str(seed), "--name", name, "--resume", "--fid"),
                *("--data-root", str(options.data_root), "--output-dir", str(options.output_dir)),
            ]
        )
        if status:
            sys.exit(status)
    figures: JsonObject = json.loads(result.read_text())
    return figures


def spread(values: list[float]) -> str:
    """Mean and standard deviation in percent."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.2f} ± {100 * deviation:.2f}"


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Variants)))
