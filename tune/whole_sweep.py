"""A whole sweep: the default configuration, all trials, and the best against the default."""

import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from cluster.run.command_line import flatten
from cluster.run.early_ray import EarlyRay
from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.run_dir import nested
from cluster.run.runtime import ray_cluster
from cluster.run.steps import Steps
from fl.errors import UserError
from fl.spaces import Space
from tune.folder import add_seconds, write_configuration
from tune.options import SweepOptions
from tune.outcome import Sweep, compare, print_trials, write_sweep
from tune.report import write_report
from tune.rows import best_of, read_rows, savings
from tune.spaces import num_trials
from tune.trials import DEFAULT, derive, run_trial


def search(
    options: SweepOptions,
    launch: Launch,
    space: Space,
    prepared: Prepared,
    folder: Path,
    console: Console,
    early: EarlyRay | None = None,
) -> Sweep:
    """Runs default, trials, and best against default; writes all files of the sweep.

    ``early``: its Ray, where that was begun.
    """
    flat = flatten(nested(launch.run))
    defaults = {name: flat[name] for name in space}
    with ExitStack() as held:
        with Steps(console) as say:
            say("joining Ray" if launch.ray_address else "starting Ray")
            held.enter_context(ray_cluster(launch, prepared.inventory, folder, early))
        # First and on the whole machine, so that the trials find the clients' updates stored.
        console.print(f"default configuration, on {options.validation:g} of the training images")
        run_trial(default_run(options, launch), {}, prepare_with=lambda _: prepared)
        console.print(f"{num_trials(space, options)} trials of {', '.join(space)}")
        with Steps(console) as say:
            say("loading Ray Tune")
            from tune.tuning import run_trials
        began = time.perf_counter()
        try:
            run_trials(options, launch, space, prepared, folder)
        finally:  # a sweep that is stopped goes on later, and its trials took all of it
            seconds = add_seconds(folder, time.perf_counter() - began)
        rows = read_rows(folder / "trials", defaults)
        print_trials(rows, options, list(space), console)
        best = best_of(rows, options)
        if best is None:
            raise UserError(f"no trial finished; the reasons are in {folder / 'trials'}")
        settings = {} if best.name == DEFAULT else dict(best.settings)
        write_configuration(folder / "best.yaml", derive(launch, settings, "best").run)
        seeds = "one seed" if options.final_seeds == 1 else f"{options.final_seeds} seeds"
        console.print(f"best and default with {seeds}, on the test split")
        comparison = compare(launch, settings, prepared.inventory, seeds=options.final_seeds)
    sweep = Sweep(
        folder=folder,
        options=options,
        run=launch.run,
        space=space,
        rows=tuple(rows),
        best=best,
        comparison=comparison,
        savings=savings(rows, prepared.members, prepared.inventory),
        seconds=round(seconds, 3),
        partition=prepared.partition.digest,
    )
    write_sweep(sweep)
    write_report(sweep)
    return sweep


def default_run(options: SweepOptions, launch: Launch) -> Launch:
    """The trial that changes no setting."""
    name = f"{launch.name}/trials/{DEFAULT}"
    return derive(launch, {}, name, validation=options.validation)
