"""Small programs of other tools' tutorials come to what they say; the page is made of them."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from programs import PAGE, code_lines, count, page

from cluster import grid, launch

PROGRAMS = sorted(p for p in (Path(__file__).parent / "programs").iterdir() if p.is_file())
FLOOR = re.compile(r"# above (\d[\d.]*)$", re.MULTILINE)
FIGURE = re.compile(r"^(?:accuracy +|\| digits \| \w+ \| )?(\d[\d.]*)(?: .*)?$", re.MULTILINE)
"""A line that is a number, or the one of a run's end, or a row of a table."""


def run_command(line: str) -> None:
    """Runs the command, here and without Ray."""
    tool, command, *arguments = shlex.split(line.replace("\\\n", ""), comments=True)
    assert tool == "onefold"
    main = {"run": launch.main, "sweep": grid.main}[command]
    assert main([*arguments, "--runtime", "inprocess"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_comes_to_what_it_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.suffix == ".py":
        runpy.run_path(str(path), run_name="__main__")
    else:
        run_command(path.read_text())
    printed = FIGURE.findall(capsys.readouterr().out)
    (floor,) = FLOOR.findall(path.read_text())
    assert float(printed[-1]) > float(floor)


def test_the_page_is_what_the_programs_say() -> None:
    assert len(PROGRAMS) == 25
    assert PAGE.read_text() == page()


def test_lines_with_code_are_counted(tmp_path: Path) -> None:
    assert code_lines('"""About."""\n\nx = [  # a list\n    1,\n]\n# none\ny = """a\n\nb"""\n') == 6
    assert code_lines("def f():\n    '''About\n\n    it.'''\n    return 1\n") == 2
    script = tmp_path / "a.sh"
    script.write_text("# about\n\nonefold run \\\n    --rounds 2\n")
    assert count(script) == 2
    book = tmp_path / "a.ipynb"
    book.write_text('{"cells": [{"cell_type": "code", "source": ["!pip\\n", "x = 1\\n"]}]}')
    assert count(book) == 1
