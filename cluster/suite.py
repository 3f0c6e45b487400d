"""``python -m cluster.suite NAME``: a table or figure of the paper, run by run, beside the paper's.

A cell's runs are runs like any other, one directory each; those that are finished are not repeated,
and all share one store of client updates.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from cluster.run.steps import ended, loading
from fl.errors import UserError
from fl.own_process import run_as_command

if TYPE_CHECKING:
    from cluster.studies.cells import SuiteOptions
    from cluster.studies.exhibits import Exhibit
    from cluster.studies.suite_runs import Runs

# Whatever imports torch is imported where it is used: that takes seconds, and is said first.


def main(argv: Iterable[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    with loading(arguments):
        from cluster.studies.cells import parse_suite
    return ended(lambda: suite(parse_suite(arguments)))


def suite(options: "SuiteOptions") -> int:
    """Makes the table or figure: of finished runs, and of those that are still to be run. Returns
    the exit status.

    Raises:
        UserError: no cell is to be run, or a run cannot be.
    """
    from cluster.studies import fedaf_table7, suite_runs
    from cluster.studies.cells import BYTES_TABLE, make
    from cluster.studies.exhibits import EXHIBITS

    name, scale, seeds = options.name, options.scale, options.seed_numbers
    if name == BYTES_TABLE:
        fedaf_table7.make(seeds, options.output_dir)
        return 0
    cells = make(name, scale, options.only, options.dataset, options.data_folder)
    if not cells:
        example = make(name, scale, (), options.dataset, options.data_folder)[0].name
        raise UserError(f"--only matches no cell of {name}; e.g. {example}")
    runs = suite_runs.runs_of(options, cells, seeds)
    if options.dry_run:
        suite_runs.print_plan(runs)
        if scale == "paper":
            suite_runs.describe(runs)
        return 0
    return make_table(runs, name, scale, EXHIBITS.get(name))


def make_table(runs: "Runs", name: str, scale: str | None, exhibit: "Exhibit | None") -> int:
    """Runs what is not finished, or sends it to Slurm; once all is finished, writes the table.
    Returns the exit status: 1 if a run failed."""
    from cluster.studies import suite_runs

    first = next(iter(runs.values()))
    left = [launch for launch in runs.values() if not suite_runs.finished(launch)]
    if first.slurm.submit and left:
        from slurm.array import submit_all

        submit_all(left, Console(markup=False))
    elif first.dry_run:
        suite_runs.print_plan(runs)
    else:
        figures, seeds = suite_runs.run_all(runs), list(dict.fromkeys(seed for _, seed in runs))
        suite_runs.Table(name, scale, seeds, figures, exhibit).write(first.output_dir)
        return int(any(figure.failed for figure in figures))
    return 0


if __name__ == "__main__":
    run_as_command(main, goes_on=True)
