"""A server rank's group: the sum over all ranks, by torch.distributed where there are several."""

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


class ProcessGroup(Group):
    """A rank of several: NCCL between GPUs, gloo between CPUs."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, device: torch.device, timeout_s: float
    ) -> None:
        self.rank, self.size = rank, size
        if device.type == "cuda" and device.index is not None:  # without a number: the current one
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )

    def sum(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over all ranks; waits until all of them have called this.

        Raises:
            PeerLostError: a rank died, or was silent for longer than ``timeout_s``.
        """
        began = time.monotonic()
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            waited = time.monotonic() - began
            first = str(error).splitlines()[0]
            raise PeerLostError(
                f"rank {self.rank} waited {waited:.1f} s for the others: {first}"
            ) from None
