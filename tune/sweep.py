"""``python -m tune.sweep``: a search over a method's settings that trains its clients once."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from cluster.launch import interrupt
from cluster.run.command_line import INTERRUPTED, flatten, stop_on_disk, stop_with
from cluster.run.options import Launch
from cluster.run.plan import print_plan
from cluster.run.prepare import Prepared, prepare
from cluster.run.run_dir import nested
from cluster.run.runtime import ray_cluster
from fl.disk_errors import refused_by_disk
from fl.errors import ClientFailed, UserError
from fl.fusion.ranked_server import ServerFailed
from fl.spaces import Space
from tune.final import compare
from tune.folder import add_seconds, claimed_sweep, named, write_configuration
from tune.options import SweepOptions, parse_sweep
from tune.outcome import Sweep, print_space, print_summary, print_trials, write_sweep
from tune.report import write_report
from tune.rows import best_of, read_rows
from tune.savings import savings
from tune.spaces import check_space, num_trials, read_space
from tune.trials import DEFAULT, derive, run_trial


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C."""
    console = Console(markup=False)
    with ExitStack() as held:
        try:
            with refused_by_disk():
                options, launch = parse_sweep(sys.argv[1:] if argv is None else argv)
                launch = named(options, launch)
                space = read_space(options.space, launch.run.method)
                check_space(space, options, launch)
                prepared = prepare(_default(options, launch))
            if launch.dry_run:
                print_space(space, console)
                print_plan(prepared, console)
                return 0
            if launch.slurm.submit:
                from tune.submit import submit

                return submit(options, launch, space, console)
            folder = held.enter_context(claimed_sweep(options, launch, space))
        except UserError as error:
            return stop_with(error)
        return _run(options, launch, space, prepared, folder, console)


def _run(
    options: SweepOptions,
    launch: Launch,
    space: Space,
    prepared: Prepared,
    folder: Path,
    console: Console,
) -> int:
    """Runs the sweep in a directory that is this process's; returns the exit status."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, interrupt)
    try:
        sweep = search(options, launch, space, prepared, folder, console)
    except KeyboardInterrupt:
        print(f"interrupted; {folder} can be continued with --resume", file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        return stop_with(error)
    except (ClientFailed, ServerFailed) as error:
        print(f"onefold: {error}\nfinished trials are kept in {folder}", file=sys.stderr)
        return 1
    except OSError as error:
        return stop_on_disk(error, f"--resume goes on in {folder}")
    print_summary(sweep, console)
    return 0


def search(
    options: SweepOptions,
    launch: Launch,
    space: Space,
    prepared: Prepared,
    folder: Path,
    console: Console,
) -> Sweep:
    """Runs default, trials, and best against default; writes all files of the sweep."""
    flat = flatten(nested(launch.run))
    defaults = {name: flat[name] for name in space}
    with ray_cluster(launch, prepared.inventory, folder):
        # First and on the whole machine, so that the trials find the clients' updates stored.
        console.print(f"default configuration, on {options.validation:g} of the training images")
        run_trial(_default(options, launch), {}, prepare_with=lambda _: prepared)
        from tune.tuning import run_trials

        console.print(f"{num_trials(space, options)} trials of {', '.join(space)}")
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


def _default(options: SweepOptions, launch: Launch) -> Launch:
    name = f"{launch.name}/trials/{DEFAULT}"
    return derive(launch, {}, name, validation=options.validation)


if __name__ == "__main__":
    status = main()
    if status == INTERRUPTED:
        os._exit(status)
    sys.exit(status)
