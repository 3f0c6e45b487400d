from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fl.events import Epoch, Event, Events
from fl.federation import Batch
from fl.fusion import rank
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import Fit, FitConfig, FitSpec
from fl.fusion.single_server import SingleServer
from fl.metrics.accuracy import evaluate
from fl.server import Samples
from fl.training.classifier import starting_classifier
from kernels import nearest_to_centroid
from tests.fl.toy import CPU, PROBLEM, VGG, Told, into, named, same_bits, shard

TEST = shard(5, 5, 5, seed=1)
CONFIG = FitConfig(epochs=3, lr=5e-3, batch_size=8)
CE = FusionLoss(ce_weight=1, kd_weight=0)


def server(heard: list[Told] | None = None, checkpoints: Checkpoints | None = None) -> SingleServer:
    events = Events(*([into(heard)] if heard is not None else []))
    return SingleServer(PROBLEM, TEST, events, CPU, checkpoints)


def data() -> Batch:
    train = shard(10, 10, 10)
    return {"images": train.images, "labels": train.labels}


def model() -> nn.Module:
    return starting_classifier(VGG, PROBLEM)


def test_a_fit_is_tested_after_every_epoch() -> None:
    heard: list[Told] = []
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
    at_server, alone = model(), model().to(memory_format=torch.channels_last)
    result = server().fit(at_server, data(), loss=CE, config=CONFIG, stage="fusion")
    spec = FitSpec(
        model=alone, columns={}, loss=CE, config=CONFIG, stage="fusion", streams="fusion"
    )
    fit = Fit(spec, data(), seed=PROBLEM.seed)
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


def samples() -> tuple[SingleServer, Samples]:
    made = server()
    return made, made._place(data())


def teacher(seed: int) -> nn.Module:
    """Dropout shows whether it is asked in eval mode."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(28 * 28, 3)).train()


@pytest.mark.parametrize("count", [1, 3])
def test_teachers_answer_with_the_mean_of_their_logits(count: int) -> None:
    here, given = samples()
    taught = here.teach(given, (teacher(k) for k in range(count)))
    answer = here.fetch(taught, "teacher_logits")
    alone = [teacher(k).eval()(data()["images"]).tolist() for k in range(count)]
    for i in range(len(given)):
        for c in range(3):
            expected = sum(logits[i][c] for logits in alone) / count
            assert answer[i, c].item() == pytest.approx(expected, abs=1e-5)
    assert not answer.requires_grad
    assert "teacher_logits" not in given.columns


def test_one_teacher_is_held_at_a_time() -> None:
    alive: list[int] = []

    class Counted(nn.Flatten):
        def __init__(self) -> None:
            super().__init__()
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

        def forward(self, x: Tensor) -> Tensor:
            assert len(alive) <= 2  # this one, and the next while it is being made
            return super().forward(x)

    here, given = samples()
    here.teach(given, (Counted() for _ in range(6)))


def test_no_teacher_has_no_answer() -> None:
    here, given = samples()
    with pytest.raises(ValueError, match="at least one teacher"):
        here.teach(given, iter([]))


def test_taken_samples_keep_their_columns_together() -> None:
    here, given = samples()
    taken = here.take(given, torch.tensor([3, 20, 21]))
    assert len(taken) == 3
    for name, column in data().items():
        assert torch.equal(here.fetch(taken, name), column[[3, 20, 21]])
    assert len(here.take(given, torch.tensor([], dtype=torch.int64))) == 0


def test_a_function_is_applied_to_one_column() -> None:
    here, given = samples()
    changed = here.apply(given, "images", torch.neg)
    assert torch.equal(here.fetch(changed, "images"), -data()["images"])
    assert torch.equal(here.fetch(changed, "labels"), data()["labels"])


def fitted(checkpoints: Checkpoints | None, epochs: int = 3, lr: float = 5e-3):  # type: ignore[no-untyped-def]
    heard: list[Told] = []
    own, config = model(), replace(CONFIG, epochs=epochs, lr=lr)
    result = server(heard, checkpoints).fit(own, data(), loss=CE, config=config, stage="fusion")
    return own.state_dict(), result, [e["epoch"] for e in named(heard, "epoch")]


class Killed(Exception):
    pass


def kill_after(epoch: int, checkpoints: Checkpoints) -> None:
    """Begins the fit and is gone in the middle of it."""

    def listener(event: Event) -> None:
        if isinstance(event, Epoch) and event.epoch == epoch:
            raise Killed

    made = SingleServer(PROBLEM, TEST, Events(listener), CPU, checkpoints)
    with pytest.raises(Killed):
        made.fit(model(), data(), loss=CE, config=CONFIG, stage="fusion")


def test_a_fit_goes_on_from_its_last_state_to_the_same_bits(tmp_path: Path) -> None:
    expected, result, _ = fitted(None)
    checkpoints = Checkpoints(tmp_path, every=1)
    kill_after(2, checkpoints)
    state, resumed, epochs = fitted(checkpoints)
    assert epochs == [3]
    assert same_bits(state, expected)
    assert resumed == result


def test_states_are_kept_as_often_as_asked_and_with_the_last_epoch(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=2)
    kill_after(1, checkpoints)
    assert fitted(checkpoints)[2] == [1, 2, 3]  # killed before a state was kept
    assert fitted(checkpoints)[2] == []
    assert same_bits(fitted(checkpoints)[0], fitted(None)[0])


def test_a_state_of_another_fit_is_not_gone_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=1)
    fitted(checkpoints)
    state, _, epochs = fitted(checkpoints, lr=1e-3)
    assert epochs == [1, 2, 3]
    assert same_bits(state, fitted(None, lr=1e-3)[0])


def test_a_state_that_is_taken_over_is_gone_on_from_under_other_settings(tmp_path: Path) -> None:
    donor, own = (Checkpoints(tmp_path / name, every=1) for name in ("donor", "own"))
    kill_after(2, donor)
    fitted(own)  # had a state before
    own.adopt("fusion", donor)
    state, result, epochs = fitted(own, lr=1e-3)
    _, other, _ = fitted(None)
    assert epochs == [3]
    assert result.epochs[:2] == other.epochs[:2]
    assert not same_bits(state, fitted(None, lr=1e-3)[0])  # which began with that rate
    assert fitted(own)[2] == [1, 2, 3]  # what it keeps then is its own fit's again


def test_a_damaged_state_is_as_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every=1)
    fitted(checkpoints)
    path = tmp_path / "fusion.pt"
    path.write_bytes(path.read_bytes()[:1000])
    assert fitted(checkpoints)[2] == [1, 2, 3]


def test_the_filter_looks_at_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here, given = samples()
    whole = here.nearest(given, 0.4)
    expected = nearest_to_centroid(data()["images"], data()["labels"], 3, 0.4, backend="reference")
    monkeypatch.setattr(rank, "VISIT", 7 * 4 * 28 * 28)
    assert torch.equal(here.nearest(given, 0.4), whole)
    assert torch.equal(whole, expected.indices)
