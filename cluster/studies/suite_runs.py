"""A suite's runs: their arguments, running those that are not finished, and the table of all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from cluster.run.command_line import parse
from cluster.run.options import Launch, SlurmOptions
from cluster.run.prepare import prepare
from cluster.run.run_dir import claimed, differences, locate
from cluster.run.smoke import Estimate, smoke
from cluster.run.steps import Steps
from cluster.studies.cells import SuiteOptions
from cluster.studies.comparison import Cell, Figure, as_json, as_markdown, client_curves, loss_curve
from cluster.studies.exhibits import Exhibit
from fl.errors import ClientFailed, UserError
from fl.events import Event, Listener, Phase, Preparing
from fl.json_files import JsonObject, read_json, write_json
from fl.report.style import png
from fl.report.words import about, duration
from fl.whole_files import refused_by_disk, write_atomically

Runs = Mapping[tuple[Cell, int], Launch]
"""The runs by cell and seed."""


def runs_of(
    options: SuiteOptions, cells: Sequence[Cell], seeds: Sequence[int]
) -> dict[tuple[Cell, int], Launch]:
    """The cells' runs; raises `UserError` for a setting that is wrong, or that does not go with the
    suite's options."""
    where = [
        f"--output-dir={options.output_dir}",
        f"--data-root={options.data_root}",
        f"--runtime={options.runtime}",
    ]
    found = {}
    for cell in cells:
        for seed in seeds:
            name = f"--name={options.name}-{options.scale}-{cell.name}-seed{seed}"
            launch = parse([*cell.arguments, *where, f"--seed={seed}", name, "--resume"])
            found[cell, seed] = replace(launch, slurm=options.slurm)
    return found


def describe(runs: Runs) -> None:
    """Prints the time of what is not finished, kind by kind, and of all of it.

    One run of each kind is tried as by ``--smoke`` and stands for the others. Runs that differ in
    ``alpha`` and seed alone are of a kind: so do their clients' shares, but hardly the sum of
    these.
    """
    kinds: dict[tuple[str, ...], list[tuple[str, Launch]]] = {}
    for (cell, _), launch in runs.items():
        if not finished(launch):
            kind = tuple(a for a in cell.arguments if not a.startswith("--alpha="))
            kinds.setdefault(kind, []).append((cell.name, launch))
    console = Console(markup=False, highlight=False, soft_wrap=True)
    seconds, gpu_hours, unknown = 0.0, 0.0, 0
    for (name, launch), count in ((alike[0], len(alike)) for alike in kinds.values()):
        title = f"{name}, {count} such run{'s' if count > 1 else ''}"
        try:
            estimate = _estimate(launch, title)
        except (UserError, ClientFailed) as error:
            console.print(f"{title}: unknown, {error}")
            unknown += count
        else:
            console.print(f"{title}: {about(estimate.seconds)} each")
            seconds += estimate.seconds * count
            gpu_hours += estimate.gpu_hours * count
    total = f"one after the other {about(seconds)}" if seconds else "nothing is known"
    gpus = f", {gpu_hours:.1f} GPU-hours" if gpu_hours else ""
    without = f", without {unknown} runs of which nothing is known" if unknown and seconds else ""
    console.print(f"{total}{gpus}{without}")


def _estimate(launch: Launch, name: str) -> Estimate:
    launch = replace(launch, smoke=True, slurm=SlurmOptions())
    with Steps(Console(markup=False), name) as say:
        prepared = prepare(launch, say=say)
        say("running one step of everything")
        return smoke(launch, prepared)


@dataclass(frozen=True)
class Table:
    """A table or figure of runs."""

    name: str
    scale: str | None
    """None for a grid of the user's own."""
    seeds: Sequence[int]
    figures: Sequence[Figure]
    exhibit: Exhibit | None
    """How it is drawn; a table is not."""

    @property
    def stem(self) -> str:
        """What its files' names begin with."""
        return f"{self.name}-{self.scale}" if self.scale else self.name

    @property
    def _found(self) -> list[Figure]:
        """The cells with a run that did not fail."""
        return [figure for figure in self.figures if figure.results]

    def text(self) -> str:
        """The table, and what else its paper's figure shows in numbers."""
        table = as_markdown(self.name, self.scale, self.seeds, self.figures)
        return (
            "\n".join([table, *self.exhibit.describe(self._found), ""]) if self.exhibit else table
        )

    def pictures(self) -> dict[str, bytes]:
        """The figure as PNG files, by their names; of a table none."""
        if self.exhibit is None:
            return {}
        shown = {"": self.exhibit} | {f"-{end}": other for end, other in self.exhibit.also.items()}
        return {f"{self.stem}{end}.png": png(e.draw(self._found)) for end, e in shown.items()}

    def write(self, folder: Path) -> None:
        """Prints the table and saves it as text, as JSON and, for a figure, as a picture."""
        text, path = self.text(), folder / f"{self.stem}.md"
        write_atomically(path, text.encode())
        figures = as_json(self.name, self.scale, self.seeds, self.figures)
        write_json(path.with_suffix(".json"), figures)
        print(f"\n{text}\ntable    {path}")
        for file, picture in self.pictures().items():
            write_atomically(folder / file, picture)
            print(f"picture  {folder / file}")


def finished(launch: Launch) -> bool:
    """Whether the run has a result, of these settings or of others."""
    return (locate(launch) / "result.json").exists()


def print_plan(runs: Runs) -> None:
    """Prints each run's directory, and whether it is finished."""
    for launch in runs.values():
        print(f"{locate(launch)}  {'finished' if finished(launch) else 'to be run'}")


def run_all(runs: Runs) -> list[Figure]:
    """Runs what is not finished, and reports each; returns the figures of all.

    A run in which a client fails for good is reported, and the others go on.

    Raises:
        UserError: a run cannot be, which is said before the first, or was run with other settings.
        ClientFailed: no run has a result.
    """
    with refused_by_disk():
        left = {cell.name: launch for (cell, _), launch in runs.items() if not finished(launch)}
        if left:
            with Steps(Console(markup=False)) as say:
                say(f"checking {len(left)} {'cell' if len(left) == 1 else 'cells'}")
                refuse_any(left)
    return run_each(runs, _result)


def run_each(runs: Runs, result_of: Callable[[Launch, str], JsonObject]) -> list[Figure]:
    """The figures of all runs, each reported when it has ended; those of failed ones say so.
    ``result_of`` makes a run's result, under a title.

    Raises:
        ClientFailed: no run has a result.
    """
    found: dict[Cell, list[tuple[JsonObject, Path]]] = {cell: [] for cell, _ in runs}
    failed: dict[Cell, list[str]] = {cell: [] for cell in found}
    failure: ClientFailed | None = None
    for number, ((cell, seed), launch) in enumerate(runs.items(), start=1):
        title = f"[{number} of {len(runs)}] {cell.name} seed {seed}"
        try:
            result = result_of(launch, title)
        except ClientFailed as error:
            failure, outcome = error, str(error)
            failed[cell].append(f"seed {seed}: {error}")
        else:
            found[cell].append((result, locate(launch)))
            outcome = f"{result['accuracy']:.4f}, {duration(result['seconds']['total'])}"
        print(f"{title}: {outcome}", flush=True)
    if failure is not None and not any(found.values()):
        raise failure
    return [
        Figure(
            cell,
            results=tuple(result for result, _ in own),
            losses=tuple(loss_curve(folder) for _, folder in own),
            failed=tuple(failed[cell]),
            client_losses=tuple(client_curves(folder) for _, folder in own),
        )
        for cell, own in found.items()
    ]


def refuse_any(launches: Mapping[str, Launch]) -> None:
    """Raises `UserError`, with the cell's name, if one cannot be run, by preparing a run of each in
    this process: a table of hours then does not end at its last cell. ``launches``: by the cell's
    name."""
    for name, launch in launches.items():
        try:
            prepare(launch, measure=False)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None


def earlier(launch: Launch) -> JsonObject | None:
    """The result of a finished run with the same settings; None where none is finished. Raises
    `UserError` if it has other settings."""
    if not finished(launch):
        return None
    run_dir = locate(launch)
    if changed := differences(run_dir / "config.yaml", launch.run):
        other = ", ".join(changed.values())
        raise UserError(
            f"{run_dir} holds another run ({other}): choose another folder, or remove it (in "
            "Python: overwrite=True)"
        )
    return read_json(run_dir / "result.json")


def _result(launch: Launch, title: str) -> JsonObject:
    """The run's result: of an earlier run with the same settings, else of one run now."""
    with Steps(Console(markup=False), title) as say:
        with refused_by_disk():
            if result := earlier(launch):
                return result
            prepared = prepare(launch, say=say)
        from cluster.run.runner import execute

        with claimed(launch) as run_dir:
            quiet = Console(quiet=True, markup=False)
            return execute(launch, prepared, run_dir, quiet, _heard(say))


def _heard(say: Callable[[str], None]) -> Listener:
    """Says what the run's events report that it prepares, and once when that is over."""
    running = False

    def hear(event: Event) -> None:
        nonlocal running
        if isinstance(event, Preparing):
            say(event.what)
        elif isinstance(event, Phase) and not running:
            running = True
            say("running")

    return hear
