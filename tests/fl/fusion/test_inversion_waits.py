"""On a GPU the host waits for no step of an inversion."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.federation import RunSpec
from fl.fusion.inversion import BatchNormDistance, InversionConfig, InversionLoss, Pool, invert
from fl.methods.co_boosting import CLIP, CoBoostingConfig, hard_sample_loss, perturbed, reweigh
from fl.methods.dense import DenseConfig, generator_loss
from fl.models.ensemble import Ensemble
from fl.models.registry import build_classifier
from tests.fl.condensation.waits import GPU, Waits
from tests.pretended_gpu import pretended_gpus

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=3, seed=0)
FEW, MORE = 2, 5
"""Steps of two inversions."""


def ensemble(model: str) -> Ensemble:
    members = [build_classifier(model, (1, 28, 28), 3, width=0.05) for _ in range(2)]
    return Ensemble(members).to(GPU).eval().requires_grad_(False)


def student() -> nn.Module:
    return build_classifier("cnn", (1, 28, 28), 3, width=0.2).to(GPU)


def denses(teacher: Ensemble) -> InversionLoss:
    statistics, stream = BatchNormDistance(teacher.members), torch.Generator()
    made = generator_loss(teacher, student(), statistics, DenseConfig(views=True), stream)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with statistics.watching():
            return made(images, labels)

    return loss


def boostings(teacher: Ensemble) -> InversionLoss:
    return hard_sample_loss(teacher, student(), CoBoostingConfig())


@pytest.mark.parametrize(
    ("loss", "model", "copies"),
    [(denses, "resnet18", 1), (denses, "cnn", 1), (boostings, "cnn", 0)],
    ids=["dense", "without-batchnorm", "co-boosting"],
)
def test_more_steps_wait_no_more_often(
    loss: Callable[[Ensemble], InversionLoss], model: str, copies: int
) -> None:
    def seen(steps: int) -> Waits:
        config = InversionConfig(batch_size=4, steps=steps, width=0.05, latent=4)
        with pretended_gpus():
            own = loss(ensemble(model))
            with Waits() as found:
                invert(own, PROBLEM, config, epoch=1, device=GPU, clip=CLIP)
        return found

    few, more = seen(FEW), seen(MORE)
    assert few.waits  # the generator's weights are brought to the device before the first step
    assert more.waits == few.waits
    assert more.sent - few.sent == copies * (MORE - FEW)


def test_images_are_perturbed_and_members_weighed_without_a_wait() -> None:
    with pretended_gpus():
        teacher, pool, config = ensemble("cnn"), Pool(seed=0), CoBoostingConfig()
        x, y = torch.rand(20, 1, 28, 28).to(GPU), (torch.arange(20) % 3).to(GPU)
        pool.add(images=x, labels=y, member_logits=teacher.each(x).transpose(0, 1))
        with Waits() as seen:
            perturbed(x, teacher, 0.01, torch.Generator())
        assert (not seen.waits, seen.sent) == (True, 1)
        with Waits() as seen:
            reweigh(teacher, pool, replace(config, kd=replace(config.kd, batch_size=8)), epoch=2)
        assert sum(seen.waits.values()) == 1  # the order of the whole epoch
