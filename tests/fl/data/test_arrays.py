"""Arrays from files that may be anything."""

from pathlib import Path

import numpy as np
import pytest

from fl.data.arrays import open_arrays
from fl.errors import UserError


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_saved(tmp_path: Path, save: object) -> None:
    saved = {"a": np.arange(12.0).reshape(3, 4), "b": np.zeros(0, np.int64), "c": np.uint8(3)}
    save(tmp_path / "x.npz", **saved)  # type: ignore[operator]
    with open_arrays(tmp_path / "x.npz") as arrays:
        assert arrays.files == ["a", "b", "c"]
        for name, array in saved.items():
            assert np.array_equal(arrays[name], array)


def test_a_name_that_is_not_there_is_a_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    with pytest.raises(UserError, match="cannot read"), open_arrays(tmp_path / "x.npz") as arrays:
        arrays["b"]
