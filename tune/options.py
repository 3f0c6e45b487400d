"""A sweep's own options; the launch's options apply to all its runs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Annotated

from cluster.run.command_line import parse, parse_record
from cluster.run.options import Launch
from fl.bounds import Count, OneOf, Positive, Settings, Within
from fl.errors import UserError

PROG = "python -m tune.sweep"

METRICS = {"accuracy": "max", "loss": "min"}
"""What each fusion epoch reports, and whether more or less is better."""
SCHEDULERS = ("asha", "fifo")
SEARCHERS = {"random": None, "grid": None, "optuna": "optuna", "hyperopt": "hyperopt"}
"""Ways of choosing settings, and the package that each needs: an extra of the same name."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Settings):
    """Search a method's settings with Ray Tune. Clients with unchanged settings train only once.

    Every option of python -m cluster.launch can be given too, except --num-samples, which is the
    number of trials here: a method's own num_samples comes from a file or the space.
    """

    space: str = "server"
    """What to search: server, local or both, as the method declares them, or a YAML file."""
    num_samples: Count = 20
    """Trials, in addition to the default configuration."""
    metric: Annotated[str, OneOf(METRICS)] = "accuracy"
    """What trials are compared by: accuracy, or the loss of the server's fit."""
    scheduler: Annotated[str, OneOf(SCHEDULERS)] = "fifo"
    """fifo: every trial to its end. asha: stops trials that fall behind."""
    search: Annotated[str, OneOf(SEARCHERS)] = "random"
    """random, grid (all combinations), optuna or hyperopt."""
    max_concurrent: Count | None = None
    """Most trials at once. Default: one per GPU, else as many as cores and memory allow."""
    time_budget: Positive | None = None
    """Seconds after which all trials stop."""
    validation: Annotated[float, Within(0, 1, "()")] = 0.1
    """Share of the training images that trials are compared on; no client gets them."""
    final_seeds: Count = 3
    """Seeds with which best and default configuration are compared on the test split."""

    def check_further(self) -> None:
        """``search`` is installed."""
        package = SEARCHERS[self.search]
        if package and find_spec(package) is None:
            raise UserError(
                f"search {self.search} needs a package that is not installed: "
                f"pip install 'onefold[{package}]'"
            )


def parse_sweep(argv: Sequence[str]) -> tuple[SweepOptions, Launch]:
    """A sweep's own options, and those of all its runs.

    The two are parsed one after the other, since a method's settings are at the top level too and
    one may have the name of a sweep's option.

    Raises:
        UserError: one line, for whatever is wrong.
        SystemExit: with 0, after printing help.
    """
    own = [field.name for field in fields(SweepOptions)]
    options, rest = parse_record(SweepOptions, argv, own, PROG, return_unknown_args=True)
    launch = parse(rest, prog=PROG, beside=own)
    launch.refuse_smoke()
    if launch.run.data.validation:
        raise UserError("a sweep sets data.validation itself: give --validation")
    return options, launch
