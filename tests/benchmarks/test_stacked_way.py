"""The ways of running many small clients: the same training in each, timed and told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hand_cvae import flat_buffers, gradient_step, hand_derived
from stacked_way import SAMPLES, Way, alone, executor, job

from fl.data.datasets import Split
from fl.data.shard import Shard
from fl.events import Events
from fl.exchange import Tensors, Upload, unpack
from fl.federation import Request, RunSpec, TaskInput
from fl.models.architectures.cvaes import elbo_losses
from fl.training.generator import GeneratorConfig, starting_generator
from fl.training.sizes import CohortSizes
from fl.training.task import train_by_recipe

PLAIN = Way("plain", alone, Request(cpus=1, gpus=0), 1, on_ray=False)
OURS = Way("ours", train_by_recipe, Request(cpus=1, gpus=0, shared=True), 1, on_ray=False)
FORKED = replace(PLAIN, name="forked", forked=True)
BY_HAND = replace(FORKED, name="by hand", task=hand_derived)


def split(samples: int = 2 * SAMPLES) -> Split:
    stream = np.random.default_rng(0)
    images = stream.integers(0, 256, (samples, 1, 28, 28), dtype=np.uint8)
    return Split(images, np.arange(samples) % 10)


def sent_by_hand(k: int) -> Tensors:
    """Client k's training with nothing around it, on its own shard."""
    own = job(k, PLAIN, 2 * SAMPLES)
    return alone(
        TaskInput(
            client=own.client,
            run_spec=own.run_spec,
            shard=Shard.from_split(split(), own.indices, 10),
            device=torch.device("cpu"),
            broadcast={},
            payload={},
        )
    ).tensors


@pytest.mark.process
@pytest.mark.parametrize("way", [PLAIN, OURS, FORKED, BY_HAND], ids=lambda way: way.name)
def test_every_way_trains_the_same_client_to_the_same_upload(way: Way) -> None:
    """Within float tolerance; with a note of when."""
    with executor(way, split(), CohortSizes()) as running:
        ((found, outcome),) = running.run([job(3, way, 2 * SAMPLES)], Events())
    assert found.client.id == 3
    assert isinstance(outcome, Upload)
    sent, expected = unpack(bytes(outcome))[0], sent_by_hand(3)
    assert sent.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(sent[name], tensor, rtol=1e-2, atol=1e-3)
    begin, end = outcome.note.span
    assert begin < end


SPEC = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)


def test_a_steps_gradients_are_those_of_autograd() -> None:
    model = starting_generator(GeneratorConfig(width=0.1, latent=4), SPEC)
    images, labels = torch.rand(6, 1, 28, 28), torch.arange(6)
    noise = torch.randn(6, 4)
    with torch.no_grad():
        model.encoder.logvar.bias[0] = 50.0  # beyond its bound, where no gradient passes
    logits, mu, logvar = model(images, labels, noise)
    loss = elbo_losses(logits, images, mu, logvar).mean()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    _, gradients = flat_buffers(model)
    with torch.no_grad():
        onehot = torch.eye(10)[labels]
        gradient_step(model, images.flatten(1), onehot, noise)
    flat = torch.cat([gradient.flatten() for gradient in expected])
    torch.testing.assert_close(gradients, flat, rtol=1e-4, atol=1e-5)
