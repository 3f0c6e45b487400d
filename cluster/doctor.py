"""``python -m cluster.doctor``: says whether this machine is fit to run federations."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cluster.checks.check import Result, last_line, within
from cluster.checks.found import Found, look_around
from cluster.checks.report import (
    advice_table,
    as_json,
    found_table,
    heading,
    is_fit,
    result_line,
    verdict,
)
from cluster.checks.run_checks import run_checks
from cluster.hardware.private_ray import parse_address
from cluster.run.command_line import INTERRUPTED, parse_record, setting_types, stop_with
from fl.bounds import Settings
from fl.errors import UserError
from fl.json_files import write_json
from fl.own_process import prepare_process

LOOKING_S = 30.0
"""Seconds that looking around may take, of which a driver may take most."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Settings):
    """Say whether this machine is fit: what there is, and whether what a run needs works.

    Starts real clients and ranks of the server on a Ray cluster of its own. Exit status: 0 fit,
    1 not fit, 2 bad usage.
    """

    output_dir: Path = Path("runs")
    """Directory of all runs, whose file system is checked; it is not made."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster to check, over all its nodes. Default: one of our own, here."""
    json: Path | None = None
    """File to write everything to, for programs."""

    def check_further(self) -> None:
        """The address is HOST:PORT, and the folder of the JSON file exists."""
        if self.ray_address is not None:
            parse_address(self.ray_address)
        if self.json is not None and not self.json.parent.is_dir():
            raise UserError(f"json must be in a directory that exists, got {self.json}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0 fit, 1 not fit, 2 bad usage, 130 Ctrl-C."""
    try:
        options = _parse(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        return stop_with(error)
    try:
        return _examine(options, Console())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _parse(argv: Sequence[str]) -> DoctorOptions:
    names = [name for name, _ in setting_types(DoctorOptions)]
    options: DoctorOptions = parse_record(DoctorOptions, argv, names, "python -m cluster.doctor")
    return options


def _examine(options: DoctorOptions, console: Console) -> int:
    """Looks around, makes all checks, and reports; returns the exit status."""
    try:
        found = within(LOOKING_S, lambda: look_around(options.output_dir))
    except Exception as error:
        print(f"not fit: cannot look around: {last_line(error)}", file=sys.stderr)
        return 1
    console.print(found_table(found))
    results = _check(options, found, console)
    console.print(f"\n{verdict(results)}", highlight=False, soft_wrap=True)
    if not is_fit(results):
        console.print("\nwhat to do", advice_table(results), sep="\n")
    if options.json:
        write_json(options.json, as_json(found, results))
    return 0 if is_fit(results) else 1


def _check(options: DoctorOptions, found: Found, console: Console) -> list[Result]:
    """Makes all checks, and prints each result as it comes."""
    results = []
    console.print()
    console.print(heading())
    for result in run_checks(found, options.output_dir, options.ray_address):
        results.append(result)
        if options.json:
            write_json(options.json, as_json(found, results, ended=False))
        console.print(result_line(result))
    return results


if __name__ == "__main__":
    prepare_process()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = main()
    sys.stdout.flush()
    # A check that hangs has left a thread behind, which must not hold up the end.
    os._exit(status)
