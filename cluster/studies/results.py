"""``suite results``: makes the tables of docs/results.md anew that are of older code."""

from fnmatch import fnmatch

from cluster.studies.digests import ROOT
from cluster.studies.provenance import here_and_now
from cluster.studies.results_page import marked, replaced, sources
from cluster.studies.results_tables import TABLES
from cluster.studies.suite_options import SuiteOptions
from fl.errors import UserError
from fl.whole_files import write_atomically

PAGE = ROOT / "docs" / "results.md"


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
    made = here_and_now()
    command = f"`python -m cluster.suite results --small --only {name}`"
    where = f"{made.date}, commit {made.commit}, sources {digest}; {made.machine}."
    table = f"{command},\n{where}\n\n{TABLES[name].make(options, PAGE.parent)}\n"
    write_atomically(PAGE, replaced(PAGE.read_text(), name, table).encode())
    print(f"\n{table}\nwritten into {PAGE}", flush=True)
