"""Teachers asked by several ranks."""

import pytest
import torch
from torch import nn

from fl.events import Events
from fl.fusion.distillation import TeacherWeights
from fl.fusion.rank import ASKED
from tests.fl.fusion.serving import TEST, server
from tests.fl.fusion.threads import ThreadServer
from tests.fl.toy import PROBLEM


def teacher(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 3))


@pytest.mark.parametrize("weights", ["equal", "agreement"])
def test_several_ranks_answer_as_one_does(weights: TeacherWeights) -> None:
    images = {"images": torch.rand(2 * ASKED + 7, *PROBLEM.image_shape)}
    several, alone = ThreadServer(PROBLEM, TEST, Events(), 2), server()
    answers = [
        made.fetch(made.teach(images, map(teacher, range(4)), weights), "teacher_logits")
        for made in (several, alone)
    ]
    torch.testing.assert_close(*answers)
