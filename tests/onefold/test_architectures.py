"""torchvision's small architectures that take 32x32 pixels go through a run as they are.

The tests have the quick ones; ``python -m tests.onefold.test_architectures DIR`` goes through all.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import models

import onefold
from tests.registries import registries_restored

STREAM = np.random.default_rng(0)
IMAGES, LABELS = STREAM.random((16, 32, 32, 3)).astype("float32"), np.arange(16) % 4
QUICK = ("resnet18", "shufflenet_v2_x0_5")
LONG = ("convnext_tiny", "efficientnet_b0", "mobilenet_v2", "mobilenet_v3_small")
LONG += ("regnet_y_400mf", "squeezenet1_1", "swin_t", "densenet121", "vgg11", "mnasnet0_5")


def by_name(name: str) -> Callable[[int], nn.Module]:
    return lambda num_classes: getattr(models, name)(weights=None, num_classes=num_classes)


def googlenet(num_classes: int) -> nn.Module:
    return models.googlenet(num_classes=num_classes, aux_logits=False, init_weights=False)


def small_vit(num_classes: int) -> nn.Module:
    return models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=num_classes)


def go_through(build: Callable[[int], nn.Module], folder: Path, lr: float = 0.001) -> nn.Module:
    """The model after a step at each of two clients."""

    def own(num_classes: int) -> nn.Module:
        return build(num_classes)

    with registries_restored():
        result = onefold.run(
            ((IMAGES, LABELS), (IMAGES[:4], LABELS[:4])),
            own,
            "fedavg",
            "iid",
            num_clients=2,
            classifier={"epochs": 1, "lr": lr},
            **{"partition.min_samples": 1},
            output_dir=folder,
            runtime="inprocess",
        )
        return result.model


pytestmark = pytest.mark.usefixtures("undrawn")


def check(model: nn.Module) -> None:
    answers = model(torch.from_numpy(IMAGES[:4]).permute(0, 3, 1, 2))
    assert answers.shape == (4, 4)
    assert answers.isfinite().all()


def test_a_vision_transformer_goes_through(tmp_path: Path) -> None:
    check(go_through(small_vit, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_an_architecture_goes_through(name: str, tmp_path: Path) -> None:
    check(go_through(by_name(name), tmp_path))


class SideHeads(nn.Module):
    """As googlenet: in training it gives further answers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, num_classes)

    def forward(self, images: torch.Tensor) -> object:
        found = self.head(images.flatten(1))
        return (found, found) if self.training else found


def test_side_heads_are_refused_before_the_run(tmp_path: Path) -> None:
    """A client failed by them, in the middle of a run."""
    with pytest.raises(onefold.UserError, match="returns tuple in training"):
        go_through(SideHeads, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_pixels_too_few_for_an_architecture_are_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(onefold.UserError, match="too small"):
        go_through(by_name("alexnet"), tmp_path)


if __name__ == "__main__":
    every = [by_name(name) for name in (*QUICK, *LONG)]
    every.append(googlenet)
    for own in every:
        check(go_through(own, Path(sys.argv[1])))
        print("in process", flush=True)
    images, labels = np.concatenate([IMAGES] * 4), np.tile(LABELS, 4)
    data = ((images, labels), (IMAGES[:4], LABELS[:4]))
    more = {"classifier": {"epochs": 1, "lr": 0.001}}
    indices = np.array_split(np.arange(len(labels)), len(every))
    result = onefold.run(data, every, "fedavg", indices, output_dir=sys.argv[1], **more)
    check(result.model)
    print("on Ray, all at once", flush=True)
