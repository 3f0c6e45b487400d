"""FedAF's Table 7 (CVPR'24, Appendix C): bytes up per client and round, as counted in our own runs.

The size of an upload depends on labels and shapes alone. So the real method runs one round on blank
images with the data sets' label counts, with the smallest of networks and a single step. What it
uploads, and of which classes, the presets of the accuracy tables say. The averaging methods' column
is one real upload of the network named.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from cluster.clients.store import Store
from cluster.run.command_line import parse
from cluster.studies.comparison import published, table
from fl.clients import Clients
from fl.data.datasets import INFO, Split
from fl.data.partition import PartitionConfig, make_partition
from fl.data.shard import Shard
from fl.events import Events
from fl.executor import InProcess
from fl.federation import Client, Request, RunSpec
from fl.fusion.fit import FitConfig
from fl.fusion.server import SingleServer
from fl.json_files import SettingValues, write_json
from fl.methods import fedaf
from fl.methods.fedaf import FedAFConfig
from fl.models import build_classifier
from fl.rounds import Rounds
from fl.whole_files import write_atomically

MIB = 2**20
CLIENTS, IPC = 10, 50
PER_CLASS = {"fmnist": 6000, "cifar10": 5000, "cifar100": 500}
"""Training images of each class."""
SMALLEST: SettingValues = {
    **{"model": "cnn", "width": 0.01},
    **{"steps": 1, "batch_size": 1, "averaged": 1},
}
"""Settings of condensation that change no upload's size."""
FIT = FitConfig(epochs=1, optimizer="sgd", batch_size=4096)


@dataclass(frozen=True)
class BytesRow:
    """A line of the table: means over seeds and clients, MiB."""

    dataset: str
    alpha: float
    classes: float
    """Classes a client condenses."""
    ours: float
    """As counted by ``Clients``."""

    @property
    def closed(self) -> float:
        """By the closed form, for those classes."""
        return closed_form(self.dataset, self.classes)

    @property
    def paper(self) -> float:
        """As printed."""
        return float(published()["fedaf-table7"][self.dataset][self.alpha])

    @property
    def papers_classes(self) -> float:
        """Classes per client that the closed form needs for the printed figure."""
        labels = closed_form(self.dataset, 0)
        return (self.paper - labels) / (closed_form(self.dataset, 1) - labels)


def settings(dataset: str) -> FedAFConfig:
    """FedAF's with the preset of the accuracy tables, but with the least work."""
    config: FedAFConfig = parse([f"--preset=fedaf-{dataset}", "--method=fedaf"]).run.options
    return replace(config, condensation=replace(config.condensation, **SMALLEST), fusion=FIT)


def closed_form(dataset: str, classes: float) -> float:
    """MiB up: 8-bit condensed images, and two matrices of float32."""
    info = INFO[dataset]
    pixels = classes * IPC * np.prod(info.image_shape)
    return float(pixels + 2 * 4 * info.num_classes**2) / MIB


def measure(dataset: str, alpha: float, seeds: Sequence[int]) -> BytesRow:
    """Runs one round of FedAF for each seed and reads the counted bytes."""
    info = INFO[dataset]
    config = settings(dataset)
    labels = np.repeat(np.arange(info.num_classes), PER_CLASS[dataset])
    blank = np.broadcast_to(np.zeros(1, np.uint8), (len(labels), *info.image_shape))
    split = Split(blank, labels)
    sent, classes = [], []
    for seed in seeds:
        cut = make_partition(
            labels, CLIENTS, info.num_classes, PartitionConfig(), alpha=alpha, seed=seed
        )
        run_spec = RunSpec.of_images(info.image_shape, num_classes=info.num_classes, seed=seed)
        classes += (cut.counts >= config.condensation.min_samples).sum(axis=1).tolist()
        sent += _ledger(config, run_spec, split, cut.train)
    return BytesRow(dataset, alpha, mean(classes), mean(sent) / MIB)


def _ledger(
    config: FedAFConfig, run_spec: RunSpec, split: Split, indices: Sequence[np.ndarray]
) -> list[int]:
    """Bytes up by client."""
    request = Request(cpus=1, gpus=0)
    members = [
        Client(id=k, role=a.role, training=a.training, num_samples=len(indices[k]), request=request)
        for k, a in enumerate(fedaf.assign(config, len(indices), run_spec))
    ]
    events = Events()
    test = Shard.from_split(split, np.arange(1), run_spec.num_classes)
    server = SingleServer(run_spec, test, events, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home) / "store", Path(home) / "updates", split)
        clients = Clients(members, indices, run_spec, InProcess(split), store, events)
        fedaf.run(clients, server, config, rounds=Rounds(1))
    return list(clients.bytes_up.values())


def upload_of(model: str, dataset: str) -> tuple[int, int]:
    """Parameters of the network, and bytes of what a client of an averaging method uploads."""
    info = INFO[dataset]
    with torch.device("meta"):
        built = build_classifier(model, info.image_shape, info.num_classes)
    parameters = sum(p.numel() for p in built.parameters())
    return parameters, sum(t.nbytes for t in built.state_dict().values())


def as_markdown(rows: Sequence[BytesRow], seeds: Sequence[int]) -> str:
    """The table, with the averaging methods' uploads below it."""
    ours = [
        [
            *(r.dataset, str(r.alpha), f"{r.classes:.1f}"),
            *(f"{mib:.2f}" for mib in (r.ours, r.closed, r.paper)),
            f"{r.papers_classes:.1f}",
        ]
        for r in rows
    ]
    averaging = []
    for model, printed in published()["fedaf-table7-averaging"].items():
        for dataset in PER_CLASS:
            count, size = upload_of(model, dataset)
            averaging.append([model, dataset, f"{count:,}", f"{size / MIB:.2f}", f"{printed:.2f}"])
    names = ["Data set", "Alpha", "Classes per client", "Ledger", "Closed form", "Paper"]
    return "\n".join(
        [
            f"# FedAF's Table 7: MiB up per client and round, IPC {IPC}, {CLIENTS} clients, "
            f"seeds {', '.join(map(str, seeds))}",
            "",
            *table([*names, "Classes per client behind the paper's"], ours),
            "",
            f"A class counts for a client that has {IPC} samples of it or more.",
            "",
            *table(["Averaging", "Data set", "Parameters", "Upload, MiB", "Paper"], averaging),
            "",
        ]
    )


def measured(seeds: Sequence[int]) -> list[BytesRow]:
    """All lines of the table."""
    papers = published()["fedaf-table7"]
    return [measure(dataset, alpha, seeds) for dataset in papers for alpha in papers[dataset]]


def make(seeds: Sequence[int], output_dir: Path) -> None:
    """Measures, prints and saves the table."""
    rows = measured(seeds)
    table = as_markdown(rows, seeds)
    output_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(output_dir / "fedaf-table7.md", table.encode())
    write_json(
        output_dir / "fedaf-table7.json",
        [{**vars(r), "closed": r.closed, "paper": r.paper} for r in rows],
    )
    print(f"{table}\ntable    {output_dir / 'fedaf-table7.md'}")
