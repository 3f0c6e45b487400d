"""Tables of docs/results.md that a program makes: a benchmark, or the scalability study."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from cluster.studies.digests import ROOT, digest_of, digest_of_files, method_files
from cluster.studies.study_report import texts
from cluster.studies.suite_options import SuiteOptions
from cluster.studies.suite_tables import line
from fl.errors import UserError
from fl.json_files import read_json
from fl.json_values import JsonObject

COLUMNS = "120"
"""Characters of a program's lines, as rich reads them."""

HEADINGS = {
    "clients": "Clients",
    "local": "Local",
    "server": "Server",
    "total": "Total",
    "clients/s": "Clients/s",
    "driver": "Driver, peak",
    "workers": "Workers, peak",
    "up": "Up",
    "accuracy": "Accuracy",
}
"""Of a study's table on the page, by the study's own columns."""


@dataclass(frozen=True)
class OfProgram:
    """What a program of ``benchmarks/`` prints."""

    arguments: tuple[str, ...]
    """Of python, in the repository's root; ``{data}`` is the data sets' folder."""
    rests_on: tuple[str, ...]
    """Files and folders that its figures rest on."""
    picture: str | None = None
    """File in ``docs/`` that it draws by ``--output``."""

    def digest(self) -> str:
        """Of the files named, and the arguments."""
        return _digest(self.arguments, self.rests_on)

    def make(self, options: SuiteOptions, docs: Path) -> str:
        """Runs it; returns its picture and what it printed.

        Raises:
            UserError: it failed.
        """
        more = [f"--output={docs / self.picture}"] if self.picture else []
        said = _run([*self.arguments, *more], options)
        printed = "\n".join(f"    {row}".rstrip() for row in said.strip("\n").splitlines())
        shown = [f"![{Path(self.picture).stem}]({self.picture})"] if self.picture else []
        return "\n\n".join([*shown, f"    python {' '.join(self.arguments)}", printed])


@dataclass(frozen=True)
class OfStudy:
    """What the scalability study finds: a row for each number of clients, and its pictures."""

    name: str
    """The table's."""
    method: str
    arguments: tuple[str, ...]
    """Of ``python -m cluster.study``; ``{data}`` is the data sets' folder."""
    rests_on: tuple[str, ...]
    """Files and folders that its figures rest on, beside the method's."""
    pictures: tuple[str, ...]
    """Those to be shown, of the study's; in ``docs/`` their names begin with the table's."""

    @property
    def command(self) -> tuple[str, ...]:
        """Python's arguments."""
        return ("-m", "cluster.study", f"--method={self.method}", *self.arguments)

    def digest(self) -> str:
        """Of the files named, the method's, and the arguments."""
        of_method = digest_of_files(method_files(self.method))
        return digest_of([_digest(self.command, self.rests_on), of_method])

    def make(self, options: SuiteOptions, docs: Path) -> str:
        """Runs what is not finished of it; returns its table and pictures.

        Raises:
            UserError: it failed.
        """
        # A directory of its own: a cell that older code has run would not be run again.
        where = options.output_dir.absolute() / f"{self.name}-{self.digest()}"
        _run([*self.command, f"--output-dir={where}"], options)
        files = {name: f"{self.name}-{name}.png" for name in self.pictures}
        for name, file in files.items():
            shutil.copyfile(where / f"{name}.png", docs / file)
        shown = [f"![{name}]({file})" for name, file in files.items()]
        rows = as_rows(read_json(where / "study.json")["cells"])
        return "\n\n".join([_shown(self.command), "\n".join(map(line, rows)), *shown])


def as_rows(cells: Sequence[JsonObject]) -> list[list[str]]:
    """The rows of a study's table: time, memory, bytes and accuracy by number of clients."""
    rows = [list(HEADINGS.values()), ["---:"] * len(HEADINGS)]
    return [*rows, *([texts(cell)[name] for name in HEADINGS] for cell in cells)]


def _shown(command: Sequence[str]) -> str:
    """The command in lines of the page's width."""
    lines = wrap(f"python {' '.join(command)}", 108, break_on_hyphens=False)
    return "    " + " \\\n        ".join(lines)


def _digest(arguments: Sequence[str], rests_on: Sequence[str]) -> str:
    return digest_of([digest_of_files(tuple(ROOT / name for name in rests_on)), arguments])


def _run(arguments: Sequence[str], options: SuiteOptions) -> str:
    """What python prints with these arguments, in the repository's root.

    Raises:
        UserError: it failed.
    """
    data = str(options.data_root.absolute())
    filled = [argument.replace("{data}", data) for argument in arguments]
    print(f"running {' '.join(filled)}", flush=True)
    ran = subprocess.run(
        [sys.executable, *filled],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": COLUMNS},
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        last = (ran.stderr.strip() or "nothing said").splitlines()[-1]
        program = filled[1] if filled[0] == "-m" else filled[0]
        raise UserError(f"{program} ended with status {ran.returncode}: {last}")
    return ran.stdout
