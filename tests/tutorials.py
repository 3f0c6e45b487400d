"""The how-to pages as a reader follows them: files written, scripts run, commands typed.

A block of Python or YAML with a title is a file of that name; Python without one is a script, from
block to block. In a console block, what follows ``$`` is typed, and each line below it is one that
was printed, wherever in the output, but for its numbers; ``…`` stands for lines that are left out.
"""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import environment

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "howto"
PAGES = sorted(page.name for page in DOCS.glob("*.md") if "\n```" in page.read_text())
"""Those with blocks in fences: every such block is run."""
BLOCK = re.compile(
    r"^## (?P<head>[^\n]*)$"
    r'|^```(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
NUMBERS = re.compile(r"([+\u2212-]?\d[\d.,]*(e-?\d+)?( ?(ms|s|min|h|[kMG]?i?B)\b)?,?\s*)+")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the section that it is in."""

    section: str
    language: str
    title: str | None
    text: str


def blocks(page: str) -> list[Block]:
    """The page's blocks, in order."""
    found, section = [], ""
    for match in BLOCK.finditer((DOCS / page).read_text()):
        if match["head"] is not None:
            section = match["head"]
        else:
            found.append(Block(section, match["language"], match["title"], match["text"]))
    return found


def write_files(page: str, folder: Path) -> None:
    """Writes the page's files."""
    for block in blocks(page):
        if block.title is not None:
            (folder / block.title).write_text(block.text)


def run_script(page: str, folder: Path) -> None:
    """Runs the page's script in this process."""
    parts = [b.text for b in blocks(page) if b.language == "python" and b.title is None]
    (folder / "page.py").write_text("\n".join(parts))
    runpy.run_path(str(folder / "page.py"), run_name="__main__")


def type_commands(
    page: str, folder: Path, *, slurm: bool = False, environ: Mapping[str, str] | None = None
) -> str:
    """Types the page's commands, those of the sections on Slurm or the others, and returns all that
    they printed; each must succeed and print the lines below it."""
    printed = ""
    for block in blocks(page):
        if block.language != "console" or ("Slurm" in block.section) != slurm:
            continue
        for command, shown in typed(block.text):
            output = _typed(command, folder, environ or {})
            there = {_without_numbers(line) for line in output.splitlines()}
            missing = [line for line in shown if _without_numbers(line) not in there]
            assert not missing, f"{missing} not in:\n{output}"
            printed += output
    return printed


def typed(text: str) -> list[tuple[str, list[str]]]:
    """A console block's commands, each with the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip() not in ("", "…"):
            found[-1][1].append(line)
    return found


def _typed(command: str, folder: Path, environ: Mapping[str, str]) -> str:
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), environ.get("PATH", os.environ["PATH"])]
    )
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment() | environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout.replace(str(folder), "$HOME")


def _without_numbers(line: str) -> str:
    """The line with a # for each number and its unit, and one of a row of blanks or dashes."""
    return re.sub(r"([ ━─])\1+", r"\1", NUMBERS.sub("# ", line)).strip()
