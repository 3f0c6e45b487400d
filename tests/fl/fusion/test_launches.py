"""What a step of a fit launches on a GPU, counted without one."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import Fit, FitConfig, FitSpec
from fl.models.registry import build_classifier, in_fast_layout
from tests.fl.operations import launches_of_every_step

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

MOST = {"adam": 40, "sgd": 38}
"""Of a VGG-9 that a teacher's logits and labels teach: FedMHO-MD's and -SD's fit."""


@pytest.mark.parametrize("optimizer", MOST)
def test_a_step_launches_at_most_forty_kernels(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = launches_of_every_step(monkeypatch)
    config = replace(FitConfig(epochs=1, batch_size=8), optimizer=optimizer)
    model = in_fast_layout(build_classifier("vgg9", (1, 28, 28), 10, width=0.05))
    data = {
        "images": torch.rand(24, 1, 28, 28),
        "labels": torch.arange(24) % 10,
        "teacher_logits": torch.randn(24, 10),
    }
    loss = FusionLoss(ce_weight=0.5, kd_weight=0.5)
    spec = FitSpec(model=model, columns={}, loss=loss, config=config, stage="f", streams="f")
    list(Fit(spec, data, seed=0).epochs())
    _, *later = found
    assert [len(names) for names in later] == [MOST[optimizer]] * 2, later[-1]
