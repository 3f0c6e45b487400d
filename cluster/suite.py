"""``python -m cluster.suite NAME``: a table or figure of the paper, run by run, beside the paper's.

A cell's runs are runs like any other, one directory each; those that are finished are not repeated,
and all share one store of client updates.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cluster.run.command_line import as_arguments, parse, stop_on_disk, stop_with
from cluster.run.prepare import prepare
from cluster.run.run_dir import claimed, locate
from cluster.run.slurm_options import SlurmOptions
from cluster.studies import fedaf_table7
from cluster.studies.cell import Cell
from cluster.studies.cells import make
from cluster.studies.comparison import Figure, as_json, as_markdown
from cluster.studies.exhibits import EXHIBITS, Draw
from cluster.studies.suite_options import BYTES_TABLE, SuiteOptions, parse_suite
from fl.disk_errors import refused_by_disk
from fl.errors import ClientFailed, UserError
from fl.fusion.ranked_server import ServerFailed
from fl.json_files import read_json, write_json
from fl.json_values import JsonObject
from fl.report.style import png
from fl.report.words import duration
from fl.whole_files import write_atomically


def suite(options: SuiteOptions) -> None:
    """Makes the table or figure: of finished runs, and of those that are still to be run.

    Raises:
        UserError: no cell is to be run, or a run cannot be.
    """
    name, scale, numbers = options.name, options.scale, options.seed_numbers
    if name == BYTES_TABLE:
        fedaf_table7.make(numbers, options.output_dir)
        return
    cells = make(name, scale, options.only, options.dataset, options.data_folder)
    if not cells:
        example = make(name, scale, (), options.dataset, options.data_folder)[0].name
        raise UserError(f"--only fits no cell of {name}; e.g. {example}")
    runs = _runs(options, cells, numbers)
    if options.dry_run:
        _name(runs.values())
    elif not (options.slurm.submit and _submit(runs.values(), options.slurm)):
        _write(options.output_dir / f"{name}-{scale}", name, scale, numbers, _run_all(runs))


def _runs(
    options: SuiteOptions, cells: Sequence[Cell], seeds: Sequence[int]
) -> dict[tuple[Cell, int], list[str]]:
    """Each run's arguments of the launch command."""
    where = [
        f"--output-dir={options.output_dir}",
        f"--data-root={options.data_root}",
        f"--runtime={options.runtime}",
    ]
    return {
        (cell, seed): [
            *cell.arguments,
            *where,
            f"--seed={seed}",
            f"--name={options.name}-{options.scale}-{cell.name}-seed{seed}",
            "--resume",
        ]
        for cell in cells
        for seed in seeds
    }


def _submit(runs: Iterable[Sequence[str]], slurm: SlurmOptions) -> bool:
    """Sends unfinished runs to Slurm; returns whether there were any."""
    settings = {name: value for name, value in asdict(slurm).items() if value not in (None, ())}
    asked = [argument for n, v in settings.items() for argument in as_arguments(f"slurm.{n}", v)]
    launches = [parse([*arguments, *asked]) for arguments in runs]
    left = [launch for launch in launches if not (locate(launch) / "result.json").exists()]
    if left:
        from slurm.array import submit_unfinished

        submit_unfinished(left, Console(markup=False))
    return bool(left)


def _write(
    path: Path, name: str, scale: str, seeds: Sequence[int], figures: Sequence[Figure]
) -> None:
    """Prints the table and saves it as text, as JSON and, for a figure, as a picture."""
    table = as_markdown(name, scale, seeds, figures)
    pictures: dict[Path, Draw] = {}
    if name in EXHIBITS:
        exhibit = EXHIBITS[name]
        table = "\n".join([table, *exhibit.tell(figures), ""])
        pictures[path.with_suffix(".png")] = exhibit.draw
        for ending, draw in exhibit.also.items():
            pictures[path.with_name(f"{path.name}-{ending}.png")] = draw
        for picture, draw in pictures.items():
            write_atomically(picture, png(draw(figures)))
    write_atomically(path.with_suffix(".md"), table.encode())
    write_json(path.with_suffix(".json"), as_json(name, scale, seeds, figures))
    print(f"\n{table}")
    print(f"table    {path.with_suffix('.md')}")
    for picture in pictures:
        print(f"picture  {picture}")


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
    """The run's result: of an earlier run with the same settings, else of one run now."""
    with refused_by_disk():
        launch = parse(arguments)
        run_dir = locate(launch)
        finished = run_dir / "result.json"
        if finished.exists():
            if parse([f"--config={run_dir / 'config.yaml'}"]).run != launch.run:
                raise UserError(
                    f"{run_dir} was run with other settings; remove it, or name another"
                )
            return read_json(finished)
        prepared = prepare(launch)
    from cluster.run.runner import execute

    with claimed(launch) as run_dir:
        return execute(launch, prepared, run_dir, Console(quiet=True, markup=False))


def main(argv: Iterable[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C."""
    try:
        suite(parse_suite(sys.argv[1:] if argv is None else list(argv)))
    except UserError as error:
        return stop_with(error)
    except (ClientFailed, ServerFailed) as error:
        print(f"onefold: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        return stop_on_disk(error, "the same command goes on")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
