"""What the settings of a run do not say: which code and data of the user's own their names mean.

Two runs of equal settings are the same only if these are. A run's config.yaml records them, so that
no run goes on, and no result is taken for finished, with other code or data.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cluster.clients.extensions import users_modules
from fl.data.catalogue import REGISTERED, is_elsewhere, own_dataset
from fl.data.datasets import Dataset, fingerprint
from fl.data.shard import shard_digest
from fl.json_files import SettingValues
from fl.methods.registry import METHODS
from fl.methods.registry import OURS as OUR_METHODS
from fl.models.registry import MODELS, OURS
from fl.plugins import load_plugin
from fl.sources import code_of

ROWS = 4096
"""Samples that are hashed at once: their bytes are copied for it."""
DIGESTS: WeakKeyDictionary[Dataset, str] = WeakKeyDictionary()
"""Of data sets that were asked for before: a hash of gigabytes takes seconds."""


def identity(settings: SettingValues) -> dict[str, str]:
    """A digest of all that each of a run's settings, by dotted name, names of the user's own;
    settings without are left out.

    Raises:
        UserError: data or a plugin cannot be read.
    """
    digests = {
        setting: [digest for word in _words(value) for digest in _digests(setting, word)]
        for setting, value in settings.items()
    }
    return {
        setting: hashlib.sha256(" ".join(found).encode()).hexdigest()[:16]
        for setting, found in digests.items()
        if found
    }


def _words(value: object) -> list[str]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]


def _digests(setting: str, word: str) -> Iterator[str]:
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


def _of_file(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:  # who needs the file will say so
        return "none"


def _of_data(dataset: Dataset) -> str:
    if dataset not in DIGESTS:
        digest = hashlib.sha256()
        for split in (dataset.train, dataset.test):
            every = np.arange(len(split.labels))
            for rows in np.array_split(every, 1 + len(every) // ROWS):
                digest.update(shard_digest(split, rows).encode())
        DIGESTS[dataset] = digest.hexdigest()
    return DIGESTS[dataset]
