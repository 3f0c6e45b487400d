"""Clients that lie with plausible numbers, for benchmarks/robust.py.

An attack is on a client's weights, changed when it uploads them, or on its data, changed before it
trains. All uploads pass the checks of what is received.
"""

from collections.abc import Callable, Generator, Sequence, Set
from dataclasses import replace

import torch
from torch import Tensor

from fl.client_note import ClientNote
from fl.data.datasets import Split
from fl.errors import ClientFailed
from fl.events import Events
from fl.executor import InProcess
from fl.federation import Job, Training
from fl.packed import Packed
from fl.receiving import WEIGHTS
from fl.seeding import torch_generator
from fl.wire import unpack

NOISE = 10.0
"""Standard deviation of the noise, over that of the tensor that it is added to."""
SCALE = 10.0


def _noisy(tensor: Tensor, stream: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=stream)
    return tensor + NOISE * tensor.std(correction=0) * noise


ON_WEIGHTS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "sign flip": lambda tensor, stream: -tensor,
    "scaling": lambda tensor, stream: SCALE * tensor,
    "noise": _noisy,
}
"""By the attack's name: what becomes of each tensor of weights."""

ON_DATA: dict[str, Callable[[Split], Split]] = {
    "label flip": lambda split: replace(split, labels=split.labels.max() - split.labels),
    "reversed images": lambda split: replace(split, images=255 - split.images),
}
"""By the attack's name: what a client trains on."""

ATTACKS = (*ON_WEIGHTS, *ON_DATA)

Trained = dict[tuple[int, Training, int], Packed]
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
    ) -> Generator[tuple[Job, Packed | ClientFailed], None, None]:
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

    def _sent(self, job: Job, packed: Packed) -> Packed:
        if self._attack not in ON_WEIGHTS or job.client.id not in self._liars:
            return packed
        tensors, _ = unpack(bytes(packed))
        change = ON_WEIGHTS[self._attack]
        stream = torch_generator(job.run_spec.seed, f"attack/{self._attack}", job.client.id)
        changed = {
            name: change(t, stream) if name.startswith(WEIGHTS) and t.is_floating_point() else t
            for name, t in tensors.items()
        }
        return Packed.in_memory(ClientNote.of(packed.content).pack(changed))


def _key(job: Job) -> tuple[int, Training, int]:
    return job.client.id, job.client.training, job.round
