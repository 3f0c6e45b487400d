"""What this machine has, and what a client's request comes to on it."""

import os
from dataclasses import dataclass

import torch

from fl.errors import UserError
from fl.federation import Request


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Cores and GPUs that this process may use."""

    cpus: int
    gpus: int

    def scaled(self, request: Request) -> Request:
        """The request on this machine: without GPUs there is no share of one to ask for."""
        return request if self.gpus else Request(cpus=request.cpus, gpus=0)

    def check(self, role: str, request: Request) -> None:
        """Refuses a request that can never be met."""
        if request.cpus > self.cpus:
            raise UserError(
                f"a {role} client asks for {request.cpus:g} cores, this machine has {self.cpus}; "
                f"lower resources.{role}.cpus"
            )

    def at_once(self, request: Request) -> int:
        """How many such clients fit at the same time."""
        scaled = self.scaled(request)
        fits = int(self.cpus / scaled.cpus)
        if scaled.gpus:
            # A share never spans two GPUs.
            fits = min(fits, self.gpus * int(1 / scaled.gpus + 1e-9))
        return fits


def take_inventory() -> Inventory:
    """Counts the cores this process may run on and the GPUs it may see."""
    return Inventory(cpus=len(os.sched_getaffinity(0)), gpus=torch.cuda.device_count())
