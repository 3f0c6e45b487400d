"""``onefold store``: how large the store of client uploads is; old ones deleted with --prune."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cluster.clients.locks import Locks
from cluster.run.run_dir import LOCK
from fl.command import run_command
from fl.errors import UserError, escaped
from fl.own_process import run_as_command
from fl.report.words import duration, size

OURS = re.compile(r"\.?([0-9a-f]{64})\.(?:safetensors|sha256)(?:\.\d+)?")
"""The upload with a key, its checksum, or what a process that was killed left of either."""
DAY_S = 24 * 3600.0
MOST_DAYS = 36_500


@dataclass(frozen=True)
class Stored:
    """A client's upload in the store."""

    key: str
    files: tuple[Path, ...]
    num_bytes: int
    used: float
    """When a run last wrote or read it: the store sets its checksum's time."""


def command(
    output_dir: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs"),
    prune: Annotated[float | None, tyro.conf.arg(metavar="DAYS")] = None,
    yes: tyro.conf.FlagCreatePairsOff[bool] = False,
) -> None:
    """Show how large OUTPUT_DIR/.store is, or delete from it.

    Args:
        output_dir: Where runs are kept.
        prune: Delete the uploads that no run has written or read for so many days; whoever needs
            one later trains that client again.
        yes: Without this it only shows what goes.
    """
    folder, days = output_dir, prune
    if days is not None and not 0 <= days <= MOST_DAYS:
        raise UserError(f"--prune takes days from 0 to {MOST_DAYS}, got {days:g}")
    pool = folder / ".store"
    if not pool.is_dir():
        raise UserError(f"there is no store in {folder}; set --output-dir to the folder of runs")
    uploads = stored_in(pool)
    if days is None:
        print(escaped(f"{pool}: {_described(uploads)}"))
        return
    before = min(time.time() - days * DAY_S, began_first(folder))
    old = [upload for upload in uploads if upload.used < before]
    if old and not yes:
        raise UserError(f"would delete from {pool} {_described(old)}; say --yes to do it")
    print(escaped(f"deleted from {pool}: {_described(delete(pool, old))}"))


def stored_in(pool: Path) -> list[Stored]:
    """The store's uploads."""
    found: dict[str, list[Path]] = {}
    for file in sorted(pool.iterdir()):
        if ours := OURS.fullmatch(file.name):
            found.setdefault(ours[1], []).append(file)
    return [stored for key, files in found.items() if (stored := _stored(key, files))]


def _stored(key: str, files: Iterable[Path]) -> Stored | None:
    """The upload as its files are now; None where they are gone."""
    found = {}
    for file in files:
        try:
            found[file] = file.lstat()
        except FileNotFoundError:  # a run may put another file in its place
            continue
    if not found:
        return None
    num_bytes = sum(info.st_size for info in found.values())
    return Stored(key, tuple(found), num_bytes, max(info.st_mtime for info in found.values()))


def began_first(folder: Path) -> float:
    """When the first of the runs began that are at work in the folder; infinity without one.

    A run reads its clients' uploads until it ends, and has used each since it began.
    """
    at_work = []
    for file in [*folder.glob(f"*/{LOCK}"), *folder.glob(f"*/*/*/{LOCK}")]:  # also of sweeps
        locks = Locks(file)
        config = file.with_name("config.yaml")
        if not locks.acquire(LOCK) and config.exists():
            at_work.append(config.stat().st_mtime)
        locks.release(LOCK)
    return min(at_work, default=float("inf"))


def delete(pool: Path, uploads: Iterable[Stored]) -> list[Stored]:
    """Deletes these uploads, and returns those that it deleted.

    One that a process has locked, or has used in the meantime, stays.
    """
    locks, gone = Locks(pool / ".locks"), []
    for upload in uploads:
        if not locks.acquire(upload.key):
            continue
        now = _stored(upload.key, upload.files)
        if now is not None and now.used == upload.used:
            for file in upload.files:
                file.unlink(missing_ok=True)
            gone.append(upload)
        locks.release(upload.key)
    return gone


def _described(uploads: Sequence[Stored]) -> str:
    """How many, in how many files, how large, and how long ago they were used."""
    if not uploads:
        return "no uploads"
    files = sum(len(upload.files) for upload in uploads)
    used = [upload.used for upload in uploads]
    ages = dict.fromkeys(_age(time.time() - when) for when in (max(used), min(used)))
    return (
        f"{len(uploads)} upload{'' if len(uploads) == 1 else 's'} in {files} files, "
        f"{size(sum(upload.num_bytes for upload in uploads))}, "
        f"last used {' to '.join(ages)} ago"
    )


def _age(seconds: float) -> str:
    return duration(max(0.0, seconds)) if seconds < DAY_S else f"{seconds / DAY_S:.0f} days"


if __name__ == "__main__":
    run_as_command(lambda: run_command(command, "onefold store"))
