"""A server rank's group: the sum over all ranks, by torch.distributed where there are several."""

import hmac
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

POLL_S = 5e-5
"""Seconds between two looks at whether NCCL is done."""
WATCHDOG_S = 60.0
"""Seconds by which NCCL is more patient than we are."""


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
    """A rank of several: NCCL between GPUs; gloo between CPUs, and where ranks share a GPU, which
    NCCL refuses.

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
        self._store = store  # of one that is written in Python torch holds the C++ half alone
        if device.type == "cuda" and device.index is not None:  # without a number: the current one
            torch.cuda.set_device(device)
        self._timeout_s = timeout_s
        self._nccl = device.type == "cuda" and not shares_gpu(store, rank, size, device)
        # NCCL's own watchdog ends the process: it comes after our wait, which raises.
        patience = timeout_s + (WATCHDOG_S if self._nccl else 0)
        dist.init_process_group(
            "nccl" if self._nccl else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=patience),
        )
        self._recognise(secret, device if self._nccl else torch.device("cpu"))

    def _recognise(self, secret: bytes, device: torch.device) -> None:
        proofs = [proof(secret, rank, self.size) for rank in range(self.size)]
        own = torch.tensor([*proofs[self.rank]], dtype=torch.uint8, device=device)
        received = [torch.empty_like(own) for _ in proofs]
        self._together(lambda: dist.all_gather(received, own, async_op=True))
        for rank, (expected, tensor) in enumerate(zip(proofs, received, strict=True)):
            if not hmac.compare_digest(bytes(tensor.tolist()), expected):
                raise StrangerError(f"rank {rank} does not know the secret of rank {self.rank}")

    def sum(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over all ranks; waits until all of them have called this.

        Raises:
            PeerLostError: a rank died, or was silent for longer than ``timeout_s``.
        """
        if self._nccl or not tensor.is_cuda:
            self._together(lambda: dist.all_reduce(tensor, async_op=True))
            return
        there = tensor.cpu()  # ranks that share a GPU meet on the host
        self._together(lambda: dist.all_reduce(there, async_op=True))
        tensor.copy_(there)

    def _together(self, collective: Callable[[], dist.Work]) -> None:
        began = time.monotonic()
        try:
            work = collective()
            if self._nccl:  # whose own wait only queues a wait on the GPU, and cannot raise
                self._wait(work, began + self._timeout_s)
            work.wait()
        except RuntimeError as error:
            waited = time.monotonic() - began
            first = str(error).splitlines()[0]
            raise PeerLostError(
                f"rank {self.rank} waited {waited:.1f} s for the others: {first}"
            ) from None

    def _wait(self, work: dist.Work, deadline: float) -> None:
        """Returns once the collective has run on the GPU, or has failed."""
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError("a rank was silent")
            time.sleep(POLL_S)


def shares_gpu(store: dist.Store, rank: int, size: int, device: torch.device) -> bool:
    """Whether any two of the ranks are on one GPU; each of them must ask."""
    store.set(f"gpu/{rank}", str(torch.cuda.get_device_properties(device).uuid))
    return len({bytes(store.get(f"gpu/{k}")) for k in range(size)}) < size


def proof(secret: bytes, rank: int, size: int) -> bytes:
    """32 bytes that only who knows the secret can make, for this place in the group alone."""
    return hmac.digest(secret, f"rank {rank} of {size}".encode(), "sha256")
