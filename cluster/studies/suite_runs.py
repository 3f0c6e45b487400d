"""A suite's runs: their arguments, running those that are not finished, and the table of all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.run_dir import claimed, locate
from cluster.run.steps import Steps
from cluster.studies.cell import Cell
from cluster.studies.comparison import Figure, as_json, as_markdown
from cluster.studies.exhibits import EXHIBITS
from cluster.studies.suite_checks import refuse_any
from cluster.studies.suite_options import SuiteOptions
from cluster.studies.undertrained import loss_curve
from fl.disk_errors import refused_by_disk
from fl.errors import UserError
from fl.events import Event, Listener, Phase, Preparing
from fl.json_files import read_json, write_json
from fl.json_values import JsonObject
from fl.report.style import png
from fl.report.words import duration
from fl.whole_files import write_atomically


@dataclass(frozen=True)
class Found:
    """What a run found."""

    result: JsonObject
    """As ``result.json`` holds it."""
    losses: tuple[float, ...]
    """Of the server's training, by epoch, as far as they are known."""


def arguments_of(
    options: SuiteOptions,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    ending: Callable[[Cell], str] = lambda cell: "",
) -> dict[tuple[Cell, int], list[str]]:
    """Each run's arguments of the launch command; ``ending``: what a cell's runs' names end in."""
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
            f"--name={options.name}-{options.scale}-{cell.name}-seed{seed}{ending(cell)}",
            "--resume",
        ]
        for cell in cells
        for seed in seeds
    }


def text_of(name: str, scale: str, seeds: Sequence[int], figures: Sequence[Figure]) -> str:
    """The table, and what else its paper's figure shows in numbers."""
    table = as_markdown(name, scale, seeds, figures)
    if name not in EXHIBITS:
        return table
    return "\n".join([table, *EXHIBITS[name].tell(figures), ""])


def pictures_of(name: str, scale: str, figures: Sequence[Figure]) -> dict[str, bytes]:
    """The paper's figure as PNG files, by their names; of a table none."""
    if name not in EXHIBITS:
        return {}
    exhibit, stem = EXHIBITS[name], f"{name}-{scale}"
    drawn = {f"{stem}.png": exhibit.draw}
    drawn |= {f"{stem}-{ending}.png": draw for ending, draw in exhibit.also.items()}
    return {file: png(draw(figures)) for file, draw in drawn.items()}


def write(
    folder: Path, name: str, scale: str, seeds: Sequence[int], figures: Sequence[Figure]
) -> None:
    """Prints the table and saves it as text, as JSON and, for a figure, as a picture."""
    table, path = text_of(name, scale, seeds, figures), folder / f"{name}-{scale}"
    pictures = pictures_of(name, scale, figures)
    for file, picture in pictures.items():
        write_atomically(folder / file, picture)
    write_atomically(path.with_suffix(".md"), table.encode())
    write_json(path.with_suffix(".json"), as_json(name, scale, seeds, figures))
    print(f"\n{table}")
    print(f"table    {path.with_suffix('.md')}")
    for file in pictures:
        print(f"picture  {folder / file}")


def name(runs: Iterable[Sequence[str]]) -> None:
    """Prints each run's directory, and whether it is finished."""
    for arguments in runs:
        launch = parse(arguments)
        print(f"{locate(launch)}  {'finished' if finished(launch) else 'to be run'}")


def finished(launch: Launch) -> bool:
    """Whether the run has a result, of these settings or of others."""
    return (locate(launch) / "result.json").exists()


def run_all(
    runs: Mapping[tuple[Cell, int], Sequence[str]],
    known: Mapping[tuple[Cell, int], Found] = MappingProxyType({}),
    keep: Callable[[Cell, int, Found], None] = lambda *run: None,
) -> list[Figure]:
    """Runs what is not finished, and tells of each; returns the figures of all.

    Args:
        runs: each run's arguments, by cell and seed.
        known: what some of them are known to have found; these need no directory.
        keep: is told what each of the others found, as soon as it has.

    Raises:
        UserError: a run cannot be, which is said before the first, or was run with other settings.
        ClientFailed: a client failed for good.
    """
    with refused_by_disk():
        launches = {run: parse(a) for run, a in runs.items() if run not in known}
        _refuse({cell.name: of for (cell, _), of in launches.items() if not finished(of)})
    found: dict[Cell, list[Found]] = {}
    for number, (cell, seed) in enumerate(runs, start=1):
        title = f"[{number} of {len(runs)}] {cell.name} seed {seed}"
        run = known.get((cell, seed))
        if run is None:
            launch = launches[cell, seed]
            with Steps(Console(markup=False), title) as say:
                result = _result(launch, say)
            run = Found(result, loss_curve(locate(launch)))
            keep(cell, seed, run)
        found.setdefault(cell, []).append(run)
        took = duration(run.result["seconds"]["total"])
        print(f"{title}: {run.result['accuracy']:.4f}, {took}", flush=True)
    return [
        Figure(cell, tuple(run.result for run in of_cell), tuple(run.losses for run in of_cell))
        for cell, of_cell in found.items()
    ]


def _refuse(left: Mapping[str, Launch]) -> None:
    if left:
        with Steps(Console(markup=False)) as say:
            say(f"checking {len(left)} {'cell' if len(left) == 1 else 'cells'}")
            refuse_any(left)


def _result(launch: Launch, say: Callable[[str], None]) -> JsonObject:
    """The run's result: of an earlier run with the same settings, else of one run now."""
    with refused_by_disk():
        run_dir = locate(launch)
        if finished(launch):
            if parse([f"--config={run_dir / 'config.yaml'}"]).run != launch.run:
                what = f"{run_dir} was run with other settings"
                raise UserError(f"{what}; remove it, or name another")
            return read_json(run_dir / "result.json")
        prepared = prepare(launch, say=say)
    from cluster.run.runner import execute

    with claimed(launch) as run_dir:
        quiet = Console(quiet=True, markup=False)
        return execute(launch, prepared, run_dir, quiet, _heard(say))


def _heard(say: Callable[[str], None]) -> Listener:
    """Says what the run's events tell that it prepares, and once when that is over."""
    running = False

    def hear(event: Event) -> None:
        nonlocal running
        if isinstance(event, Preparing):
            say(event.what)
        elif isinstance(event, Phase) and not running:
            running = True
            say("running")

    return hear
