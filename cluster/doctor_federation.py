"""``python -m cluster.doctor_federation OPTIONS``: a tiny run, in which a client overspends."""

import sys
from dataclasses import dataclass, replace

import torch
from rich.console import Console

from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.run.run_dir import claimed
from cluster.run.runner import execute
from fl.federation import TaskInput, TaskOutput
from fl.training.classifier import ClassifierConfig

SETTINGS = """
--method=fedmho-sd --dataset=digits --data.max-train=200 --data.max-test=100 --filter=none
--classifier.model=cnn --classifier.width=0.2 --classifier.epochs=5 --resources.classifier.gpus=0.5
--generator.width=0.1 --generator.epochs=5 --num-samples=200 --resources.generator.gpus=0.5
--fusion.epochs=2 --fusion.batch-size=16 --fusion.optimizer=sgd --fusion.lr=0.01
--fusion-timeout=60 --on-client-failure=drop"""
OVERSPENDER = 1  # the second client, of a classifier


def overspend(inputs: TaskInput) -> TaskOutput:
    """Takes twice the client's main memory, or all of its share of a GPU, CUDA's own too."""
    wanted = 2 * inputs.client.request.memory_bytes
    if inputs.device.type == "cuda":
        whole = torch.cuda.get_device_properties(0).total_memory
        wanted = int(inputs.client.request.gpus * whole)
    torch.empty(wanted, dtype=torch.int8, device=inputs.device)
    raise RuntimeError("a client went over its share of memory, and nothing stopped it")


@dataclass(frozen=True, kw_only=True)
class Overspender(ClassifierConfig):
    """The training record of the client that takes too much memory."""

    task = staticmethod(overspend)


if __name__ == "__main__":
    launch = parse([*SETTINGS.split(), *sys.argv[1:]])
    prepared = prepare(launch)
    first, second, *others = prepared.members
    second = replace(second, training=Overspender(**vars(second.training)))
    prepared = replace(prepared, members=(first, second, *others))
    with claimed(launch) as run_dir:
        execute(launch, prepared, run_dir, Console(quiet=True), report=False)
