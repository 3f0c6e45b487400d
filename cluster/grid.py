"""``onefold sweep --grid``: every combination of methods, settings and seeds as one table.

Each run is a run like any other; those that are finished are not repeated, and all share one store
of client updates.
"""

import sys
from collections.abc import Iterable

from cluster.run.steps import ended, loading
from cluster.suite import make_table
from fl.own_process import run_as_command

# Whatever imports torch is imported where it is used: that takes seconds, and is said first.

HELP = """usage: onefold sweep --grid NAME=VALUE,VALUE ... [--name NAME] [OPTIONS]

Every combination of the values, run by run: one table with means and standard
deviations over seeds, and a picture.

  NAME=VALUE,...   a setting of onefold run, without its dashes, and its values;
                   method and seed too. They come first.
  FILE.yaml        the same in a file: a list of values for each setting
  --name NAME      of the grid and its table (default: grid)
  OPTIONS          of onefold run, for all runs; with --slurm what is not finished
                   goes to Slurm as one job array

Finished runs are not repeated: the same command goes on, and with more values
runs what is missing.

example:
  onefold sweep --grid method=fedavg,fedprox alpha=0.1,0.5 seed=0,1,2 --rounds 5
"""


def main(argv: Iterable[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    arguments = [a for a in arguments if a != "--grid"]
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(HELP, end="")
        return 0 if arguments else 2
    with loading(arguments):
        from cluster.studies.grids import parse_grid

    def run() -> int:
        runs, name, picture = parse_grid(arguments)
        return make_table(runs, name, None, picture)

    return ended(run)


if __name__ == "__main__":
    run_as_command(main, goes_on=True)
