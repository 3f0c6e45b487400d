"""A rank and its peers: what they do together."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """One rank alone, which needs no process group."""

    rank = 0
    size = 1

    def sum(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over all ranks; all of them must call this."""


class PeerLostError(RuntimeError):
    """A collective failed: another rank died, or was silent for too long."""

    def __init__(self, rank: int, waited_s: float, timed_out: bool, cause: str) -> None:
        super().__init__(rank, waited_s, timed_out, cause)
        self.waited_s = waited_s
        self.timed_out = timed_out

    def __str__(self) -> str:
        rank, waited_s, _, cause = self.args
        return f"rank {rank} waited {waited_s:.1f} s for the others: {cause}"


class ProcessGroup(Group):
    """A rank of several: NCCL between GPUs, gloo between CPUs."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, device: torch.device, timeout_s: float
    ) -> None:
        self.rank, self.size, self._timeout_s = rank, size, timeout_s
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
        began = time.monotonic()
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            waited = time.monotonic() - began
            first = str(error).splitlines()[0]
            late = waited >= 0.9 * self._timeout_s
            raise PeerLostError(self.rank, waited, late, first) from None
