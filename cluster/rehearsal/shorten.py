"""A run's settings and data, cut to what one step of everything needs."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from cluster.run.prepare import Prepared
from fl.data.datasets import Dataset
from fl.federation import Client, Training
from fl.fusion.inversion import InversionConfig
from fl.fusion.trajectory import AHEAD, MatchingConfig
from fl.methods.dynafed import DynaFedConfig
from fl.methods.fedd2s import FedD2SConfig
from fl.seeding import numpy_generator

TESTED = 64
"""Test samples, of all or of each client, and public images, that a rehearsal keeps."""
LOOPS: dict[type, tuple[str, str]] = {
    InversionConfig: ("steps", "synthesis"),
    MatchingConfig: ("iterations", "synthesis"),
    FedD2SConfig: ("server_epochs", "fusion"),
}
"""Loops of a server beside its fits: the setting that counts them, and the phase of a run in which
they are. Those in a phase "fusion" go over the clients' samples."""


def shortened(options: Any) -> tuple[Any, dict[str, float]]:
    """The method's settings with one pass of each of the ``LOOPS``, and by phase how many it had.

    Fits are cut where they run (:mod:`cluster.rehearsal.server`), clients' training too
    (:mod:`cluster.rehearsal.executor`).
    """
    loops: dict[str, float] = {}
    changed: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            changed[field.name], inner = shortened(value)
            loops |= inner
    for kind, (name, phase) in LOOPS.items():
        if isinstance(options, kind):
            loops[phase] = float(getattr(options, name))
            changed[name] = 1
    if makes_images_once(options):
        changed["trajectory"] = AHEAD
    return replace(options, **changed) if changed else options, loops


def makes_images_once(options: Any) -> bool:
    """Whether the server learns images in a single round, after ``trajectory`` others."""
    return isinstance(options, DynaFedConfig)


def rounds_to_rehearse(options: Any, rounds: int) -> int:
    """The first round, and one like all others; where images are learned later, one with those."""
    return min(rounds, AHEAD + 1 if makes_images_once(options) else 2)


def trainings_in(options: Any) -> Iterable[Training]:
    """The records by which clients train, wherever in the settings they stand."""
    if hasattr(options, "probe"):
        yield options
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            yield from trainings_in(value)


@dataclass(frozen=True)
class Cut:
    """What a rehearsal runs on, beside what it stands for."""

    members: tuple[Client, ...]
    train: tuple[np.ndarray, ...]
    """Indices of each client's samples, enough for a step."""
    test: tuple[np.ndarray, ...]
    dataset: Dataset
    """With the test split cut."""
    inputs: dict[str, Tensor]
    whole: Prepared

    @property
    def share_tested(self) -> float:
        """Test samples of the whole over those here."""
        return len(self.whole.dataset.test.labels) / len(self.dataset.test.labels)

    @property
    def share_samples(self) -> float:
        """Training samples of all clients of the whole over those here."""
        return sum(map(len, self.whole.partition.train)) / sum(map(len, self.train))

    @property
    def share_public(self) -> float:
        """Public images of the whole over those here; 1 without any."""
        if "auxiliary" not in self.inputs:
            return 1.0
        return len(self.whole.inputs["auxiliary"]) / len(self.inputs["auxiliary"])


def cut(prepared: Prepared, options: Any, seed: int) -> Cut:
    """Each client with as many samples as one batch of the largest of its trainings needs.

    No client has more than the largest of its kind; who has less repeats its own.
    """
    classes, partition = prepared.run_spec.num_classes, prepared.partition
    also = [training.probe(1, classes)[1] for training in trainings_in(options)]
    counts: dict[tuple[str, Training], int] = {}
    for client, own in zip(prepared.members, partition.train, strict=True):
        kind = client.role, client.training
        counts[kind] = max(counts.get(kind, 0), len(own))
    needed = {
        kind: min(n, max(*also, kind[1].probe(1, classes)[1], 1)) for kind, n in counts.items()
    }
    members = tuple(
        replace(client, num_samples=needed[client.role, client.training])
        for client in prepared.members
    )
    test, rows = prepared.dataset.test, np.arange(len(prepared.dataset.test.labels))
    return Cut(
        members=members,
        train=tuple(
            _exactly(own, client.num_samples, seed)
            for own, client in zip(partition.train, members, strict=True)
        ),
        test=tuple(_exactly(own, min(TESTED, len(own)), seed) for own in partition.test),
        dataset=replace(
            prepared.dataset, test=test.take(_exactly(rows, min(TESTED, len(rows)), seed))
        ),
        inputs={name: images[:TESTED] for name, images in prepared.inputs.items()},
        whole=prepared,
    )


def _exactly(rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """So many of the rows, drawn, in their order; repeated where there are fewer."""
    repeated = np.tile(rows, -(-count // max(1, len(rows))))
    return np.sort(numpy_generator(seed, "rehearsal").permutation(repeated)[:count])
