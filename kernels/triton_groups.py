"""The distance filter's Triton backend: `Groups` by the Triton kernels of this package."""

import contextlib

import torch
import triton
from torch import Tensor

from kernels.exact import rounding
from kernels.groups import Sums, narrow
from kernels.triton_kernels import distances_kernel, plan_kernel, sums_kernel
from kernels.triton_selection import thresholds_kernel
from kernels.tuning import Config, Shape, tuned

PIECE = 128  # samples that one program adds up, in 32 bits


class TritonGroups:
    """`Groups` in four launches and a sort of the labels; the host waits for none of them."""

    def __init__(self, flat: Tensor, labels: Tensor, num_classes: int) -> None:
        self.flat, self.num_classes = flat, num_classes
        self.shape = Shape.of(flat)
        # Labels out of range are sorted to the ends, outside of all classes.
        keys = labels.long().clamp(-1, num_classes).to(narrow(num_classes))
        keys, self.order = torch.sort(keys, stable=True)
        self.bounds = self.order.new_empty(num_classes + 1)
        self.piece_ends = self.order.new_empty(num_classes)
        with _on(flat):
            plan_kernel[(1,)](
                *(keys, self.bounds, self.piece_ends, len(flat), num_classes),
                steps=len(flat).bit_length(),
                piece=PIECE,
                block=min(1024, triton.next_power_of_2(num_classes + 1)),
            )
        # Enough pieces for classes of any sizes, as each class may end with a short one.
        self.max_pieces = len(flat) // PIECE + min(num_classes, len(flat))
        self.pieces = (self.order, self.bounds, self.piece_ends)
        self.strides = (flat.stride(0), flat.stride(1))

    def sums(self, unit: float, *, whole: bool) -> Sums:
        """Exact sums (C, F) in whole units, see `Groups.sums`; tuned at its first use."""
        # The kernel rounds what it has read, which costs nothing: `whole` changes nothing here.
        num_features = self.flat.shape[1]
        sums = self.order.new_zeros(self.num_classes, num_features)
        constants = rounding(unit)

        def launch(config: Config) -> None:
            sums_kernel[(self.max_pieces * triton.cdiv(num_features, config.features),)](
                *(self.flat, *self.pieces, sums, *constants),
                *(num_features, self.num_classes, *self.strides),
                steps=self.num_classes.bit_length(),
                piece=PIECE,
                rows=config.rows,
                features=config.features,
                num_warps=config.warps,
            )

        with _on(self.flat):
            best = tuned("sums", self.shape, launch)
            sums.zero_()  # where settings were measured, much was added
            launch(best)
        return Sums(sums, self.bounds.diff())

    def distances(self, centroids: Tensor) -> Tensor:
        """(N,) float32 distances to ``centroids`` (C, F), see `Groups.distances`; by one kernel."""
        distances = self.flat.new_empty(len(self.flat), dtype=torch.float32)

        def launch(config: Config) -> None:
            distances_kernel[(self.max_pieces * (PIECE // config.rows),)](
                *(self.flat, *self.pieces, centroids, distances, self.flat.shape[1]),
                *(self.num_classes, *self.strides, centroids.stride(0)),
                steps=self.num_classes.bit_length(),
                piece=PIECE,
                rows=config.rows,
                features=config.features,
                num_warps=config.warps,
            )

        with _on(self.flat):
            launch(tuned("distances", self.shape, launch))
        return distances

    def thresholds(self, distances: Tensor, quotas: Tensor) -> Tensor:
        """(C,) float32, see `Groups.thresholds`; by one program for each class."""
        found = self.bounds.new_empty(self.num_classes, dtype=torch.int32)
        per_class = triton.next_power_of_2(triton.cdiv(len(distances), self.num_classes))
        with _on(self.flat):
            thresholds_kernel[(self.num_classes,)](
                *(distances[self.order], self.bounds, quotas, found),
                block=min(4096, max(256, per_class)),
                num_warps=8,
            )
        return found.view(torch.float32)


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's device the current one, on which Triton launches."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
