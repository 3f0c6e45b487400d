"""Clients that lie with plausible numbers, for benchmarks/robust.py.

An attack is on a client's weights, changed when it uploads them, or on its data, changed before it
trains. Some know the checks of what is received, and send what just passes them.
"""

from collections.abc import Callable, Generator, Sequence, Set
from dataclasses import replace

import torch
from torch import Tensor

from fl.clients import trained
from fl.data.datasets import Split
from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import ClientNote, Tensors, Upload, prefixed, unpack
from fl.executor import InProcess
from fl.federation import Job, Training
from fl.receiving import LEAST_APART, receive
from fl.seeding import torch_generator
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig, starting_decoder

NOISE = 10.0
"""Standard deviation of the noise, over that of the tensor that it is added to."""
SCALE = 10.0
FURTHEST = 1024.0
"""Factor on its own move that a liar tries first, the other way; then half of it, and so on."""


def _noisy(tensor: Tensor, start: Tensor, stream: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=stream)
    return tensor + NOISE * tensor.std(correction=0) * noise


ON_WEIGHTS: dict[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]] = {
    "sign flip": lambda tensor, start, stream: -tensor,
    "scaling": lambda tensor, start, stream: SCALE * tensor,
    "noise": _noisy,
    "start sent back": lambda tensor, start, stream: start,
}
"""By the attack's name: what becomes of each tensor of weights."""

FAR_BACK = "just passes"
"""The liar goes from the start the other way, as far as the checks of what is received let it."""

ON_DATA: dict[str, Callable[[Split], Split]] = {
    "label flip": lambda split: replace(split, labels=split.labels.max() - split.labels),
    "reversed images": lambda split: replace(split, images=255 - split.images),
}
"""By the attack's name: what a client trains on."""

ATTACKS = (*ON_WEIGHTS, FAR_BACK, *ON_DATA)

Trained = dict[tuple[int, Training, int], Upload]
"""Uploads by client, training record and round."""


class Liars:
    """Trains in this process, as :class:`fl.executor.InProcess` does, some clients by an attack."""

    def __init__(
        self, train: Split, attack: str, liars: Set[int], honest: Trained, poisoned: Trained
    ) -> None:
        """``honest`` and ``poisoned``: uploads of other runs of one round on the same data and
        shards, which are used again and added to; the latter of the same attack."""
        self._attack, self._liars = attack, liars
        changed = ON_DATA[attack](train) if attack in ON_DATA else train
        self._sources = ((InProcess(train), honest), (InProcess(changed), poisoned))

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
        """See :class:`fl.federation.Executor`."""
        for is_changed, (executor, known) in enumerate(self._sources):
            own = [job for job in jobs if self._trains_on_changed(job) == bool(is_changed)]
            waiting = [job for job in own if _key(job) not in known]
            for job, packed in executor.run(waiting, events):
                if isinstance(packed, ClientFailed):
                    yield job, packed
                else:
                    known[_key(job)] = packed
            for job in own:
                if _key(job) in known:
                    yield job, self._sent(job, known[_key(job)])

    def _trains_on_changed(self, job: Job) -> bool:
        return self._attack in ON_DATA and job.client.id in self._liars

    def _sent(self, job: Job, packed: Upload) -> Upload:
        if self._attack in ON_DATA or job.client.id not in self._liars:
            return packed
        tensors, note, start = dict(packed), packed.note, _start(job)
        weights = {n: t for n, t in tensors.items() if n in start and t.is_floating_point()}
        if self._attack == FAR_BACK:
            return _far_back(job, note, tensors, weights, start)
        change = ON_WEIGHTS[self._attack]
        stream = torch_generator(job.run_spec.seed, f"attack/{self._attack}", job.client.id)
        changed = {name: change(t, start[name], stream) for name, t in weights.items()}
        return Upload(note.pack({**tensors, **changed}))


def _start(job: Job) -> Tensors:
    """The weights that the client's training began with."""
    training, sent = job.client.training, [job.broadcast, job.payload]
    start: Tensors = {}
    if isinstance(training, ClassifierConfig):
        start = prefixed("classifier", starting_classifier(training, job.run_spec))
    if isinstance(training, GeneratorConfig):
        start = prefixed("decoder", starting_decoder(training, job.run_spec))
    for message in sent:
        start |= unpack(message)[0] if message else {}
    return start


def _far_back(
    job: Job, note: ClientNote, tensors: Tensors, weights: Tensors, start: Tensors
) -> Upload:
    factor = FURTHEST
    while True:
        back = {name: start[name] - factor * (t - start[name]) for name, t in weights.items()}
        packed = Upload(note.pack({**tensors, **back}))
        try:
            largest = receive(job, packed, trained)
        except ValueError:
            factor /= 2
            continue
        if max(largest.values()) < LEAST_APART:
            return packed
        factor /= 2


def _key(job: Job) -> tuple[int, Training, int]:
    return job.client.id, job.client.training, job.round
