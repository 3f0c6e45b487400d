"""A tiny federation for the checks: images at random, a small model, and clients that train it."""

import numpy as np
import torch

from cluster.checks.check import CheckFailed
from fl.data.datasets import Split
from fl.data.shard import Shard
from fl.federation import Client, Job, Request, RunSpec, Task
from fl.training.classifier import ClassifierConfig

SPEC = RunSpec(image_shape=(1, 28, 28), num_classes=10, seed=0)
TRAINING = ClassifierConfig(model="cnn", width=0.2, epochs=1)
SAMPLES = 64


def images() -> Split:
    """As many images as any check needs, the same on every machine."""
    stream = np.random.default_rng(0)
    pixels = stream.integers(0, 256, (SAMPLES, *SPEC.image_shape), dtype=np.uint8)
    return Split(pixels, stream.integers(0, SPEC.num_classes, SAMPLES))


def shard() -> Shard:
    """All the images, as tensors."""
    return Shard.from_split(images(), np.arange(SAMPLES), SPEC.num_classes)


def job(client: int, task: Task, request: Request) -> Job:
    """A job of a client that has all the images."""
    return Job(
        task=task,
        client=Client(
            id=client,
            role="classifier",
            training=TRAINING,
            num_samples=SAMPLES,
            request=request,
        ),
        run_spec=SPEC,
        indices=np.arange(SAMPLES),
        broadcast=None,
        payload=None,
    )


def require_gpu(device: torch.device) -> None:
    """Raises `CheckFailed` where a process that was given a GPU computes on the CPU."""
    if device.type != "cuda":
        raise CheckFailed(
            "PyTorch sees no GPU in a process that was given one",
            "install a build of PyTorch for a CUDA that the driver supports: torch.cuda."
            "is_available() must be True",
        )
