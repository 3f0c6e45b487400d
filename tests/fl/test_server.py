import torch
from torch import nn

from fl.events import Event, Events
from fl.federation import Batch
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import Fit, FitConfig
from fl.metrics.accuracy import evaluate
from fl.server import SingleServer
from fl.training.local import starting_classifier
from tests.fl.toy import CPU, PROBLEM, VGG, named, same_bits, shard

TEST = shard(5, 5, 5, seed=1)
CONFIG = FitConfig(epochs=3, lr=5e-3, batch_size=8)
CE = FusionLoss(ce_weight=1, kd_weight=0)


def server(heard: list[Event] | None = None) -> SingleServer:
    return SingleServer(PROBLEM, TEST, Events(*([heard.append] if heard is not None else [])), CPU)


def data() -> Batch:
    train = shard(10, 10, 10)
    return {"images": train.images, "labels": train.labels}


def model() -> nn.Module:
    return starting_classifier(VGG, PROBLEM)


def test_a_fit_is_tested_after_every_epoch() -> None:
    heard: list[Event] = []
    fitted = model()
    result = server(heard).fit(fitted, data(), loss=CE, config=CONFIG, stage="fusion")
    assert len(result.epochs) == 3
    assert len(result.step_losses) == 3 * 4
    assert result.epochs[-1] == server().evaluate(fitted)
    told = named(heard, "epoch")
    assert [e["epoch"] for e in told] == [1, 2, 3]
    assert [e["accuracy"] for e in told] == [e.accuracy for e in result.epochs]
    for event in told:
        assert (event["stage"], event["epochs"]) == ("fusion", 3)
        steps = result.step_losses[4 * (event["epoch"] - 1) : 4 * event["epoch"]]
        assert abs(event["loss"] - sum(steps) / 4) < 1e-6


def test_testing_has_no_influence_on_the_fit() -> None:
    at_server, alone = model(), model()
    result = server().fit(at_server, data(), loss=CE, config=CONFIG, stage="fusion")
    fit = Fit(alone, data(), loss=CE, config=CONFIG, seed=PROBLEM.seed, stage="fusion")
    assert result.step_losses == torch.cat(list(fit.epochs())).tolist()
    assert same_bits(at_server.state_dict(), alone.state_dict())


def test_evaluation_is_on_the_test_split_and_changes_nothing() -> None:
    tested = model().train()
    before = {name: t.clone() for name, t in tested.state_dict().items()}
    evaluation = server().evaluate(tested)
    assert evaluation == evaluate(tested, TEST.images, TEST.labels, PROBLEM.num_classes)
    assert evaluation == server().evaluate(tested)
    assert tested.training
    assert same_bits(before, tested.state_dict())


def test_a_fit_on_the_classes_learns_the_classes() -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 3))
    result = server().fit(linear, data(), loss=CE, config=CONFIG, stage="fusion")
    assert result.epochs[-1].accuracy == 1
    assert result.epochs[-1].per_class == (1, 1, 1)
