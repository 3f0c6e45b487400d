"""The server's verbs, over one rank in this process."""

import pytest
import torch
from torch import Tensor, nn

from fl.fusion.distillation import TeacherWeights, agreed_logits
from fl.fusion.fit import Fit, FitSpec
from fl.fusion.single_server import SingleServer
from fl.server import Samples
from tests.fl.fusion.serving import CE, CONFIG, TEST, data, model, server
from tests.fl.metrics.test_accuracy import evaluate
from tests.fl.toy import PROBLEM, Told, named, same_bits


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


def test_passes_without_training_may_round_and_no_others() -> None:
    exact, rounding = server(), server()
    rounding.inference = "bf16"
    losses, logits = [], []
    for each in (exact, rounding):
        fitted = model()
        result = each.fit(fitted, data(), loss=CE, config=CONFIG, stage="fusion")
        assert result.epochs[-1] == each.evaluate(fitted)
        losses.append((result.step_losses, fitted.state_dict()))
        logits.append(each.fetch(each.teach(data(), [model()]), "teacher_logits"))
    assert losses[0][0] == losses[1][0]
    assert same_bits(losses[0][1], losses[1][1])
    assert logits[1].dtype == torch.float32
    assert not torch.equal(*logits)
    torch.testing.assert_close(*logits, rtol=0.03, atol=0.03)


def test_evaluation_is_on_the_test_split_and_changes_nothing() -> None:
    tested = model().train()
    before = {name: t.clone() for name, t in tested.state_dict().items()}
    evaluation = server().evaluate(tested)
    assert evaluation == evaluate(tested, TEST.images, TEST.labels, PROBLEM.num_classes)
    assert evaluation == server().evaluate(tested)
    assert tested.training
    assert same_bits(before, tested.state_dict())


def test_confusion_counts_the_answers_that_accuracy_counts() -> None:
    asked = model().train()
    counts, evaluation = server().confusion(asked), server().evaluate(asked)
    assert counts.sum(1).tolist() == torch.bincount(TEST.labels, minlength=3).tolist()
    shares = (counts.diagonal() / counts.sum(1)).tolist()
    assert shares == pytest.approx(evaluation.per_class)
    assert int(counts.trace()) / int(counts.sum()) == evaluation.accuracy
    assert asked.training


def test_a_fit_on_the_classes_learns_the_classes() -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 3))
    result = server().fit(linear, data(), loss=CE, config=CONFIG, stage="fusion")
    assert result.epochs[-1].accuracy == 1
    assert result.epochs[-1].per_class == (1, 1, 1)


def samples() -> tuple[SingleServer, Samples]:
    made = server()
    return made, made.place(data())


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
    here.teach(given, (Counted() for _ in range(6)), "agreement")


@pytest.mark.parametrize("weights", ["equal", "agreement"])
def test_no_teacher_has_no_answer(weights: TeacherWeights) -> None:
    here, given = samples()
    with pytest.raises(ValueError, match="at least one teacher"):
        here.teach(given, iter([]), weights)


def test_teachers_may_be_weighted_by_agreement() -> None:
    here, given = samples()
    taught = here.teach(given, (teacher(k) for k in range(4)), "agreement")
    alone = torch.stack([teacher(k).eval()(data()["images"]) for k in range(4)])
    answer = here.fetch(taught, "teacher_logits")
    torch.testing.assert_close(answer, agreed_logits(alone.detach()))
    assert not answer.requires_grad


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
