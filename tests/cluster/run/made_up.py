"""Data sets that are not here, made up in the right shape, and needs that nobody measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.profiling import Requests, stated
from fl.data import datasets
from fl.data.datasets import INFO, Dataset, Split, subset

TRAIN, TEST = 4000, 200


def load(
    name: str, data_root: Path, *, max_train: int | None = None, max_test: int | None = None
) -> Dataset:
    """Random images, of all classes equally many."""
    info, stream = INFO[name], np.random.default_rng(0)
    splits = [
        Split(
            stream.integers(0, 256, (count, *info.inputs.shape), dtype=np.uint8),
            np.arange(count) % info.num_classes,
        )
        for count in (TRAIN, TEST)
    ]
    return subset(Dataset(name, *splits, info.num_classes), max_train=max_train, max_test=max_test)


def make_up_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every data set of the catalogue made up where it is read."""
    monkeypatch.setattr(datasets, "load", load)


def measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has clients ask for what is stated, without the process that measures a step of each."""

    def as_stated(
        assignments: Any, _: Any, __: Any, config: Any, inventory: Any, *, anew: bool
    ) -> Requests:
        requests = stated(assignments, config, inventory).by_assignment
        return Requests(requests, dict.fromkeys((a.training.model for a in assignments), 1e-3))

    monkeypatch.setattr("cluster.run.prepare.measured", as_stated)
