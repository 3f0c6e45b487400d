"""``python -m cluster.suite NAME``: a table or figure of the paper, run by run, beside the paper's.

A cell's runs are runs like any other, one directory each; those that are finished are not repeated,
and all share one store of client updates.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from cluster.run.command_line import as_arguments, parse, stop_with
from cluster.run.prepare import prepare
from cluster.run.run_dir import claim, locate, write_json
from cluster.run.slurm_options import SlurmOptions
from cluster.studies import fedaf_table7
from cluster.studies.cells import TABLES, Cell, Scale, make
from cluster.studies.comparison import Figure, as_json, as_markdown
from cluster.studies.suite_plots import EXHIBITS
from fl.data.datasets import NAMES
from fl.errors import ClientFailed, UserError, unknown
from fl.fusion.ranked_server import ServerFailed
from fl.json_values import JsonObject
from fl.report.style import png
from fl.report.words import duration
from fl.whole_files import write_atomically

ALLOCATION = SlurmOptions()


def suite(
    name: Annotated[str, tyro.conf.Positional],
    scale: Scale = "small",
    seeds: str = "0,1,2",
    only: tuple[str, ...] = (),
    dataset: str | None = None,
    output_dir: Path = Path("runs"),
    data_root: Path = Path("data"),
    runtime: Literal["ray", "inprocess"] = "ray",
    dry_run: bool = False,
    slurm: SlurmOptions = ALLOCATION,
) -> None:
    """Regenerate a table or figure of the FedMHO paper, or of FedAF's.

    Args:
        name: Table: table3, table4, table5, table6, table8, table9 or loss-weights. Figure: fig5,
            fig6, fig7, fig8 or fid, with a picture. Of FedAF's paper: fedaf (accuracy over rounds,
            Tables 1 and 4 and Figure 3) or fedaf-table7 (bytes).
        scale: small: a sixth of the images and narrow models, for two cores. paper: for GPUs.
        seeds: Seeds of a cell's runs, with commas between.
        only: Patterns of the cells to run, as in 'mnist-alpha0.5-*'. Default: all.
        dataset: Data set in place of the paper's; then there is no number to compare with.
        output_dir: Where the runs are kept, and the table.
        data_root: Where the data sets lie, in torchvision's layout.
        runtime: As of the launch command.
        dry_run: Name the runs and whether each is finished; start nothing.
        slurm: Send what is not finished to Slurm as one job array. Once all is finished, the same
            command makes the table.
    """
    if name not in (*TABLES, "fedaf-table7"):
        raise unknown("table", name, (*TABLES, "fedaf-table7"))
    where = (f"--output-dir={output_dir}", f"--data-root={data_root}", f"--runtime={runtime}")
    if name == "fedaf-table7":
        fedaf_table7.make(_numbers(seeds), output_dir)
        return
    if dataset and dataset not in NAMES:
        raise unknown("data set", dataset, NAMES)
    cells, numbers = make(name, scale, only, dataset), _numbers(seeds)
    if not cells:
        example = make(name, scale, dataset=dataset)[0].name
        raise UserError(f"--only fits no cell of {name}; e.g. {example}")
    runs = {
        (cell, seed): [
            *cell.arguments,
            *where,
            f"--seed={seed}",
            f"--name={name}-{scale}-{cell.name}-seed{seed}",
            "--resume",
        ]
        for cell in cells
        for seed in numbers
    }
    if dry_run:
        _name(runs.values())
        return
    if slurm.submit and _submit(runs.values(), slurm):
        return
    _write(output_dir / f"{name}-{scale}", name, scale, numbers, _run_all(runs))


def _submit(runs: Iterable[Sequence[str]], slurm: SlurmOptions) -> bool:
    """Sends what is not finished to Slurm; whether there was anything."""
    settings = {name: value for name, value in asdict(slurm).items() if value not in (None, ())}
    asked = [argument for n, v in settings.items() for argument in as_arguments(f"slurm.{n}", v)]
    launches = [parse([*arguments, *asked]) for arguments in runs]
    left = [launch for launch in launches if not (locate(launch) / "result.json").exists()]
    if left:
        from slurm.array import submit_unfinished

        submit_unfinished(left, Console())
    return bool(left)


def _write(
    path: Path, name: str, scale: str, seeds: Sequence[int], figures: Sequence[Figure]
) -> None:
    """Prints the table and keeps it, as text, as JSON and, for a figure, as a picture."""
    table = as_markdown(name, scale, seeds, figures)
    if name in EXHIBITS:
        exhibit = EXHIBITS[name]
        table = "\n".join([table, *exhibit.tell(figures), ""])
        write_atomically(path.with_suffix(".png"), png(exhibit.draw(figures)))
    write_atomically(path.with_suffix(".md"), table.encode())
    write_json(path.with_suffix(".json"), as_json(name, scale, seeds, figures))
    print(f"\n{table}")
    print(f"table    {path.with_suffix('.md')}")
    if name in EXHIBITS:
        print(f"picture  {path.with_suffix('.png')}")


def _name(runs: Iterable[Sequence[str]]) -> None:
    for arguments in runs:
        path = locate(parse(arguments))
        print(f"{path}  {'finished' if (path / 'result.json').exists() else 'to be run'}")


def _tell(number: int, of: int, name: str, seed: int, result: JsonObject) -> None:
    took = duration(result["seconds"]["total"])
    accuracy = f"{result['accuracy']:.4f}"
    print(f"[{number} of {of}] {name} seed {seed}: {accuracy}, {took}", flush=True)


def _run_all(runs: dict[tuple[Cell, int], list[str]]) -> list[Figure]:
    results: dict[Cell, list[JsonObject]] = {}
    for number, ((cell, seed), arguments) in enumerate(runs.items(), start=1):
        result = _result(arguments)
        results.setdefault(cell, []).append(result)
        _tell(number, len(runs), cell.name, seed, result)
    return [Figure(cell, tuple(found)) for cell, found in results.items()]


def _result(arguments: Sequence[str]) -> JsonObject:
    """What the run found: now, or earlier with the same settings."""
    launch = parse(arguments)
    run_dir = locate(launch)
    finished = run_dir / "result.json"
    if finished.exists():
        if parse([f"--config={run_dir / 'config.yaml'}"]).run != launch.run:
            raise UserError(f"{run_dir} was run with other settings; remove it, or name another")
        found: JsonObject = json.loads(finished.read_text())
        return found
    prepared = prepare(launch)
    from cluster.run.runner import execute

    return execute(launch, prepared, claim(launch), Console(quiet=True))


def _numbers(seeds: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in seeds.split(",")))
    except ValueError:
        raise UserError(f"seeds must be whole numbers with commas, got {seeds!r}") from None


def main(argv: Iterable[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C."""
    try:
        given = sys.argv[1:] if argv is None else list(argv)
        if any(a == "--slurm" or a.startswith("--slurm.") for a in given):
            given = [*(a for a in given if a != "--slurm"), "--slurm.submit"]
        tyro.cli(suite, prog="python -m cluster.suite", args=given)
    except UserError as error:
        return stop_with(error)
    except (ClientFailed, ServerFailed) as error:
        print(f"onefold: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
