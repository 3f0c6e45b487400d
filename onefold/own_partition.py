"""A partition of your own, as the arguments of the launch command."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl.data.catalogue import REGISTERED
from fl.data.partition import save_lists
from fl.errors import UserError


def partition_arguments(partition: Any, data: Any, output_dir: Path) -> list[str]:
    """Arguments for a partition: none, a kind, lists of indices, or a flwr-datasets partitioner.

    Lists are written to a file below ``output_dir``, by which the run can be repeated.

    Raises:
        UserError: it is none of these.
    """
    if partition is None:
        return []
    if isinstance(partition, str):
        return ["--partition.kind", partition]
    if hasattr(partition, "load_partition"):
        partition = _of_partitioner(partition, data)
    if not isinstance(partition, Sequence | np.ndarray):
        raise UserError(
            "partition: expected a kind, a list of index arrays or a flwr-datasets partitioner, "
            f"got {type(partition).__name__}"
        )
    lists = [np.asarray(own) for own in partition]
    for k, own in enumerate(lists):
        if own.ndim != 1 or not np.issubdtype(own.dtype, np.integer):
            raise UserError(f"partition: client {k} has no list of whole numbers")
    digest = hashlib.sha256(b"|".join(own.astype(np.int64).tobytes() for own in lists))
    path = (output_dir / ".partitions" / f"{digest.hexdigest()[:16]}.npz").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_lists(path, lists, [])
    file = ["--partition.kind", "file", "--partition.file", str(path)]
    return [*file, "--num-clients", str(len(lists))]


def _of_partitioner(partitioner: Any, data: Any) -> list[np.ndarray]:
    """Each client's indices, by a partitioner that is shown indices and labels for samples."""
    own = REGISTERED.get("own")
    if own is None or isinstance(data, str | Path):
        raise UserError("partition: a partitioner goes with data that is given as an object")
    from datasets import Dataset

    labels = own.train.labels
    partitioner.dataset = Dataset.from_dict({"index": range(len(labels)), "label": labels})
    return [
        np.asarray(partitioner.load_partition(k)["index"], np.int64)
        for k in range(partitioner.num_partitions)
    ]
