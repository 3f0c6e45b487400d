"""Estimates a table: one run of each kind is tried by ``--smoke`` and stands for the others."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.run.run_dir import locate
from cluster.run.smoke import Estimate, about, smoke
from cluster.run.steps import Steps
from cluster.studies.cell import Cell
from fl.errors import ClientFailed, UserError

Run = tuple[tuple[Cell, int], Sequence[str]]
"""A cell, its seed, and the arguments of the launch command."""


def tell(runs: Mapping[tuple[Cell, int], Sequence[str]]) -> None:
    """Prints the time of what is not finished, kind by kind, and of all of it.

    Runs that differ in ``alpha`` and seed alone are of a kind: so do their clients' shares, but
    hardly the sum of these.
    """
    console = Console(markup=False, highlight=False, soft_wrap=True)
    seconds, gpu_hours, unknown = 0.0, 0.0, 0
    for kind in _kinds(runs):
        (cell, _), arguments = kind[0]
        name = f"{cell.name}, {len(kind)} such run{'s' if len(kind) > 1 else ''}"
        try:
            estimate = _estimate(arguments, name)
        except (UserError, ClientFailed) as error:
            console.print(f"{name}: unknown, {error}")
            unknown += len(kind)
            continue
        console.print(f"{name}: {about(estimate.seconds)} each")
        seconds += estimate.seconds * len(kind)
        gpu_hours += estimate.gpu_hours * len(kind)
    told = f"one after the other {about(seconds)}" if seconds else "nothing is known"
    gpus = f", {gpu_hours:.1f} GPU-hours" if gpu_hours else ""
    without = f", without {unknown} runs of which nothing is known" if unknown and seconds else ""
    console.print(f"{told}{gpus}{without}")


def _estimate(arguments: Sequence[str], name: str) -> Estimate:
    launch = parse([*arguments, "--smoke"])
    with Steps(Console(markup=False), name) as say:
        prepared = prepare(launch, say=say)
        say("running one step of everything")
        return smoke(launch, prepared)


def _kinds(runs: Mapping[tuple[Cell, int], Sequence[str]]) -> list[list[Run]]:
    """The runs that are not finished, with those together that differ in alpha and seed alone."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run, arguments in runs.items():
        if not (locate(parse(arguments)) / "result.json").exists():
            found.setdefault(_without_alpha(run[0].arguments), []).append((run, arguments))
    return list(found.values())


def _without_alpha(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments but for ``--alpha VALUE`` and ``--alpha=VALUE``."""
    after = ("", *arguments)
    return tuple(
        argument
        for before, argument in zip(after, arguments, strict=False)
        if before != "--alpha" and argument.partition("=")[0] != "--alpha"
    )
