"""A tiny federation: tiny models, and data that the eye could tell apart."""

from typing import Any

import numpy as np
import torch

from fl.data.datasets import Split
from fl.data.shard import Shard
from fl.events import Listener
from fl.exchange import Tensors
from fl.federation import Client, Job, Request, RunSpec, Task, TaskInput, Training
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=3, seed=0)
CLASSIFIER = ClassifierConfig(model="cnn", width=0.2, epochs=2, lr=0.05, batch_size=8)
VGG = ClassifierConfig(model="vgg9", width=0.02, epochs=2, lr=0.05, batch_size=8)
GENERATOR = GeneratorConfig(width=0.1, latent=4, epochs=2, lr=5e-3, batch_size=8)
CPU = torch.device("cpu")


def split(*counts: int, seed: int = 0) -> Split:
    """``counts[c]`` noisy images of class c, whose rows 9c to 9c + 8 are bright."""
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(seed).integers(0, 100, (len(labels), 1, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, 9 * label : 9 * label + 9] += 150
    return Split(images, labels)


def shard(*counts: int, seed: int = 0) -> Shard:
    return Shard.from_split(split(*counts, seed=seed), np.arange(sum(counts)), PROBLEM.num_classes)


def client(id: int, training: Training = CLASSIFIER, *, cpus: float = 1) -> Client:
    role = "classifier" if isinstance(training, ClassifierConfig) else "generator"
    request = Request(cpus=cpus, gpus=0)
    return Client(id=id, role=role, training=training, num_samples=9, request=request)


def job_of(task: Task, who: Client, rows: range, **more: Any) -> Job:
    """The client's task on these rows of a split, sent nothing unless it is told here."""
    given = {"run_spec": PROBLEM, "broadcast": None, "payload": None, **more}
    return Job(task=task, client=who, indices=np.array(rows), **given)


def task_input(
    training: Training, data: Shard, *, id: int = 0, run_spec: RunSpec = PROBLEM
) -> TaskInput:
    return TaskInput(client=client(id, training), run_spec=run_spec, shard=data, device=CPU)


def same_bits(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


Told = dict[str, Any]
"""An event as it stands in metrics.jsonl."""


def into(heard: list[Told]) -> Listener:
    """A listener that keeps what it is told."""
    return lambda event: heard.append(event.to_json())


def named(events: list[Told], name: str) -> list[Told]:
    return [event for event in events if event["event"] == name]
