"""Arrays from files that may be anything; more of these in tests/cluster/run/test_corpus.py."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fl.data.own import is_whole, read_arrays
from fl.errors import UserError


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_saved(tmp_path: Path, save: Callable[..., None]) -> None:
    saved = {"a": np.arange(12.0).reshape(3, 4).T, "b": np.zeros(0, np.int64), "c": np.uint8(3)}
    save(tmp_path / "x.npz", **saved)
    found = read_arrays(tmp_path / "x.npz", ("a", "none"), ("c", "a", "b"))
    assert all(map(np.array_equal, found, (saved["c"], saved["a"], saved["b"])))


def test_names_that_are_not_there_are_a_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    with pytest.raises(UserError, match=r"x.npz has the arrays a; expected b, a; or c$"):
        read_arrays(tmp_path / "x.npz", ("b", "a"), ("c",))


def test_whole_numbers_are_those_that_int64_holds() -> None:
    assert is_whole(np.arange(3))
    assert is_whole(np.array([2**63 - 1, 0], np.uint64))
    for other in (np.array([2**63], np.uint64), np.arange(3.0), np.arange(3).astype("m8[s]")):
        assert not is_whole(other)
