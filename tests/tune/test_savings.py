"""What a sweep did not train."""

from pathlib import Path

from tests.tune.made_up import INVENTORY, members
from tune.rows import read_rows, savings


def test_savings_add_up_what_was_reused(folder: Path) -> None:
    saved = savings(read_rows(folder, {"keep": 0.8}), members(), INVENTORY)
    assert (saved["trained"], saved["reused"]) == (2, 6)
    assert (saved["trained_seconds"], saved["saved_seconds"]) == (12.0, 36.0)
    # Two of client 0 run at once, four of client 1.
    assert saved["least_seconds_saved"] == 3 * (10 / 2 + 2 / 4)
