"""The distance filter's Triton backend: `Groups` by the Triton kernels of this package."""

import contextlib
import struct

import torch
import triton
from torch import Tensor

from kernels.groups import Selection, narrow, share
from kernels.triton_kernels import distances_kernel, means_kernel, plan_kernel, sums_kernel
from kernels.triton_selection import STATUS_SIZE, count_kernel, list_kernel, select_kernel
from kernels.tuning import Config, Shape, tuned

PIECE = 128  # samples summed by one program, in float32
LIST_BLOCK = 2048


class TritonGroups:
    """`Groups` in nine launches and a sort of the labels; the host waits once, in `select`."""

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

    def means(self) -> Tensor:
        num_features = self.flat.shape[1]
        sums = self.flat.new_empty(self.max_pieces, num_features, dtype=torch.float32)
        centroids = sums.new_empty(self.num_classes, num_features)

        def launch(config: Config) -> None:
            sums_kernel[(self.max_pieces * triton.cdiv(num_features, config.features),)](
                *(self.flat, *self.pieces, sums, num_features, self.num_classes, *self.strides),
                steps=self.num_classes.bit_length(),
                piece=PIECE,
                rows=config.rows,
                features=config.features,
                num_warps=config.warps,
            )

        with _on(self.flat):
            launch(tuned("sums", self.shape, launch))
            means_kernel[(self.num_classes, triton.cdiv(num_features, 256))](
                *(sums, self.bounds, self.piece_ends, centroids, num_features),
                rows=8,
                features=256,
            )
        return centroids

    def distances(self, centroids: Tensor) -> Tensor:
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

    def select(self, distances: Tensor, keep: float) -> Selection:
        num_samples = len(distances)
        kept = torch.zeros_like(distances, dtype=torch.int8)
        status = self.order.new_zeros(STATUS_SIZE)
        blocks = triton.cdiv(num_samples, LIST_BLOCK)
        counts = self.order.new_empty(blocks)
        indices = torch.empty_like(self.order)
        per_class = triton.next_power_of_2(triton.cdiv(num_samples, self.num_classes))
        with _on(self.flat):
            select_kernel[(self.num_classes,)](
                *(distances[self.order], self.order, self.bounds, kept, status, *share(keep)),
                block=min(4096, max(256, per_class)),
                num_warps=8,
            )
            count_kernel[(blocks,)](kept, counts, num_samples, block=LIST_BLOCK)
            list_kernel[(blocks,)](
                *(kept, counts, self.bounds, indices, status, num_samples, self.num_classes),
                block=LIST_BLOCK,
            )
        total, first, last, largest = status.tolist()  # the only time that the host waits
        return Selection(
            indices=indices[:total],
            labels_fit=(first, last) == (0, num_samples),
            largest=struct.unpack("f", struct.pack("I", largest))[0],
        )


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's device the current one, on which Triton launches."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
