"""Reads .npz files that may be anything: what they claim is checked before it is read."""

import os
import zipfile
from pathlib import Path

import numpy as np

from fl.errors import UserError, reason_of
from fl.whole_files import no_pipe

PACKED_AT_MOST = 1100
"""DEFLATE packs by 1032 at most."""


def read_arrays(path: Path, *choices: tuple[str, ...]) -> list[np.ndarray]:
    """The arrays of the first choice of names that the file has; nothing is ever unpickled.

    Raises:
        UserError: it cannot be read, claims more than it can hold, or has none of the choices.
    """
    try:
        with zipfile.ZipFile(no_pipe(path)) as file:
            _check_sizes(path, file)
            entries = {e.filename.removesuffix(".npy"): e for e in file.infolist()}
            for names in choices:
                if set(names) <= set(entries):
                    return [_read(file, name, entries[name]) for name in names]
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"cannot read {path}: it needs more memory than there is") from None
    except Exception as error:  # of many kinds, by what is damaged
        raise UserError(f"cannot read {path}: {reason_of(error)}; expected an .npz file") from None
    given = ", ".join(entries)[:100] or "none"
    expected = "; or ".join(", ".join(names) for names in choices)
    raise UserError(f"{path} has the arrays {given}; expected {expected}")


def is_whole(array: np.ndarray) -> bool:
    """Whether these are whole numbers that int64 holds. Spans of time, for which NumPy counts as
    integers, are none."""
    fits = array.dtype != np.uint64 or not array.size or array.max() < 2**63
    return array.dtype.kind in "iu" and bool(fits)


def _check_sizes(path: Path, file: zipfile.ZipFile) -> None:
    """Refuses a file whose list of contents cannot be true, as zip bombs have it."""
    claimed = sum(entry.file_size for entry in file.infolist())
    if claimed > PACKED_AT_MOST * path.stat().st_size + 2**20:
        raise ValueError(f"it claims {claimed} bytes of arrays, which it cannot hold")
    if claimed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise ValueError(f"it claims {claimed} bytes of arrays, more than this machine's memory")


def _read(file: zipfile.ZipFile, name: str, entry: zipfile.ZipInfo) -> np.ndarray:
    """The array, once its header is checked: NumPy makes room for what a header claims."""
    with file.open(entry) as head:
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            np.lib.format.read_magic(head), np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(head)
    size = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
    if not dtype.hasobject and not 0 <= size <= entry.file_size:
        raise ValueError(f"{name} claims shape {shape}, which is more than there is")
    with file.open(entry) as whole:
        found: np.ndarray = np.lib.format.read_array(whole, allow_pickle=False)
    return found
