"""A table's digest changes with the code that decides its figures, and with nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.studies import digests
from cluster.studies.cell import Cell
from cluster.studies.digests import METHODS, code, digest_of_cell, digest_of_files, method_files

CELL = Cell("mnist", "fedavg", ("--method=fedavg", "--preset=mnist-small"))
SOURCE = '''"""A module."""
# A comment.

RATE = 1
"""Its description,
of two lines."""


def double(value: int) -> int:
    """Doubles."""
    # Another.
    text = "kept"
    return value * 2
'''


def test_comments_descriptions_and_empty_lines_do_not_count() -> None:
    assert code(SOURCE).splitlines() == [
        "RATE = 1",
        "def double(value: int) -> int:",
        '    text = "kept"',
        "    return value * 2",
    ]


def names(method: str) -> set[str]:
    return {file.stem for file in method_files(method)}


def test_a_methods_files_are_its_own_and_what_they_import_from_beside_them() -> None:
    assert "fedmho" in names("fedmho-sd")
    assert {"co_boosting", "dense", "prototypes"} <= names("co-boosting")
    assert {"fedprox", "fedavg"} <= names("fedprox")
    assert "fedaf" not in names("fedmho-sd")
    assert all(file.is_file() for file in method_files("fedrep+"))


def test_a_cells_digest_is_of_its_settings_and_its_method() -> None:
    own = digest_of_cell(CELL)
    assert own == digest_of_cell(replace(CELL, row="another name"))
    others = [
        replace(CELL, arguments=("--method=fedavg", "--preset=mnist-small", "--alpha=0.1")),
        replace(CELL, arguments=("--method=fedavg", "--preset=fedaf-mnist-small")),
        replace(CELL, arguments=("--method=feddf", "--preset=mnist-small")),
    ]
    assert len({own, *map(digest_of_cell, others)}) == 4


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("fl/loop.py", "fl/report/plot.py", "kernels/sums.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("RATE = 1\n")
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    monkeypatch.setattr(digests, "WITHOUT", (tmp_path / "fl" / "report",))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "counts"),
    [
        ("fl/loop.py", "RATE = 2\n", True),
        ("fl/loop.py", "# Why.\nRATE = 1\n", False),
        ("fl/new.py", "RATE = 1\n", True),
        ("kernels/sums.py", "RATE = 2\n", True),
        ("fl/report/plot.py", "RATE = 2\n", False),
    ],
)
def test_a_change_of_code_counts_where_accuracies_depend_on_it(
    checkout: Path, file: str, text: str, counts: bool
) -> None:
    paths = (checkout / "fl", checkout / "kernels")
    before = digest_of_files.__wrapped__(paths)
    (checkout / file).write_text(text)
    assert (digest_of_files.__wrapped__(paths) != before) == counts


def test_all_runs_rest_on_no_method_and_on_nothing_that_only_takes_time() -> None:
    shared = {file for path in digests.RUNS for file in digests.files_of(path)}
    assert not {file for file in shared if METHODS in file.parents}
    training = digests.ROOT / "fl" / "training"
    assert training / "loop.py" in shared
    assert training / "sizes.py" not in shared
    assert all(part.exists() for part in digests.WITHOUT)


def test_what_is_left_out_of_accuracies_counts_where_it_is_named() -> None:
    sizes = digests.ROOT / "fl" / "training" / "sizes.py"
    assert list(digests.files_of(sizes)) == [sizes]
    assert sizes in digests.files_of(sizes.parent)
