"""A server rank's group: the sum over all ranks, by torch.distributed where there are several."""

import hmac
import time
from collections.abc import Callable
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


class StrangerError(RuntimeError):
    """Who answers as a rank does not know the group's secret."""


class ProcessGroup(Group):
    """A rank of several: NCCL between GPUs, gloo between CPUs.

    Gloo asks nobody who it is. So, once they are connected, the ranks prove to each other that they
    know a secret, and nothing is summed with one that does not.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        device: torch.device,
        secret: bytes,
        timeout_s: float,
    ) -> None:
        """Waits until all ranks have joined.

        Raises:
            StrangerError: another rank's secret is not this one's.
            PeerLostError: see :meth:`sum`.
        """
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
        self._recognise(secret, device)

    def _recognise(self, secret: bytes, device: torch.device) -> None:
        proofs = [proof(secret, rank, self.size) for rank in range(self.size)]
        own = torch.tensor([*proofs[self.rank]], dtype=torch.uint8, device=device)
        told = [torch.empty_like(own) for _ in proofs]
        self._together(lambda: dist.all_gather(told, own))
        for rank, (expected, tensor) in enumerate(zip(proofs, told, strict=True)):
            if not hmac.compare_digest(bytes(tensor.tolist()), expected):
                raise StrangerError(f"rank {rank} does not know the secret of rank {self.rank}")

    def sum(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over all ranks; waits until all of them have called this.

        Raises:
            PeerLostError: a rank died, or was silent for longer than ``timeout_s``.
        """
        self._together(lambda: dist.all_reduce(tensor))

    def _together(self, collective: Callable[[], object]) -> None:
        began = time.monotonic()
        try:
            collective()
        except RuntimeError as error:
            waited = time.monotonic() - began
            first = str(error).splitlines()[0]
            raise PeerLostError(
                f"rank {self.rank} waited {waited:.1f} s for the others: {first}"
            ) from None


def proof(secret: bytes, rank: int, size: int) -> bytes:
    """32 bytes that only who knows the secret can make, for this place in the group alone."""
    return hmac.digest(secret, f"rank {rank} of {size}".encode(), "sha256")
