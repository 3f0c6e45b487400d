"""The run directory: reserved for one run, and written so that it is readable at any moment."""

import hashlib
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import yaml

from cluster.clients.extensions import users_modules
from cluster.clients.locks import Locks
from cluster.run.command_line import CALL, FLATTENED, OWN, RECORDED, load_mapping
from cluster.run.options import Launch
from fl.config import RunConfig
from fl.data.catalogue import REGISTERED, is_elsewhere, is_path, own_dataset, short_name
from fl.data.datasets import Dataset, fingerprint
from fl.data.shard import shard_digest
from fl.errors import UserError
from fl.json_files import JsonObject, SettingValues, flatten
from fl.methods.registry import METHODS
from fl.methods.registry import OURS as OUR_METHODS
from fl.models.common import digest_of
from fl.models.registry import MODELS, OURS, build_classifier
from fl.plugins import load_plugin
from fl.seeding import seeded
from fl.sources import code_of
from fl.whole_files import printable, refused_by_disk, write_atomically

# The lock of a run's directory, held by the process that runs in it until it ends or dies.

LOCK = ".lock"
"""Says who has the directory while it is locked. It stays, since a lock file that is deleted
while others open it would let two of them in."""
LONGEST = 300


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Holds the lock of an existing directory until the end of the context.

    The kernel drops the lock of a process that dies. On a file system without locks it says so on
    stderr, and goes on.

    Raises:
        UserError: another process has it; the line says which.
        OSError: the lock's file cannot be made.
    """
    file = run_dir / LOCK
    locks = Locks(file)
    if not locks.acquire(LOCK):
        raise UserError(
            f"{run_dir} is in use by {_holder(file)}; wait for its end, stop it, or "
            "choose another --name"
        )
    if not locks.work:
        print(
            f"onefold: warning: there are no locks where {run_dir} lies, so nothing keeps a second "
            "process out of it: see that there is none",
            file=sys.stderr,
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    _write(locks, f"process {os.getpid()} on {socket.gethostname()}, since {since}")
    try:
        yield
    finally:
        _write(locks, "")
        locks.release(LOCK)


def _write(locks: Locks, text: str) -> None:
    """Who has the lock is for people: where it cannot be written, the lock holds all the same."""
    with suppress(OSError):
        os.ftruncate(locks.descriptor, 0)
        os.pwrite(locks.descriptor, text.encode(), 0)


def _holder(file: Path) -> str:
    """Who wrote that it has the lock; the file may be empty for a moment, or not be ours."""
    with suppress(OSError), file.open(errors="replace") as opened:
        text = opened.read(LONGEST)
        if text.startswith("process ") and text.isprintable():
            return text
    return "another process"


def is_run(path: Path) -> bool:
    """Whether it is a folder, no link to one, with the configuration that each run writes."""
    with suppress(UserError):
        return (
            not path.is_symlink()
            and {"method", "versions"} <= load_mapping(path / "config.yaml").keys()
        )
    return False


LEFT = re.compile(r"\.(config|sweep)\.yaml\.\d+")
"""What is left of a folder's first file where the process that wrote it was killed."""


def holds_files(path: Path) -> bool:
    """Whether a folder has more in it than what a process makes before it has written a file."""
    return any(file.name != LOCK and not LEFT.fullmatch(file.name) for file in path.iterdir())


def empty(path: Path) -> None:
    """Deletes all that is in a run's folder, which this process has locked, but for the lock; last
    what says that it is a run's: who is killed amid this may begin again."""
    for file in sorted(path.iterdir(), key=lambda file: file.name == "config.yaml"):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        elif file.name != LOCK:
            file.unlink()


def delete(paths: Iterable[Path]) -> None:
    """Deletes the folders of these runs, unless one is no run's own, or a process is at work in it:
    then it raises `UserError`, and deletes none."""
    paths = tuple(paths)
    with ExitStack() as held:
        for path in paths:
            if not is_run(path):
                raise UserError(f"{path} is not a run's folder: delete it by hand")
            held.enter_context(locked(path))
        for path in paths:
            empty(path)
            shutil.rmtree(path)


PACKAGES = ("torch", "torchvision", "triton", "numpy", "ray", "safetensors", "scikit-learn")


def claim(launch: Launch) -> Path:
    """Makes the run's directory for another process to run in, as :func:`claimed` does."""
    with claimed(launch) as path:
        return path


@contextmanager
def claimed(launch: Launch, call: str | None = None) -> Iterator[Path]:
    """Makes the run's directory, and holds its lock until the end of the context.

    ``call`` is the Python call of a run that a command cannot repeat; config.yaml records it.

    With ``--resume`` or ``--overwrite`` it takes an existing one. Without ``--name`` a free name is
    chosen, so only a name that was given can be taken already.

    Raises:
        UserError: the directory holds another run or is in use, its configuration differs on
            ``--resume``, or it cannot be written.
    """
    with ExitStack() as held:
        with refused_by_disk():
            path = _occupy(launch, held, call)
        yield path


def check_place(launch: Launch) -> None:
    """Raises `UserError` for what :func:`claimed` would refuse as things are now; writes
    nothing."""
    with refused_by_disk():
        path = locate(launch)
        if not str(launch.output_dir).isprintable():  # it stands in reports, which are UTF-8
            shown = printable(str(launch.output_dir))
            raise UserError(f"output_dir {shown} cannot be printed; choose another")
        if launch.output_dir.exists() and not launch.output_dir.is_dir():
            raise UserError(f"output_dir {launch.output_dir} is a file; choose another")
        store = launch.output_dir / ".store"
        if store.exists() and not store.is_dir():
            raise UserError(f"{store} must be the folder of the store, but is a file: move it")
        there = existing(path.parent)
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise UserError(f"cannot write to {there}; choose another --output-dir")
        _refuse_taken(path, launch)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())


def _occupy(launch: Launch, held: ExitStack, call: str | None) -> Path:
    """Makes or takes the directory, locks it, and writes the configuration."""
    path, made = _directory(launch)
    held.enter_context(locked(path))
    try:
        _refuse_taken(path, launch)
        if launch.overwrite and is_run(path):
            empty(path)
        elif is_run(path) and differences(path / "config.yaml", launch.run):
            (path / "result.json").unlink(missing_ok=True)  # is of fewer rounds than it says now
        recorded: JsonObject = {"versions": versions(), CALL: call, OWN: identity_of(launch.run)}
        recorded = {name: what for name, what in recorded.items() if what}
        content = yaml.safe_dump(nested(launch.run) | recorded, sort_keys=False)
        write_atomically(path / "config.yaml", content.encode())
    except BaseException:
        if made:  # the name is free again
            shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def _directory(launch: Launch) -> tuple[Path, bool]:
    """The run's directory, and whether this call made it: of two that race for a made name, one
    gets the next."""
    while True:
        path = locate(launch)
        _refuse_taken(path, launch)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if launch.name is not None or launch.resume or launch.overwrite:
                return path, False
        else:
            return path, True


def _refuse_taken(path: Path, launch: Launch) -> None:
    """Refuses a directory that the run may not have, but for one that is locked."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        kind = "link" if path.is_symlink() else "file"
        raise UserError(f"{path} is a {kind}; choose another --name or --output-dir")
    if not path.exists():
        return
    config_file = path / "config.yaml"
    if not config_file.exists():
        if holds_files(path):
            raise UserError(f"{path} holds files but no run; choose another --name")
    elif not is_run(path):
        raise UserError(f"{path} holds a config.yaml that no run wrote; choose another --name")
    elif launch.resume:
        if changed := differences(config_file, launch.run, may_grow=True):
            what = f"cannot resume {path} with another configuration"
            raise UserError(f"{what}: {', '.join(changed.values())}")
    elif not launch.overwrite:
        raise UserError(
            f"{path} holds another run: --resume continues it, --overwrite replaces it, "
            "--name starts one beside it"
        )


def locate(launch: Launch) -> Path:
    """The run's directory: the given name, or one made of the configuration.

    A made name that is taken gets the next free number; ``--resume`` and ``--overwrite`` mean the
    last one that is taken.
    """
    if launch.name is not None:
        return launch.output_dir / launch.name
    run = launch.run
    what = f"{run.method}-{short_name(run.dataset)}"
    cut = run.partition.kind if run.skew is None else f"alpha{run.skew:g}"
    base = f"{what}-{cut}-k{run.num_clients}-seed{run.seed}"
    taken = [base, *(f"{base}-{n}" for n in range(2, 10_000))]
    free = next(i for i, name in enumerate(taken) if not (launch.output_dir / name).exists())
    if free and (launch.resume or launch.overwrite):
        free -= 1
    return launch.output_dir / taken[free]


def nested(config: RunConfig[Any]) -> JsonObject:
    """The configuration as it stands in YAML, with the flattened records at the top level.

    Paths of the user's own files are absolute: the run may be repeated from another folder.
    """
    plain = _plain(asdict(config))
    for name in FLATTENED:
        plain |= plain.pop(name, {})
    plain["plugin"] = [_absolute(p) if p.endswith(".py") else p for p in config.plugin]
    if is_path(config.dataset):
        plain["dataset"] = _absolute(config.dataset)
    if config.partition.file is not None:
        plain["partition"]["file"] = _absolute(config.partition.file)
    return plain


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


NOT_INSTALLED = "not installed"
"""In place of a package's version."""


def versions() -> dict[str, str]:
    """Versions of Python, of Onefold and of the packages that a result depends on."""
    found = {"python": platform.python_version(), "onefold": _version("onefold")}
    return found | {name: _version(name) for name in PACKAGES}


def can_go_on(run: RunConfig[Any]) -> bool:
    """Whether the run may be resumed with more rounds, to the same end as if it had been begun with
    them. A method may fuse a single round otherwise, and noise for privacy is by the rounds."""
    return run.rounds > 1 and run.dp.epsilon is None


def differences(
    config_file: Path, run: RunConfig[Any], *, may_grow: bool = False
) -> dict[str, str]:
    """How the run differs from that of a config.yaml, by setting: in its value, or in the user's
    code or data that it names. ``may_grow``: more rounds are no difference if it can go on."""
    recorded = load_mapping(config_file)
    own_now, own = identity_of(run), recorded.get(OWN)
    before = flatten({name: v for name, v in recorded.items() if name not in RECORDED})
    now = flatten(nested(run))
    if may_grow and can_go_on(run) and 1 < before.get("rounds", 0) < run.rounds:
        before["rounds"] = run.rounds
    own = own if isinstance(own, dict) else {}
    changed = [name for name in sorted(own | own_now) if own.get(name) != own_now.get(name)]
    named = {name: f"{name}: what it names has changed" for name in changed}
    return named | changes(before, now)


def changes(before: SettingValues, now: SettingValues) -> dict[str, str]:
    """What has another value now, by dotted name, as ``alpha: 0.5 -> 0.1``."""
    return {
        name: f"{name}: {before.get(name)} -> {now.get(name)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    }


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


# What the settings of a run do not say: which code and data of the user's own their names mean. Two
# runs of equal settings are the same only if these are. A run's config.yaml records them, so that
# no run goes on, and no result is taken for finished, with other code or data.

ROWS = 4096
"""Samples that are hashed at once: their bytes are copied for it."""
DIGESTS: WeakKeyDictionary[Dataset, str] = WeakKeyDictionary()
"""Of data sets that were asked for before: a hash of gigabytes takes seconds."""


def identity_of(run: RunConfig[Any]) -> dict[str, str]:
    """A digest of all that each of the run's settings, by dotted name, names of the user's own;
    settings without are left out.

    Raises:
        UserError: data or a plugin cannot be read.
    """
    digests = {
        setting: [digest for word in _words(value) for digest in _digests(setting, word, run)]
        for setting, value in flatten(nested(run)).items()
    }
    return {
        setting: hashlib.sha256(" ".join(found).encode()).hexdigest()[:16]
        for setting, found in digests.items()
        if found
    }


def _words(value: object) -> list[str]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]


def _digests(setting: str, word: str, run: RunConfig[Any]) -> Iterator[str]:
    if setting.endswith("dataset") and (word in REGISTERED or is_elsewhere(word)):
        yield _of_data(own_dataset(word))
    elif setting == "plugin":
        plugin = load_plugin(word).__name__  # one that is installed too
        modules = sorted({plugin, *users_modules([plugin])} - {"__main__"})
        yield from (_of_file(str(sys.modules[name].__file__)) for name in modules)
    elif setting == "partition.file":
        yield _of_file(word)
    elif setting == "data.folder":
        yield fingerprint(sorted(Path(word).expanduser().rglob("*")))
    elif setting == "method" and word not in OUR_METHODS:
        yield code_of(METHODS[word]).digest
    elif word in MODELS and word not in OURS:
        factory: Any = MODELS[word].build
        yield from (code_of(own).digest for own in (factory.make, factory.loss) if own)
        if {*code_of(factory.make).unknown} - {"getattr"}:
            yield _of_weights(word, run)


def _of_file(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:  # who needs the file will say so
        return "none"


def _of_weights(model: str, run: RunConfig[Any]) -> str:
    """Of the weights that a model of the user's has now, whose code may read them from a file."""
    width = getattr(getattr(run.options, "classifier", None), "width", 1.0)
    with seeded(0, "identity"):  # runs of other seeds are of one model
        built = build_classifier(model, run.run_spec.inputs, run.run_spec.outputs, width=width)
    return digest_of(built.state_dict(), model)


def _of_data(dataset: Dataset) -> str:
    if dataset not in DIGESTS:
        digest = hashlib.sha256()
        for split in (dataset.train, dataset.test):
            every = np.arange(len(split.labels))
            for rows in np.array_split(every, 1 + len(every) // ROWS):
                digest.update(shard_digest(split, rows).encode())
        DIGESTS[dataset] = digest.hexdigest()
    return DIGESTS[dataset]
