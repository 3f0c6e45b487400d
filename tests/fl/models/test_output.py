"""Whether a model gives a logit for each class."""

import pytest
from torch import nn

from fl.errors import UserError
from fl.models.registry import check_output
from fl.models.shapes import ModelInfo


def info(model: nn.Module) -> ModelInfo:
    return ModelInfo("mine", "classifier", lambda *_: model, lambda shape: True, "no more", "", "x")


def test_logits_pass_and_anything_else_is_named() -> None:
    check_output(info(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))), (1, 2, 2), 3, 1.0)
    for model, line in (
        (nn.Flatten(), r"gives \(2, 4\) for images of shape \(2, 1, 2, 2\), expected \(2, 3\)"),
        (nn.LSTM(2, 3), "fails on images"),
        (nn.Sequential(nn.Flatten(), nn.LSTM(4, 3)), "gives tuple for images"),
    ):
        with pytest.raises(UserError, match=line):
            check_output(info(model), (1, 2, 2), 3, 1.0)
