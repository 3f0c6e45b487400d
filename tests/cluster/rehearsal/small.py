"""A small run, and what a rehearsal of it runs on."""

from typing import Any

from cluster.rehearsal.shorten import Cut, cut
from cluster.run.command_line import parse
from cluster.run.prepare import prepare


def small_cut(*arguments: str) -> tuple[Any, Cut]:
    """The settings and the cut of a run on 400 digits, of four clients if nothing else is said."""
    few = ("--num-clients=4", "--data.max-train=400", "--data.max-test=200")
    launch = parse(["--runtime=inprocess", *few, *arguments])
    return launch.run.options, cut(prepare(launch), launch.run.options, 0)
