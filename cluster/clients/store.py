"""The store of client updates: trained once, stored under a key made of what determined them."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path

from cluster.clients.locks import Locks
from fl.client_code import behaviour, client_code
from fl.data.datasets import Split
from fl.data.lazy import Lazy
from fl.data.shard import shard_digest
from fl.exchange import Upload
from fl.federation import Job, Task
from fl.models.registry import MODELS
from fl.sources import code_of, defined, home
from fl.whole_files import checksum_of, replacing, write_atomically


class Store:
    """Updates of all runs below one output directory, and this run's own view of them.

    ``pool`` holds each update once under its content key; ``updates`` of the run holds the same
    files under the clients' names, as hard links, so that a run's directory is complete by itself.
    Updates of later rounds than the first, which no other run could use, lie in ``updates`` alone,
    until the round's outcome is saved, or for as long as they are what a client remembers: so a run
    of many rounds takes no more disk than one of two.
    """

    def __init__(self, pool: Path, updates: Path, train: Split) -> None:
        self._pool, self._updates, self._train = pool, updates, train
        pool.mkdir(parents=True, exist_ok=True)
        updates.mkdir(parents=True, exist_ok=True)
        self._locks = Locks(pool / ".locks")
        self._codes: dict[tuple[Task, type, str], str] = {}
        self._sent = lru_cache(maxsize=1)(_sha)  # one round's clients are sent one object
        self._reading = _reading_of(train)
        self._behaviour = cache(behaviour)  # of this run: its code may refer to what changes

    def keys(self, jobs: Mapping[int, Job]) -> dict[int, str]:
        """The :meth:`key` of each of one map's jobs, by client."""
        self._codes.clear()  # a method may have changed what the same task refers to
        return {k: self.key(job) for k, job in jobs.items()}

    def key(self, job: Job) -> str:
        """Hash of task, code, client, training record, threads, run spec, shard and messages; of
        data that draws when it is read also of its code, and of a model of the user's own of what
        it does (:mod:`fl.client_code`).

        In a later round than the first, and for what is of this run alone, the key begins with the
        folder of the round.
        """
        task = defined(job.task)
        parts = {
            "task": f"{home(task)}.{task.__qualname__}",
            "code": self._code(job),
            "client": job.client.id,
            "role": job.client.role,
            "training": asdict(job.client.training),
            "threads": job.client.request.threads,
            "problem": asdict(job.run_spec),
            "shard": shard_digest(self._train, job.indices),
            "broadcast": self._sent(job.broadcast or b""),
            "payload": _sha(job.payload or b""),
        }
        if self._reading:
            parts["reading"] = self._reading
        if (info := MODELS.get(job.client.model)) and info.source:
            width = getattr(job.client.training, "width", 1.0)
            parts["behaviour"] = self._behaviour(info, width, job.run_spec)
        of_this_run = job.round > 1 or job.of_this_run
        if job.memory is not None:
            parts["memory"] = job.memory.key
            of_this_run |= "/" in job.memory.key
        if of_this_run:
            parts["round"] = job.round
        folder = _folder(job.round) if of_this_run else ""
        return folder + _sha(json.dumps(parts, sort_keys=True).encode())

    def get(self, key: str, client: int) -> Upload | None:
        """The packed update, or None where it was never made or its file is damaged or another's.

        The checksum is of the key too, which is of one client (and, in later rounds, of one round).
        Its file's time says when the update was last used.
        """
        file, checksum_file = self.file(key), self.file(key).with_suffix(".sha256")
        try:
            os.utime(checksum_file)
        except FileNotFoundError:
            return None
        except OSError:  # it is another user's
            pass
        if file.is_fifo() or checksum_file.is_fifo():
            return None  # opening one would wait for ever
        try:
            upload, checksum = Upload.in_file(file), checksum_file.read_text()
        except (FileNotFoundError, ValueError):  # ValueError: an empty file
            return None
        sha = checksum_of(key)
        for piece in upload.pieces():
            sha.update(piece)
        if sha.hexdigest() != checksum:
            return None
        self._link(key, client)
        return upload

    def put(self, key: str, client: int, upload: Upload) -> None:
        """Stores a packed update; a crash midway or another run with the same key does no harm."""
        file, sha = self.file(key), checksum_of(key)
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as temporary, temporary.open("wb") as stream:
            for piece in upload.pieces():
                sha.update(piece)
                stream.write(piece)
        write_atomically(file.with_suffix(".sha256"), sha.hexdigest().encode())
        self._link(key, client)
        self._locks.release(key)

    @contextlib.contextmanager
    def locked(self, keys: Mapping[int, str]) -> Iterator[list[int]]:
        """Locks the clients' keys and gives the clients that this process is now to train.

        Those that other processes have locked are left out; if that is all, it waits for the first.
        Keys of this run alone need no lock: another run of the same settings has its own uploads.
        A process that holds a lock never waits for one, so no two wait for each other, and the
        kernel drops the locks of a process that dies. :meth:`put` releases a lock, the end of the
        context those that are left.
        """
        ours = [c for c, key in keys.items() if "/" in key or self._locks.acquire(key)]
        if not ours:
            first = next(iter(keys))
            self._locks.acquire(keys[first], wait=True)
            ours = [first]
        try:
            yield ours
        finally:
            for client in ours:
                self._locks.release(keys[client])

    def end_round(self, number: int, needed: Set[str] = frozenset()) -> None:
        """Removes what was uploaded from round 2 to this one, but for each client's last update
        and for the keys that are ``needed``."""
        for folder in sorted(self._updates.glob("round-*")):
            if f"{folder.name}/" > _folder(number):
                continue  # of a round that was killed: some clients need not train again
            for file in folder.iterdir():
                if f"{folder.name}/{file.stem}" not in needed:
                    file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what is needed is still there
                folder.rmdir()

    def file(self, key: str) -> Path:
        """The file of the update with that key: of the first round in the pool of all runs, of
        later ones in this run's folder."""
        home = self._updates if "/" in key else self._pool
        return home / f"{key}.safetensors"

    def _code(self, job: Job) -> str:
        """The version of the task's code, read once a map and not once a client."""
        task, training = job.task, job.client.training
        kind = (task, type(training), training.model)
        if kind not in self._codes:
            self._codes[kind] = client_code(task, training)
        return self._codes[kind]

    def _link(self, key: str, client: int) -> None:
        name = self._updates / f"client-{client:05d}.safetensors"
        name.unlink(missing_ok=True)
        try:
            os.link(self.file(key), name)
        except OSError:  # a file system without hard links
            with replacing(name) as temporary:
                shutil.copyfile(self.file(key), temporary)


def _reading_of(train: Split) -> str:
    """The code of data set objects whose reading may draw: a first reading shows not all of it."""
    sources = train.images.sources if isinstance(train.images, Lazy) else ()
    drawing = tuple(getattr(own, "data", None) for own in sources if own.draws)
    return code_of(drawing).digest if drawing else ""


def _folder(number: int) -> str:
    return f"round-{number:05d}/"


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
