"""A rank and its peers: what they do together."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """One rank alone, which needs no process group. What it does all ranks must do."""

    rank = 0
    size = 1

    def sum(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over all ranks."""

    def gather(self, rows: Tensor) -> Tensor:
        """All ranks' rows: (n, ...), as many on each, to (size n, ...)."""
        return rows

    def swap(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Gives part k to rank k; returns what each rank gave, of these shapes."""
        return list(parts)

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        """Replaces the tensor by that rank's."""


class PeerLostError(RuntimeError):
    """A collective failed: another rank died, or was silent for too long."""


class ProcessGroup(Group):
    """A rank of several: NCCL between GPUs, gloo between CPUs."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, device: torch.device, timeout_s: float
    ) -> None:
        self.rank, self.size = rank, size
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )

    def sum(self, tensor: Tensor) -> None:
        """See :class:`Group`."""
        with self._timed():
            dist.all_reduce(tensor)

    def gather(self, rows: Tensor) -> Tensor:
        """See :class:`Group`."""
        found = rows.new_empty(self.size * len(rows), *rows.shape[1:])
        with self._timed():
            dist.all_gather_into_tensor(found, rows.contiguous())
        return found

    def swap(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """See :class:`Group`."""
        given = torch.cat([part.reshape(-1) for part in parts])
        sizes = [math.prod(shape) for shape in shapes]
        found = given.new_empty(sum(sizes))
        with self._timed():
            dist.all_to_all_single(found, given, sizes, [part.numel() for part in parts])
        return [part.view(s) for part, s in zip(found.split(sizes), shapes, strict=True)]

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        """See :class:`Group`."""
        with self._timed():
            dist.broadcast(tensor, rank)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            waited = time.monotonic() - began
            first = str(error).splitlines()[0]
            raise PeerLostError(
                f"rank {self.rank} waited {waited:.1f} s for the others: {first}"
            ) from None
