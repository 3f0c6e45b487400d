"""``suite results``: makes the tables of docs/results.md anew that are of older code."""

import subprocess
from datetime import UTC, datetime
from fnmatch import fnmatch

import torch

from cluster.hardware.inventory import take_inventory
from cluster.studies.digests import ROOT
from cluster.studies.results_page import marked, replaced, sources
from cluster.studies.results_tables import TABLES
from cluster.studies.suite_options import SuiteOptions
from fl.errors import UserError
from fl.whole_files import write_atomically

PAGE = ROOT / "docs" / "results.md"
CODE = ("fl", "kernels", "cluster", "benchmarks")
"""Folders in which a change that is not committed could be a table's."""


def make(options: SuiteOptions) -> None:
    """Makes the tables that are asked for and of older code, one after the other.

    The page is written after each, so the same command goes on where it was ended.

    Raises:
        UserError: there is no page, it has no place for a table, or a run cannot be.
    """
    if not PAGE.is_file():
        raise UserError(f"{PAGE} is missing: results writes the page of a checkout of Onefold")
    asked = [n for n in TABLES if not options.only or any(fnmatch(n, p) for p in options.only)]
    if not asked:
        raise UserError(f"--only fits no table of results; valid: {', '.join(TABLES)}")
    current = {name: table.digest() for name, table in TABLES.items()}
    if options.mark:
        write_atomically(PAGE, marked(PAGE.read_text(), current).encode())
    said = sources(PAGE.read_text())
    for name in asked:
        if name not in said:
            raise UserError(f"{PAGE} has no place for {name}: <!-- table: {name} -->")
        fresh = said[name] == current[name]
        print(f"{name:16}{'of this code' if fresh else 'to be made'}", flush=True)
        if not (fresh or options.mark or options.dry_run):
            _make(name, current[name], options)


def _make(name: str, digest: str, options: SuiteOptions) -> None:
    """Makes the table and writes it into the page, with the commit as it was before."""
    made = (
        f"`python -m cluster.suite results --small --only {name}`,\n"
        f"{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}, sources {digest}; {_machine()}."
    )
    table = f"{made}\n\n{TABLES[name].make(options, PAGE.parent)}\n"
    write_atomically(PAGE, replaced(PAGE.read_text(), name, table).encode())
    print(f"\n{table}\nwritten into {PAGE}", flush=True)


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
