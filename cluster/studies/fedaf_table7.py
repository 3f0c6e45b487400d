"""FedAF's Table 7 (CVPR'24, Appendix C): bytes up per client and round.

The size of an upload depends on labels and shapes alone, so nothing is trained: it follows from the
classes that our partition gives each client. Which classes a client condenses, the presets of the
accuracy tables say. The averaging methods' column is one real upload of the network named.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from cluster.run.command_line import parse
from cluster.studies.comparison import published, table
from fl.data.datasets import INFO
from fl.data.partition import PartitionConfig, make_partition
from fl.json_files import JsonObject, write_json
from fl.models.registry import build_classifier
from fl.whole_files import write_atomically

MIB = 2**20
CLIENTS, IPC = 10, 50
PER_CLASS = {"fmnist": 6000, "cifar10": 5000, "cifar100": 500}
"""Training images of each class."""


def condensed_bytes(dataset: str, classes: float) -> float:
    """Bytes of FedAF's upload: of each class 8-bit condensed images and its number in 64 bits; and
    two matrices of float32, with a row and a column for each class of the data set."""
    info = INFO[dataset]
    images = IPC * np.prod(info.inputs.shape)
    return float(classes * (images + 8) + 2 * 4 * info.num_classes**2)


def measured(seeds: Sequence[int]) -> list[JsonObject]:
    """All lines of the table: classes that a client condenses and MiB that it sends, mean over
    seeds and clients; the printed MiB, and the classes in an upload of that size."""
    found = []
    for dataset, printed in published()["fedaf-table7"].items():
        none, one = (condensed_bytes(dataset, classes) / MIB for classes in (0, 1))
        for alpha, paper in printed.items():
            classes = mean_classes(dataset, alpha, seeds)
            row = {"dataset": dataset, "alpha": alpha, "classes": classes, "paper": paper}
            ours = condensed_bytes(dataset, classes) / MIB
            found.append(row | {"ours": ours, "papers_classes": (paper - none) / (one - none)})
    return found


def mean_classes(dataset: str, alpha: float, seeds: Sequence[int]) -> float:
    """Classes that a client condenses, of the data set's labels partitioned for each seed."""
    condensation = parse([f"--preset=fedaf-{dataset}", "--method=fedaf"]).run.options.condensation
    count = INFO[dataset].num_classes
    labels = np.repeat(np.arange(count), PER_CLASS[dataset])
    cuts = [
        make_partition(labels, CLIENTS, count, PartitionConfig(), alpha=alpha, seed=seed)
        for seed in seeds
    ]
    kept = [(cut.counts >= condensation.min_samples).sum(axis=1).mean() for cut in cuts]
    return float(np.mean(kept))


def upload_of(model: str, dataset: str) -> tuple[int, int]:
    """Parameters of the network, and bytes of what a client of an averaging method uploads."""
    info = INFO[dataset]
    with torch.device("meta"):
        built = build_classifier(model, info.inputs.image_shape, info.num_classes)
    parameters = sum(p.numel() for p in built.parameters())
    return parameters, sum(t.nbytes for t in built.state_dict().values())


def as_markdown(rows: Sequence[JsonObject], seeds: Sequence[int]) -> str:
    """The table, with the averaging methods' uploads below it."""
    condensed = [
        {
            "Data set": row["dataset"],
            "Alpha": str(row["alpha"]),
            "Classes per client": f"{row['classes']:.1f}",
            "MiB": f"{row['ours']:.2f}",
            "Paper": f"{row['paper']:.2f}",
            "Classes per client behind the paper's": f"{row['papers_classes']:.1f}",
        }
        for row in rows
    ]
    averaging = []
    for model, printed in published()["fedaf-table7-averaging"].items():
        for dataset in PER_CLASS:
            count, size = upload_of(model, dataset)
            upload = {"Upload, MiB": f"{size / MIB:.2f}", "Paper": f"{printed:.2f}"}
            about = {"Averaging": model, "Data set": dataset, "Parameters": f"{count:,}"}
            averaging.append(about | upload)
    return "\n".join(
        [
            f"# FedAF's Table 7: MiB up per client and round, IPC {IPC}, {CLIENTS} clients, "
            f"seeds {', '.join(map(str, seeds))}",
            "",
            *table(condensed),
            "",
            f"A class counts for a client that has {IPC} samples of it or more.",
            "",
            *table(averaging),
            "",
        ]
    )


def make(seeds: Sequence[int], output_dir: Path) -> None:
    """Computes, prints and saves the table."""
    rows, path = measured(seeds), output_dir / "fedaf-table7.md"
    text = as_markdown(rows, seeds)
    output_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    write_json(path.with_suffix(".json"), rows)
    print(f"{text}\ntable    {path}")
