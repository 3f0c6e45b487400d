"""Tables of the page that a program makes."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.run.command_line import parse
from cluster.studies import program_tables
from cluster.studies.digests import ROOT
from cluster.studies.program_tables import OfProgram, OfStudy
from cluster.studies.results_tables import TABLES
from cluster.studies.study_options import parse_study
from cluster.studies.suite_options import parse_suite
from fl.errors import UserError


def test_programs_rest_on_files_that_exist() -> None:
    for table in TABLES.values():
        if isinstance(table, OfProgram | OfStudy):
            for name in table.rests_on:
                assert (ROOT / name).exists(), name
        if isinstance(table, OfProgram):
            assert (ROOT / table.arguments[0]).exists()


def test_what_a_program_prints_and_draws_is_shown_with_its_command(tmp_path: Path) -> None:
    code = "import sys; print('x ' + sys.argv[-1]); open(sys.argv[-1][9:], 'w').write('drawn')"
    options = parse_suite(["results"])
    text = OfProgram(("-c", code), ("kernels",), picture="p.png").make(options, tmp_path)
    assert text.splitlines()[0] == "![p](p.png)"
    assert text.splitlines()[-1] == f"    x --output={tmp_path / 'p.png'}"
    assert (tmp_path / "p.png").read_text() == "drawn"
    shown = OfProgram(("-c", "import sys; print(sys.argv[1])", "{data} {}"), ("kernels",))
    assert (
        shown.make(options, tmp_path).splitlines()[-1] == f"    {options.data_root.absolute()} {{}}"
    )
    failing = OfProgram(("-c", "raise SystemExit('no GPU')"), ("kernels",))
    with pytest.raises(UserError, match=r"^-c ended with status 1: no GPU$"):
        failing.make(options, tmp_path)


CELL = {
    "clients": 1000,
    "seconds": {"local": 47.1, "synthesis": 0.1, "filter": 0.1, "fusion": 4.4, "total": 51.9},
    "clients_per_second": 21.3,
    "workers": 2,
    "driver_peak_bytes": 1_100_000_000,
    "workers_peak_bytes": 1_042_000_000,
    "device_peak_bytes": None,
    "bytes_up": 837_000_000,
    "bytes_down": 0,
    "accuracy": 0.681,
}
STUDY = OfStudy("study", "local", ("--num-clients=1000",), ("cluster",), pictures=("memory",))


def test_a_studys_figures_are_a_row_for_each_number_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, asked = tmp_path / "docs", []
    docs.mkdir()

    def study(arguments: list[str], options: object) -> str:
        asked.extend(arguments)
        where = Path(arguments[-1].removeprefix("--output-dir="))
        where.mkdir()
        (where / "memory.png").write_text("drawn")
        (where / "study.json").write_text(
            json.dumps({"cells": [CELL, CELL | {"workers": 0, "workers_peak_bytes": 0}]})
        )
        return ""

    monkeypatch.setattr(program_tables, "_run", study)
    text = STUDY.make(parse_suite(["results", f"--output-dir={tmp_path}"]), docs)
    assert text.startswith(
        "    python -m cluster.study --method=local --num-clients=1000\n\n| Clients"
    )
    times = "| 1,000 | 47.1 s | 4.6 s | 51.9 s | 21.3 |"
    assert f"{times} 1.1 GB | 2 x 521.0 MB | 837.0 MB | 68.1% |" in text
    assert text.endswith("![memory](study-memory.png)")
    assert (docs / "study-memory.png").read_text() == "drawn"
    assert asked[-1] == f"--output-dir={tmp_path}/study-{STUDY.digest()}"


def test_a_study_rests_on_its_methods_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before = STUDY.digest()
    assert before == OfStudy("other", "local", STUDY.arguments, STUDY.rests_on, ()).digest()
    monkeypatch.setattr(program_tables, "method_files", lambda name: (ROOT / "fl/methods/moon.py",))
    assert STUDY.digest() != before


def test_the_studies_can_be_run() -> None:
    """Each has a command that the study takes, with its method's options."""
    for table in TABLES.values():
        if isinstance(table, OfStudy):
            own: Any = parse_study([a.format(data="data") for a in table.command[2:]])
            assert parse([*own.launch_arguments, "--num-clients=10"]).run.method == table.method
