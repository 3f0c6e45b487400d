"""Makes docs/results/programs.md anew, of what the programs in tests/programs say of themselves.

    python benchmarks/programs.py
    python benchmarks/programs.py FILE ...     # counts these files, by the same rule

A line counts if it has code: neither blank, nor a comment, nor part of a docstring. Of a notebook
the cells of code count, without what starts with % or !.
"""

import ast
import io
import json
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "programs.md"
ABOUT = re.compile(r"(.*?)\n\nTheirs: (\d+), ([\w/-]+):\s(.*?)(?:\nDiffers: (.*))?", re.DOTALL)
NO_CODE = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
COMMITS = {
    "adap/flower": "fdef7afb1dca3030553be302366cfd285ed6632c",
    "TsingZ0/PFLlib": "d832e76f6a23b833038949ec1e4fdefe63a4d350",
    "apple/pfl-research": "c9d1f32f6e84fec984f448e2bc19a3e3fd5a4807",
}
HEAD = """# Programs of other tools' tutorials

The tasks are those of tutorials of Flower, PFLlib and pfl-research; the programs are our own, in
`tests/programs/`. The tests run each, and hold its figure above the one that it names. Lines are
those of the files that a user writes, without blank ones, comments and docstrings; a command counts
by its lines. Theirs are without configuration files, and without what a page shows beside the files
named, so they are low. Most of theirs write out local training and test, which Onefold has, and
load data that ours make or have. Commits: {commits}.

| Task | Theirs | Lines | Ours | Lines | What differs |
|---|---|---|---|---|---|
"""


def code_lines(text: str) -> int:
    """Lines of a Python program with code."""
    words = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if tokenize.tok_name[token.type] not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            words -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(words)


def count(path: Path) -> int:
    """Lines of a file with code."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = [c["source"] for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        lines = [line for cell in cells for line in "".join(cell).splitlines()]
        text = "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))
    if path.suffix == ".sh":
        return sum(line[:1] not in ("", "#") for line in text.splitlines())
    return code_lines(text)


def about(path: Path) -> str:
    """What a program says of itself: its docstring, or the comment at its head."""
    text = path.read_text()
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").strip()
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    return "\n".join(lines)


def row(path: Path) -> str:
    """A program's row of the table."""
    said = ABOUT.fullmatch(about(path))
    assert said, f"{path.name} does not say what it is compared with"
    task, lines, tool, where, differs = (" ".join((word or "").split()) for word in said.groups())
    cells = [task, f"{tool}: `{where}`", lines, f"`{path.name}`", str(count(path)), differs]
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The page."""
    programs = sorted(
        p for p in (ROOT / "tests" / "programs").iterdir() if p.suffix in (".py", ".sh")
    )
    head = HEAD.format(commits=", ".join(f"{tool} {commit}" for tool, commit in COMMITS.items()))
    made = "<!-- made by python benchmarks/programs.py -->"
    return f"{made}\n{head}{''.join(map(row, programs))}<!-- until here -->\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*(f"{name}: {count(Path(name))}" for name in sys.argv[1:]), sep="\n")
    else:
        PAGE.write_text(page())
