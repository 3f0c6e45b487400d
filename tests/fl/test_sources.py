"""A hash of what users write tells another version from the same one."""

import linecache
from pathlib import Path

from fl.sources import source_hash


def defined(source: str, file: str | None = None) -> object:
    """What the source defines as ``thing``: in a cell of a notebook, in a file, or at a prompt."""
    name = file or f"<cell {hash(source)}>"
    if file is None:
        lines = source.splitlines(keepends=True)
        linecache.cache[name] = len(source), None, lines, name
    names: dict[str, object] = {"__name__": "without_a_file"}
    exec(compile(source, name, "exec"), names)
    return names["thing"]


ONE, OTHER = "def thing(x):\n    return x + 1\n", "def thing(x):\n    return x + 2\n"


def test_in_a_notebook_it_is_the_cells_own_source() -> None:
    assert source_hash(defined(ONE)) == source_hash(defined(ONE))  # type: ignore[arg-type]
    assert source_hash(defined(ONE)) != source_hash(defined(OTHER))  # type: ignore[arg-type]


def test_at_a_prompt_it_is_the_compiled_code() -> None:
    one, again, other = (defined(s, "<stdin>") for s in (ONE, ONE, OTHER))
    assert source_hash(one) == source_hash(again) != source_hash(other)  # type: ignore[arg-type]
    first, second = (
        defined(f"class thing:\n    def run(self):\n        return {n}\n", "<stdin>")
        for n in (1, 2)
    )
    assert source_hash(first) != source_hash(second)  # type: ignore[arg-type]


def test_of_a_file_it_is_the_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ONE)
    before = source_hash(defined(ONE, str(file)))  # type: ignore[arg-type]
    file.write_text(ONE + "\nHELPER = 3\n")
    assert source_hash(defined(ONE, str(file))) != before  # type: ignore[arg-type]
