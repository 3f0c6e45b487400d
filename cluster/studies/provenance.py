"""When, of which commit and on which machine something was measured."""

import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from cluster.hardware.inventory import take_inventory
from cluster.studies.digests import ROOT

CODE = ("fl", "kernels", "cluster", "benchmarks")
"""Folders in which a change that is not committed could have changed a figure."""


@dataclass(frozen=True)
class Provenance:
    """Where a figure comes from."""

    date: str
    commit: str
    machine: str


def here_and_now() -> Provenance:
    """Of what is measured now; the commit says whether code has changed since."""
    return Provenance(f"{datetime.now(UTC):%Y-%m-%d}", _commit(), _machine())


def _machine() -> str:
    machine = take_inventory()
    cores = f"{machine.cpus} core{'s' if machine.cpus > 1 else ''}"
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus)
    return f"{machine.cpu}, {cores}{gpus}, torch {torch.__version__}"


def _commit() -> str:
    """The commit, and whether code has changed since; ``unknown`` outside of git."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = " with changes" if _git("status", "--porcelain", "--", *CODE) else ""
    return f"{commit}{changed}" if commit else "unknown"


def _git(*arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:  # no git here
        return ""
    return ran.stdout.strip()
