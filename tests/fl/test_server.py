"""What the server's verbs take and give: samples as a handle, and lessons epoch by epoch."""

import pytest
import torch
from torch import Tensor, nn

from fl.federation import Batch
from fl.fusion.fit import FitConfig
from fl.server import Lessons, Samples
from tests.fl.fusion.serving import CE, data, server
from tests.fl.toy import same_bits

CONFIG = FitConfig(epochs=3, lr=0.05, batch_size=8, optimizer="sgd")


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 3))


class Repeated:
    """The same data in each epoch; notes the model's bias as each epoch finds it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.memory: dict[str, Tensor] = {"epochs": torch.zeros(1)}
        self.seen: list[Tensor] = []

    def epoch(self, number: int) -> Batch:
        self.memory["epochs"] += 1
        self.seen.append(next(reversed(list(self.model.parameters()))).detach().clone())
        return data()

    def digest(self) -> str:
        return "repeated"


def test_some_columns_alone_have_as_many_rows_and_leave_the_others_as_they_were() -> None:
    samples = Samples(columns={"images": ("a", "b"), "labels": ("c", "d")}, counts=(3, 4))
    labels = samples.only("labels")
    assert labels.columns == {"labels": ("c", "d")}
    assert len(labels) == len(samples) == 7
    assert set(samples.columns) == {"images", "labels"}
    with pytest.raises(KeyError, match="logits"):
        samples.only("logits")


def test_lessons_that_never_change_are_a_fit_on_what_they_give() -> None:
    plain, taught = linear(), linear()
    expected = server().fit(plain, data(), loss=CE, config=CONFIG, stage="fusion")
    lessons = Repeated(taught)
    assert isinstance(lessons, Lessons)
    result = server().fit(taught, lessons, loss=CE, config=CONFIG, stage="fusion")
    assert same_bits(taught.state_dict(), plain.state_dict())
    assert result == expected


def test_each_lesson_is_made_of_the_model_as_the_epochs_before_left_it() -> None:
    model, shorter = linear(), linear()
    lessons = Repeated(model)
    server().fit(model, lessons, loss=CE, config=CONFIG, stage="fusion")
    assert lessons.memory["epochs"].item() == 3
    assert torch.equal(lessons.seen[0], linear()[1].bias)  # type: ignore[index]
    one = FitConfig(epochs=1, lr=0.05, batch_size=8, optimizer="sgd")
    server().fit(shorter, data(), loss=CE, config=one, stage="fusion")
    assert torch.equal(lessons.seen[1], shorter[1].bias)  # type: ignore[index]
    assert not torch.equal(lessons.seen[2], lessons.seen[1])
