"""``python -m tune.sweep``: a search over a method's settings that trains its clients once."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cluster.run.steps import Steps, loading
from fl.errors import ClientFailed, UserError
from fl.own_process import run_as_command, say_interrupted

if TYPE_CHECKING:
    from cluster.run.early_ray import EarlyRay
    from cluster.run.options import Launch
    from cluster.run.prepare import Prepared
    from fl.spaces import Space
    from tune.options import SweepOptions

# Whatever imports torch is imported where it is used: that takes seconds, and is said first.


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C.

    ``own_process``: whether the process is the command's own, and has computed nothing before.
    """
    console, arguments = Console(markup=False), sys.argv[1:] if argv is None else argv
    with loading(arguments):
        from cluster.run.command_line import stop_with
        from cluster.run.early_ray import EarlyRay
        from cluster.run.plan import print_plan
        from cluster.run.prepare import prepare
        from fl.whole_files import refused_by_disk
        from tune.folder import claimed_sweep, named
        from tune.options import parse_sweep
        from tune.outcome import print_space
        from tune.spaces import check_space, read_space
        from tune.whole_sweep import default_run
    with ExitStack() as held:
        try:
            with refused_by_disk():
                options, launch = parse_sweep(arguments)
                launch = named(options, launch)
                space = read_space(options.space, launch.run.method)
                check_space(space, options, launch)
                early = held.enter_context(EarlyRay(launch, fork=own_process))
                with Steps(console) as say:
                    prepared = prepare(default_run(options, launch), say=say)
            if launch.dry_run:
                print_space(space, console)
                print_plan(prepared, console)
                return 0
            if launch.slurm.submit:
                from tune.submit import submit

                return submit(options, launch, space, console)
            folder = held.enter_context(claimed_sweep(options, launch, space))
            early.begin(prepared.inventory)  # late: a sweep whose name is taken needs none
        except UserError as error:
            return stop_with(error)
        return _run(options, launch, space, prepared, folder, console, early)


def _run(
    options: "SweepOptions",
    launch: "Launch",
    space: "Space",
    prepared: "Prepared",
    folder: Path,
    console: Console,
    early: "EarlyRay",
) -> int:
    """Runs the sweep in a directory that is this process's; returns the exit status."""
    from cluster.run.command_line import INTERRUPTED, stop_on_disk, stop_with
    from fl.errors import ServerFailed
    from tune.outcome import print_summary
    from tune.whole_sweep import search

    try:
        sweep = search(options, launch, space, prepared, folder, console, early)
    except KeyboardInterrupt:
        say_interrupted(f"interrupted; {folder} can be continued with --resume")
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


if __name__ == "__main__":
    run_as_command(lambda: main(own_process=True), goes_on=True)
