"""The examples run as they are, in a folder elsewhere, and are short."""

import ast
import json
import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import onefold
from tests.cluster.commands import environment

EXAMPLES = Path(__file__).parent.parent / "examples"
PRINTED = {
    "own_clients.py": "each site: [",
    "own_method.py": "| fedavgm |",
    "regression.py": "fedprox on own: R2 0.",
    "table.py": "fedavg on own: accuracy 0.9",
    "text.py": "fedavg on own: accuracy 0.",
}
"""Of each script, a part of what it prints."""
COMMANDS = ("grid_on_slurm.sh", "study_on_a_gpu_box.sh")
NOTEBOOK, SCRIPT = "images.ipynb", "images.py"
FEWER = {"own_method.py": 300, "text.py": 300}
"""Training samples where there are too many for what is asked here."""


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", PRINTED)
def test_a_script_prints_what_it_is_about(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in FEWER:
        for call in ("run", "grid"):
            few = partial(getattr(onefold, call), **{"data.max_train": FEWER[name]})
            monkeypatch.setattr(onefold, call, few)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert PRINTED[name] in capsys.readouterr().out


def code_cells() -> list[str]:
    """The code of the notebook, cell by cell."""
    cells = json.loads((EXAMPLES / NOTEBOOK).read_text())["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def test_the_script_about_images_is_the_notebooks() -> None:
    """So it need not be run too."""
    about, *script, told = map(ast.unparse, ast.parse((EXAMPLES / SCRIPT).read_text()).body)
    assert "python examples/images.py" in about
    cells = [ast.unparse(line) for source in code_cells() for line in ast.parse(source).body]
    assert script == cells[: len(script)]
    assert told == "print(result)"


@pytest.mark.usefixtures("elsewhere")
def test_the_notebook_shows_its_result() -> None:
    """Cell by cell as a notebook runs them: the value of a cell's last line is shown."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for source in code_cells():
        exec(source, names)
        last = ast.parse(source).body[-1]
        if isinstance(last, ast.Expr):
            shown.append(eval(ast.unparse(last), names))
    result, (answers, labels) = shown
    assert "fedavg on own: accuracy 0.9" in result._repr_html_()
    assert (answers.numpy() == labels).mean() > 0.8


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_would_do(name: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(EXAMPLES / name), "--dry-run"],
        cwd=tmp_path,
        env=environment() | {"PATH": path, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not (tmp_path / "runs").exists()


def test_every_example_is_run_and_below_60_lines() -> None:
    found = sorted(EXAMPLES.glob("*.*"))
    assert [path.name for path in found] == sorted([*PRINTED, *COMMANDS, NOTEBOOK, SCRIPT])
    for path in found:
        assert path.name == NOTEBOOK or len(path.read_text().splitlines()) < 60, path
