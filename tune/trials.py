"""A trial of a sweep: the sweep's launch with other settings, run in a directory of its own."""

import shutil
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from rich.console import Console

from cluster.hardware.inventory import Inventory
from cluster.run.command_line import as_arguments, parse
from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.run_dir import claimed, locate, nested
from fl.errors import UserError
from fl.events import Event
from fl.json_files import JsonObject, SettingValues, flatten, read_json_if_whole, write_json

UNNEEDED = ("model", "updates")
"""Folders of a finished trial's directory that only another use of its model would need."""
DEFAULT = "default"
"""The trial that changes no setting: the others are compared with it, and it may be the best."""
SETTINGS, FAILURE = "settings.json", "failure.txt"
"""Files of a trial's directory: its settings, and why it failed."""
RESULT = "result.json"
"""File that a run's directory has once the run is finished."""


def derive(
    launch: Launch, settings: SettingValues, name: str, *, validation: float = 0.0
) -> Launch:
    """The launch with these settings, parsed and checked as if they came from a command line; in
    the directory ``name`` below the launch's output directory.

    Raises:
        UserError: a setting's value is refused.
    """
    values = flatten(nested(launch.run)) | dict(settings) | {"data.validation": validation}
    arguments = [a for n, value in values.items() for a in as_arguments(n, value)]
    run = parse(arguments).run
    return replace(launch, run=run, name=name, resume=True, overwrite=False, dry_run=False)


def default_run(launch: Launch, validation: float) -> Launch:
    """The trial that changes no setting."""
    return derive(launch, {}, f"{launch.name}/trials/{DEFAULT}", validation=validation)


def run_trial(
    launch: Launch,
    settings: SettingValues,
    *listeners: Callable[[Event], None],
    prepare_with: Callable[[Launch], Prepared],
    report: bool = False,
) -> JsonObject:
    """Runs a trial in its directory, unless that holds its result already; returns the result.

    ``prepare_with`` makes it ready to start; ``listeners`` are called with its events. Its output
    goes to ``log.txt`` there, and the reason of a failure to ``failure.txt``. A sweep has many
    trials of which few are looked at, so only with ``report`` its report is drawn, and its model
    and its view of the store stay.
    """
    from cluster.run.runner import CHECKPOINTS, execute

    with ExitStack() as held:
        if not (locate(launch) / "config.yaml").exists():  # it failed before it could start
            for name in (SETTINGS, FAILURE):
                (locate(launch) / name).unlink(missing_ok=True)
        try:
            run_dir = held.enter_context(claimed(launch))
        except UserError:
            # A sweep that was killed may not have saved which settings it tried under this number.
            anew = replace(launch, resume=False, overwrite=True)
            run_dir = held.enter_context(claimed(anew))
        write_json(run_dir / SETTINGS, dict(settings))
        (run_dir / FAILURE).unlink(missing_ok=True)
        if (finished := read_json_if_whole(run_dir / RESULT)) is not None:
            return finished
        with (run_dir / "log.txt").open("a", buffering=1) as log:
            try:
                prepared = prepare_with(launch)
                console = Console(file=log, width=200, markup=False)
                result = execute(launch, prepared, run_dir, console, *listeners, report=report)
            except Exception as error:
                reason = " ".join(str(error).split())
                (run_dir / FAILURE).write_text(f"{type(error).__name__}: {reason}\n")
                traceback.print_exception(error, file=log)
                raise
        for name in (CHECKPOINTS, *(() if report else UNNEEDED)):  # each as large as a model
            shutil.rmtree(run_dir / name, ignore_errors=True)
        return result


def share_of(inventory: Inventory, bundle: Mapping[str, float]) -> Inventory:
    """The part of the inventory that a trial has, as its bundle states."""
    return replace(
        inventory,
        cpus=int(bundle["CPU"]),
        memory_bytes=int(bundle.get("memory", inventory.memory_bytes)),
        gpus=inventory.gpus[: int(bundle.get("GPU", 0))],
    )
