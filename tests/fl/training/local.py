"""A client that trains alone, and what its upload is held against."""

from dataclasses import replace

import torch

from fl.data.shard import Shard
from fl.exchange import Tensors, prefixed
from fl.federation import TaskOutput, Training
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import starting_generator
from tests.fl.toy import PROBLEM, shard, task_input

DATA = shard(7, 5, 8)
STILL = 1e-12  # a learning rate at which nothing moves


def train(
    training: Training, data: Shard = DATA, *, id: int = 0, seed: int = PROBLEM.seed
) -> TaskOutput:
    """What the client uploads."""
    return training.task(task_input(training, data, id=id, run_spec=replace(PROBLEM, seed=seed)))


def start_of(training: Training, *, seed: int = PROBLEM.seed) -> Tensors:
    """The starting weights, named as in an upload."""
    run_spec = replace(PROBLEM, seed=seed)
    if isinstance(training, ClassifierConfig):
        return prefixed("classifier", starting_classifier(training, run_spec))
    return prefixed("decoder", starting_generator(training, run_spec).decoder)


def close(one: Tensors, other: Tensors) -> bool:
    """Whether both have the same tensors, within float tolerance."""
    return one.keys() == other.keys() and all(
        torch.allclose(one[n], other[n], rtol=1e-4, atol=1e-5) for n in one
    )


def weights(output: TaskOutput) -> Tensors:
    """The upload without its label counts."""
    return {n: t for n, t in output.tensors.items() if n != "label_counts"}
