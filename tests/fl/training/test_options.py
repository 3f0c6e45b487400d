"""Options of a client's training: passes in parts, bf16, and stopping by samples held out."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.registry import register_model
from fl.training.classifier import ClassifierConfig, held_out_rows, starting_classifier
from tests.fl.toy import PROBLEM
from tests.fl.training.cohorts import inputs

PLAIN = ClassifierConfig(model="cnn", epochs=3, lr=0.05, batch_size=16, momentum=0.9)


def trained(config: ClassifierConfig, size: int = 40) -> dict[str, Tensor]:
    return dict(config.task(inputs(config, size, 1)).tensors)


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest distance of two uploads' tensors, beside the larger one's norm."""
    pairs = [(tensor, other[name]) for name, tensor in one.items() if tensor.is_floating_point()]
    return max(float((a - b).norm() / b.norm().clamp(min=1e-6)) for a, b in pairs)


@pytest.mark.parametrize("micro", [1, 5, 16, 100])
def test_passes_in_parts_are_the_same_training(micro: int) -> None:
    assert apart(trained(replace(PLAIN, micro_batch=micro)), trained(PLAIN)) < 1e-4


def test_passes_in_parts_are_refused_where_batchnorm_would_see_the_parts() -> None:
    resnet = replace(PLAIN, model="resnet18", width=0.1)
    resnet.check(PROBLEM)
    with pytest.raises(UserError, match="micro_batch cannot be used with resnet18: its BatchNorm"):
        replace(resnet, micro_batch=8).check(PROBLEM)
    replace(PLAIN, micro_batch=8).check(PROBLEM)


class Frozen(nn.Sequential):
    """Its BatchNorm stays in evaluation."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(784, num_classes))

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self[0].eval()
        return self


def test_passes_in_parts_go_with_frozen_batchnorm() -> None:
    register_model("frozen-norm", Frozen)
    replace(PLAIN, model="frozen-norm", micro_batch=8).check(PROBLEM)


def test_bf16_rounds_and_trains_nearly_the_same() -> None:
    assert 1e-7 < apart(trained(replace(PLAIN, precision="bf16")), trained(PLAIN)) < 0.1
    assert all(t.dtype == torch.float32 for t in trained(replace(PLAIN, precision="bf16")).values())


def test_held_out_samples_are_not_trained_on_and_the_best_epoch_is_uploaded() -> None:
    """By plain torch: the same samples held out, every epoch measured, the best one kept."""
    config = replace(PLAIN, validation=0.25, epochs=6, lr=0.2)
    task = inputs(config, 40, 1)
    order = torch.randperm(40, generator=task.stream("local/validation"))
    held, left = order[:10].sort().values, order[10:].sort().values
    images, labels = task.shard.images, task.shard.labels
    model = starting_classifier(config, PROBLEM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    orders, best, state = task.stream("local/order"), float("inf"), {}
    for _ in range(config.epochs):
        for batch in torch.randperm(30, generator=orders).split(16):
            optimizer.zero_grad()
            F.cross_entropy(model(images[left][batch]), labels[left][batch]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(F.cross_entropy(model(images[held]), labels[held]))
        if loss < best:
            best, state = loss, {n: t.clone() for n, t in model.state_dict().items()}
    found = {n.removeprefix("classifier."): t for n, t in trained(config).items()}
    assert apart(found, state) < 1e-4


def test_what_is_held_out_is_never_trained_on() -> None:
    """Else it would not be new to the model by which a later round begins."""
    config = replace(PLAIN, validation=0.25)
    task = inputs(config, 40, 1)
    first, later = (held_out_rows(replace(task, round=n), config)[0] for n in (1, 2))
    assert first.tolist() == later.tolist()


def test_patience_looks_at_what_was_held_out() -> None:
    config = replace(PLAIN, validation=0.5, patience=1, epochs=50, lr=0.3)
    output = config.task(inputs(config, 12, 1))
    assert output.stats["epochs"] < 50
    never = replace(config, patience=None, epochs=5)
    assert never.task(inputs(never, 12, 1)).stats["epochs"] == 5


def test_a_client_of_one_sample_cannot_hold_one_out() -> None:
    config = replace(PLAIN, validation=0.5)
    with pytest.raises(ValueError, match="has 1 sample, of which validation cannot hold out one"):
        config.task(inputs(config, 1, 0))
