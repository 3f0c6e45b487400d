"""Checks of the file system under a store: locks between processes, whole files, hard links."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cluster.checks.check import Check, CheckFailed
from cluster.checks.file_system import nearest_existing
from cluster.clients.locks import Locks
from cluster.clients.store import Store
from cluster.hardware.shadows import environment, python
from fl.data.datasets import Split
from fl.packed import Packed
from fl.whole_files import write_atomically

TIMEOUT_S = 15.0
REPLACED = 200
"""How often a file is replaced while it is read."""
FILE_BYTES = 1 << 16


def in_scratch_folder(check: Callable[[Path], str]) -> Callable[[Path], str]:
    """The check of an output directory, made in a folder beside it that is gone afterwards."""

    def run(output_dir: Path) -> str:
        above = nearest_existing(output_dir)
        with tempfile.TemporaryDirectory(prefix=".onefold-doctor-", dir=above) as folder:
            return check(Path(folder))

    return run


def locks(folder: Path) -> str:
    """Two processes never hold one lock, and the end of a process drops its locks."""
    file = folder / "locks"
    ours = Locks(file)
    ours.acquire("ours")
    with _other_process(file, "theirs", "ours") as (other, acquired):
        if len(acquired) != 2:
            raise CheckFailed("a second process ended before it could try the locks")
        if acquired != ["True", "False"] or ours.acquire("theirs"):
            raise CheckFailed("two processes were given the same lock at once")
        other.kill()
        other.wait()
        ours.acquire("theirs", wait=True)
    return "one process at a time holds a lock, and its end drops it"


def atomic_rename(folder: Path) -> str:
    """A file that is replaced again and again is whole whenever it is read."""
    file = folder / "replaced"
    write_atomically(file, bytes(FILE_BYTES))
    reads = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_replace, file)
        while not writing.done():
            _refuse_part(file)
            reads += 1
        writing.result()
    return f"a file replaced {REPLACED} times was whole in each of {reads} reads"


def hard_links(folder: Path) -> str:
    """An update stored once has a second name in its run's directory."""
    updates = folder / "updates"
    no_samples = Split(np.empty((0, 1, 1, 1), np.uint8), np.empty(0, np.int64))
    store = Store(folder / "store", updates, no_samples)
    packed = os.urandom(FILE_BYTES)
    store.put("key", 0, Packed.in_memory(packed))
    found = store.get("key", 0)
    if found is None or bytes(found) != packed:
        raise CheckFailed("a stored update does not read back as it was written")
    (own,) = updates.iterdir()
    if not own.samefile(store.file("key")):
        raise CheckFailed("the store has to copy each update, as there are no hard links")
    return "store and run share an update's file"


def _replace(file: Path) -> None:
    for number in range(REPLACED):
        write_atomically(file, bytes([number % 256]) * FILE_BYTES)


def _refuse_part(file: Path) -> None:
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise CheckFailed("a file was missing while it was being replaced") from None
    if not content or content != content[:1] * FILE_BYTES:
        raise CheckFailed("a reader saw part of a file while it was being replaced")


@contextmanager
def _other_process(file: Path, *names: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that tries these locks and lives on; and for each, whether it acquired it."""
    command = [*python("cluster.checks.lock_holder"), str(file), *names]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment()
    ) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


CHECKS = (
    Check(
        name="locks",
        run=in_scratch_folder(locks),
        advice="put --output-dir on a file system with locks (NFS: mounted without nolock); until "
        "then start one run at a time, as two would train the same clients",
        timeout_s=TIMEOUT_S,
    ),
    Check(
        name="atomic rename",
        run=in_scratch_folder(atomic_rename),
        advice="put --output-dir on a local disk, NFS or Lustre: on this file system a crash can "
        "leave half a file in a run's directory",
        timeout_s=TIMEOUT_S,
    ),
    Check(
        name="hard links",
        run=in_scratch_folder(hard_links),
        advice="put --output-dir on a file system with hard links; on this one runs work, but each "
        "update takes its space twice",
        timeout_s=TIMEOUT_S,
    ),
)
