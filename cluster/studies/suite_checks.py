"""Checks a suite's cells before its first run: a table of hours does not end at its last one."""

from collections.abc import Mapping
from dataclasses import replace

from cluster.run.options import Launch
from cluster.run.prepare import prepare
from fl.errors import UserError


def refuse_any(launches: Mapping[str, Launch]) -> None:
    """Refuses all cells where one cannot be run, by preparing a run of each in this process.

    Args:
        launches: a run of each cell, by the cell's name.

    Raises:
        UserError: the cell's name, and what is wrong with it.
    """
    for name, launch in launches.items():
        try:
            prepare(replace(launch, runtime="inprocess"))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
