"""``python -m cluster.doctor``: says whether this machine is fit to run federations."""

import os
import shutil
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from cluster.doctor_checks import LIMIT_S, Result, above, run_checks
from cluster.hardware.gpus import driver_version
from cluster.hardware.inventory import take_inventory
from cluster.hardware.private_folders import temporary_folder
from cluster.hardware.private_ray import parse_address
from cluster.run.command_line import INTERRUPTED, parse_record, setting_types, stop_with
from cluster.run.run_dir import versions
from fl.bounds import Settings
from fl.errors import UserError
from fl.json_files import write_json
from fl.own_process import run_as_command, say_interrupted, within
from fl.report.words import size


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Settings):
    """Say whether this machine is fit: what there is, and whether what a run needs works.

    Runs a tiny federation, on Ray where that is installed. Exit status: 0 fit, 1 not fit, 2 bad
    usage.
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
    names = [name for name, _ in setting_types(DoctorOptions)]
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _examine(parse_record(DoctorOptions, arguments, names, "python -m cluster.doctor"))
    except UserError as error:
        return stop_with(error)
    except KeyboardInterrupt:
        say_interrupted()
        return INTERRUPTED


def _examine(options: DoctorOptions) -> int:
    """Looks around, makes all checks, and reports each as it comes; returns the exit status."""
    try:
        found = within(LIMIT_S, lambda: look_around(options.output_dir))
    except Exception as error:
        print(f"not fit: cannot look around: {error}", file=sys.stderr)
        return 1
    for name, text in found.items():
        _print(f"{name:<17}", text)
    results: list[Result] = []
    _print(f"\n{'check':<17}{'result':<9}{'took':>7}  ", "finding")
    with closing(run_checks(options.output_dir, options.ray_address)) as checks:
        for result in checks:
            results.append(result)
            _print(f"{result.name:<17}{result.status:<9}{result.seconds:5.1f} s  ", result.finding)
            _save(options.json, found, results, "unfinished")  # should this process be killed
    failed = [result for result in results if result.status == "failed"]
    _save(options.json, found, results, verdict(results))
    print(f"\n{verdict(results)}")
    for result in failed:
        _print(f"{result.name:<17}", result.advice)
    return 1 if failed else 0


def look_around(output_dir: Path) -> dict[str, str]:
    """What there is on this machine, for people. Changes nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        machine = take_inventory()
    kinds = Counter(f"{gpu.name} ({size(gpu.memory_bytes)})" for gpu in machine.gpus)
    gpus = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "none"
    package, job = versions(), os.environ.get("SLURM_JOB_ID")
    triton = f"for CUDA {torch.version.cuda or 'none'}; Triton {package['triton']}"
    folders = {"runs": output_dir.absolute(), "temporary": temporary_folder()}
    return {
        "machine": machine.node,
        "cores": f"{machine.cpus} of {machine.cpu}",
        "memory": size(machine.memory_bytes),
        "GPUs": f"{gpus}; driver {driver_version() or 'none'}",
        "Python": package["python"],
        "PyTorch": f"{package['torch']} {triton}",
        "Ray": package["ray"],
        "Slurm": f"{shutil.which('sbatch') or 'no sbatch'}; in {f'job {job}' if job else 'no job'}",
        **{n: f"{f}, {size(shutil.disk_usage(above(f)).free)} free" for n, f in folders.items()},
        "notes": "; ".join(str(warning.message) for warning in caught) or "none",
    }


def verdict(results: Sequence[Result]) -> str:
    """The verdict in one line."""
    made = [result for result in results if result.status != "skipped"]
    failed = [result.name for result in made if result.status == "failed"]
    if failed:
        return f"not fit: {len(failed)} of {len(made)} checks failed: {', '.join(failed)}"
    return f"fit: {len(made)} checks passed, {len(results) - len(made)} skipped"


def _save(file: Path | None, found: dict[str, str], results: list[Result], said: str) -> None:
    if file:
        checks = list(map(asdict, results))
        fit = None if said == "unfinished" else said.startswith("fit")
        write_json(file, {"fit": fit, "verdict": said, "checks": checks, "found": found})


def _print(name: str, text: str) -> None:
    """Prints the text beside what it is about, in lines of the terminal's width."""
    width, indent = shutil.get_terminal_size().columns, " " * len(name.strip("\n"))
    print(textwrap.fill(name + text, width, subsequent_indent=indent, replace_whitespace=False))


if __name__ == "__main__":
    # A check that hangs has left a thread behind, which must not hold up the end.
    run_as_command(main, at_once=True)
