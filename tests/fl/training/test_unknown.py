"""Training with an unknown class: in cohorts, with BatchNorm, and of what it is made."""

import pytest
import torch
from torch import Tensor

from fl.data.shard import Shard
from fl.errors import UserError
from fl.federation import Client, Request, RunSpec, TaskInput
from fl.inputs import Inputs, NotImages
from fl.models import build_classifier
from fl.training.stacked import conflict
from fl.training.unknown import LocalFedOV, answers, train_open
from tests.fl.toy import CPU

SPEC = RunSpec.of_images((1, 12, 12), num_classes=3, seed=0)


def given(model: str) -> TaskInput:
    training = LocalFedOV(model=model, width=0.1, batch_size=8)
    client = Client(
        id=0, role="r", training=training, num_samples=20, request=Request(cpus=1, gpus=0)
    )
    shard = Shard(torch.rand(20, 1, 12, 12), torch.arange(20) % 3, 3)
    return TaskInput(
        client=client, run_spec=SPEC, shard=shard, device=CPU, broadcast={}, payload={}
    )


@pytest.mark.parametrize("model", ["cnn", "convnet"])
def test_clients_train_as_one_but_where_batchnorm_sees_known_and_unknown_together(
    model: str,
) -> None:
    recipe = train_open.recipe(given(model))  # type: ignore[attr-defined]
    assert (conflict(recipe) is None) == (model == "cnn")


def test_batchnorms_statistics_are_of_one_pass_and_none_is_of_moved_outliers() -> None:
    model, parts = (
        build_classifier("convnet", (1, 12, 12), 4, width=0.1),
        torch.rand(2, 8, 1, 12, 12),
    )
    norm, seen = next(m for m in model.modules() if hasattr(m, "running_mean")), list[Tensor]()
    norm.register_forward_pre_hook(lambda module, x: seen.append(x[0]) if module.training else None)
    LocalFedOV().attacked(model.train(), parts[0])
    assert model.training
    assert not seen
    answers(model, *parts)
    assert [len(x) for x in seen] == [16]


def test_an_attack_makes_the_unknown_less_likely() -> None:
    model, images = build_classifier("mlp", (1, 12, 12), 4), torch.rand(8, 1, 12, 12)
    moved = LocalFedOV(attack_step=0.01).attacked(model, images)
    before, after = (model(x).log_softmax(1)[:, -1] for x in (images, moved))
    assert bool((after < before).all())
    assert float((moved - images).abs().max()) <= 0.05 + 1e-6


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(UserError, match="validation does not go with fedov"):
        LocalFedOV(validation=0.1)
    with pytest.raises(NotImages):
        LocalFedOV(model="mlp").check(RunSpec(inputs=Inputs((6,), "floats"), num_classes=3, seed=0))
