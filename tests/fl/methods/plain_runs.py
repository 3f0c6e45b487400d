"""Whole runs of a small federation, and plain loops over its clients, of which twins are made."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from cluster.clients.store import Store
from fl.clients import Clients
from fl.data.datasets import Dataset
from fl.data.partition import Partition
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.seeding import seed_for
from fl.server import Outcome
from tests.fl.methods.tiny import WatchedServer, tiny_federation, tiny_partition

EPOCHS, BATCH, LR, MOMENTUM = 2, 16, 0.05, 0.9
"""Local training in all runs: SGD, where rounding stays small; Adam divides by the gradient."""
Further = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A further term of a model, its logits of a batch, and the batch's rows."""


class Runs:
    """The same clients again and again."""

    def __init__(
        self, data: Dataset, clients: int, cut: Partition | None = None, *, shared: bool = False
    ) -> None:
        """``cut``: who has which samples, with test samples of their own; ``shared``: see
        Request."""
        self.data, self.clients, self._cut, self._shared = data, clients, cut, shared
        self._rows = (cut or tiny_partition(data, clients)).train

    def federation(
        self, name: str, config: Any, *, cut: Partition | None = None, **options: Any
    ) -> tuple[Clients, WatchedServer]:
        """Those who play a method; ``options``: of :func:`tiny_federation`."""
        return tiny_federation(
            config,
            num_clients=self.clients,
            assign=get_method(name).assign,
            data=self.data,
            cut=cut or self._cut,
            shared=self._shared,
            **options,
        )

    def play(
        self,
        name: str,
        config: Any,
        rounds: int,
        *,
        directory: Path | None = None,
        inputs: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Outcome, Clients]:
        """A whole run, and its clients."""
        clients, server = self.federation(name, config, **options)
        played = Rounds(rounds, directory)
        run = get_method(name).run
        return run(clients, server, config, rounds=played, **(inputs or {})), clients

    def store(self, root: Path, run: str = "run") -> Store:
        """A run's store, beside those of others in one pool."""
        return Store(root / ".store", root / run / "updates", self.data.train)

    def samples(self, k: int) -> tuple[Tensor, Tensor]:
        """Images and labels that a client trains on."""
        split, own = self.data.train, self._rows[k]
        return torch.from_numpy(split.images[own]).float() / 255, torch.from_numpy(
            split.labels[own]
        )

    def sizes(self) -> list[int]:
        """Samples of each client."""
        return [len(own) for own in self._rows]

    def batches(
        self, k: int, number: int, epochs: int = EPOCHS, purpose: str = "local/order"
    ) -> Iterator[Tensor]:
        """Rows of a client's samples, batch by batch, in a round."""
        named = purpose if number == 1 else f"{purpose}/round {number}"
        order = torch.Generator().manual_seed(seed_for(0, named, k))
        for _ in range(epochs):
            yield from torch.randperm(self.sizes()[k], generator=order).split(BATCH)

    def train(
        self,
        model: nn.Module,
        k: int,
        number: int,
        further: Further | None = None,
        *,
        only: Sequence[nn.Parameter] | None = None,
        epochs: int = EPOCHS,
        purpose: str = "local/order",
    ) -> nn.Module:
        """Plain local training in a round, perhaps of some parameters only."""
        images, labels = self.samples(k)
        sgd = optim.SGD(model.parameters() if only is None else only, lr=LR, momentum=MOMENTUM)
        model.train()
        for rows in self.batches(k, number, epochs, purpose):
            logits = model(images[rows])
            loss = F.cross_entropy(logits, labels[rows])
            if further is not None:
                loss = loss + further(model, logits, rows)
            model.zero_grad()
            loss.backward()
            sgd.step()
        return model


def averaged(states: Sequence[dict[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The mean of models, weighted, name by name."""
    total = sum(shares)
    return {
        n: sum((w / total * s[n].double() for w, s in zip(shares, states, strict=True))).float()  # type: ignore[union-attr]
        for n in states[0]
    }
