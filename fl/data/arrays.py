"""Opens .npz files that may be anything: what they claim is checked before it is read."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fl.errors import UserError
from fl.whole_files import no_pipe

MOST_BYTES = 2**40
"""Of all arrays of a file, unpacked."""
PACKED_AT_MOST = 1100
"""DEFLATE packs by 1032 at most."""


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """The file's arrays by name; each is read when it is asked for.

    Raises:
        UserError: it cannot be read, or claims more than it can hold.
    """
    try:
        _check_sizes(no_pipe(path))
        with np.load(path, allow_pickle=False) as arrays:
            if not hasattr(arrays, "files"):
                raise ValueError("it is one array, expected an .npz file of several")
            yield _Arrays(arrays)
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"cannot read {path}: it needs more memory than there is") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"cannot read {path}: {reason}") from None


def _check_sizes(path: Path) -> None:
    """Refuses a file whose list of contents cannot be true, as zip bombs have it."""
    with zipfile.ZipFile(path) as file:
        claimed = sum(entry.file_size for entry in file.infolist())
    if claimed > min(MOST_BYTES, PACKED_AT_MOST * path.stat().st_size + 2**20):
        raise ValueError(f"it claims {claimed} bytes of arrays, which it cannot hold")


class _Arrays:
    """Arrays whose headers are checked: NumPy makes room for what a header claims."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays
        self.files: list[str] = arrays.files

    def __getitem__(self, name: str) -> np.ndarray:
        zipped = self._arrays.zip
        entry = zipped.getinfo(name if name in zipped.namelist() else f"{name}.npy")
        with zipped.open(entry) as file:
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                np.lib.format.read_magic(file), np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(file)
        size = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
        if not dtype.hasobject and not 0 <= size <= entry.file_size:
            raise ValueError(f"{name} claims shape {shape}, which is more than there is")
        found: np.ndarray = self._arrays[name]
        return found
