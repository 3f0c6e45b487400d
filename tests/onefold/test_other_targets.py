"""Regression, several labels and next tokens through the users' door, in process and on Ray."""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_linnerud
from torch import Tensor, nn

import onefold
from fl.methods.registry import METHODS


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean(0)) / values.std(0)


DIABETES = tuple(map(standard, load_diabetes(return_X_y=True)))
LINNERUD = tuple(map(standard, load_linnerud(return_X_y=True)))
POINTS = np.random.default_rng(0).normal(size=(300, 4))
HALVES = POINTS, (POINTS > 0).astype(int)
VOCABULARY = " " + string.ascii_lowercase
CODES = np.array([VOCABULARY.index(c) for c in "the cat sat on the mat and the dog ran " * 40])
CHARACTERS = np.stack([CODES[i : i + 13] for i in range(0, 1200, 5)])
NEXT = CHARACTERS[:, :-1], CHARACTERS[:, 1:]


PICTURES = np.random.default_rng(1).random((150, 1, 6, 6)).astype(np.float32)
MAPS = PICTURES, (PICTURES > 0.5).astype(int).reshape(150, 36) + (PICTURES > 0.8).reshape(150, 36)
TAGS = (CHARACTERS, (CHARACTERS > 0).astype(int)), CHARACTERS % 4


class Pixels(nn.Module):
    """Logits of each pixel of an image."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 1), nn.ReLU(), nn.Conv2d(16, num_classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten(2).transpose(1, 2)


class Tagger(nn.Module):
    """Logits of each token that a mask, a second input, leaves."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding, self.answer = nn.Embedding(27, 8), nn.Linear(8, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.answer(self.embedding(tokens) * mask[..., None])


class Characters(nn.Module):
    """A small transformer's block over characters, which sees only those before."""

    def __init__(self, shape: tuple[int], num_classes: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(27, 32), nn.Embedding(shape[0], 32)
        self.queries, self.answer = nn.Linear(32, 96), nn.Linear(32, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places.weight
        q, k, v = self.queries(x).chunk(3, dim=-1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.answer(x + seen)


DATA: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "diabetes": (DIABETES, "mlp", {}),
    "linnerud": (LINNERUD, "mlp", {"num_clients": 2, "partition.min_samples": 5}),
    "labels": (HALVES, "mlp", {}),
    "text": (NEXT, Characters, {}),
    "maps": (MAPS, Pixels, {}),
    "tags": (TAGS, Tagger, {}),
}


pytestmark = pytest.mark.usefixtures("elsewhere")
undrawn = pytest.mark.usefixtures("undrawn")


def run(kind: str, **settings: Any) -> onefold.Result:
    data, model, own = DATA[kind]
    training = {"optimizer": "adam", "lr": 0.005, "epochs": 20}
    common: dict[str, Any] = {"runtime": "inprocess", "progress": False, "partition": "iid"}
    common |= {"num_clients": 3, "classifier": training, "name": "run", "method": "fedavg"}
    return onefold.run(**{"data": data, "model": model, **common, **own, **settings})


@pytest.mark.parametrize(
    ("kind", "metric", "least"),
    [
        ("diabetes", "R2", 0.2),
        ("linnerud", "R2", -2.0),
        ("labels", "accuracy", 0.9),
        ("text", "accuracy", 0.6),
        ("maps", "accuracy", 0.8),
        ("tags", "accuracy", 0.8),
    ],
)
def test_clients_learn_it_and_the_figure_is_called_what_it_is(
    kind: str, metric: str, least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(kind, rounds=3, progress=True)
    assert result.metric == metric
    assert result.accuracy > least
    assert f"{metric} {result.accuracy:.4f}" in repr(result)
    printed = capsys.readouterr().out
    assert f"round 3/3: {metric} {result.accuracy:.4f}" in printed
    page = (result.path / "report.html").read_text()
    assert ("R\N{SUPERSCRIPT TWO}" if metric == "R2" else "Accuracy") in page
    assert ("Accuracy" in page) == (metric == "accuracy")
    assert not result.figures["per_class_accuracy"]
    assert "confusion" not in result.figures


class Shares(nn.Module):
    """Answers between 0 and 1."""

    def __init__(self, shape: tuple[int], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], num_classes), nn.Sigmoid())

    def forward(self, samples: Tensor) -> Tensor:
        return self.layers(samples)


def test_a_sigmoid_may_end_a_model_of_values_but_not_of_labels() -> None:
    for loss in (None, nn.BCELoss()):  # of shares, each above 0 would count as held
        with pytest.raises(onefold.UserError, match=r"ends with a sigmoid.* nn\.BCEWithLogitsLoss"):
            run("labels", model=Shares, loss=loss)
    run("diabetes", model=Shares, dry_run=True)


def test_a_loss_of_logarithms_is_warned_of_since_r2_is_of_the_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = POINTS, np.random.default_rng(0).poisson(2, 300).astype(float)
    for loss, warned in ((nn.PoissonNLLLoss(), True), (nn.HuberLoss(), False)):
        caplog.clear()
        run("diabetes", data=counts, loss=loss, dry_run=True)
        assert ("R2 uses the model's outputs" in caplog.text) == warned


@undrawn
def test_r2_is_scikit_learns_but_for_whose_variance_it_is() -> None:
    result = run("diabetes")
    x, y = DIABETES
    split = onefold.run.__globals__["REGISTERED"]["own"]
    answers = result.model(torch.tensor(split.test.images)).detach().numpy()
    error = ((split.test.targets - answers) ** 2).mean(0) / split.train.targets.var(0)
    assert result.accuracy == pytest.approx(float(1 - error.mean()), abs=1e-5)
    assert len(x) == len(y) == len(split.train.labels) + len(split.test.labels)


def test_what_a_model_of_pixels_is_to_answer_is_said(caplog: pytest.LogCaptureFixture) -> None:
    run("maps", dry_run=True, augment=torch.clone)
    assert "if it moves pixels, their targets become wrong" in caplog.messages.pop()
    holds = PICTURES, MAPS[1] % 2
    line = r"\(2, 36, 36\) for 2 samples, expected \(2, 36\), as the targets are labels"
    with pytest.raises(onefold.UserError, match=line):
        run("maps", data=holds)


@undrawn
def test_values_far_from_zero_are_no_clients_lie() -> None:
    """A weight had to move further than 100."""
    far, training = (POINTS, 3000 + POINTS[:, 0]), {"optimizer": "adam", "lr": 10.0, "epochs": 20}
    line: Any = lambda num_classes: nn.Linear(4, num_classes)  # noqa: E731
    result = run("diabetes", data=far, model=line, classifier=training)
    assert float(result.model.bias.detach()) > 200


@pytest.mark.ray
@undrawn
def test_a_run_on_ray_is_the_one_in_process() -> None:
    here, there = run("text"), run("text", runtime="ray", name="ray")
    assert here.accuracy == there.accuracy
    for one, other in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(one, other)


@undrawn
def test_own_models_are_scored_by_it_too() -> None:
    result = run("diabetes", method="local")
    assert (result.metric, result.figures["scored_on"]) == ("R2", "clients")
    assert result.accuracy == pytest.approx(np.mean(result.figures["client_accuracy"]))
    assert result.accuracy < 0.5


class Repeating(nn.Module):
    """Says each token again."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.table = nn.Parameter(9 * torch.eye(num_classes))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


@undrawn
@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_accuracy_is_the_share_of_all_places_that_count_not_of_those_of_short_samples_more(
    method: str,
) -> None:
    tokens = np.random.default_rng(2).integers(0, 4, (60, 10))
    wanted = (tokens + 1) % 4
    wanted[::2, 0], wanted[::2, 1:] = tokens[::2, 0], -100  # one place, which is right
    data = ((tokens, wanted), (tokens, wanted))
    result = run("text", data=data, model=Repeating, method=method, classifier={"lr": 1e-9})
    if method == "fedavg":
        assert result.accuracy == pytest.approx(30 / (30 + 300))
        return
    saved = np.load(result.path / "partition.npz")
    tests = np.split(saved["test"], np.cumsum(saved["test_counts"])[:-1])
    for own, found in zip(tests, result.figures["client_accuracy"], strict=True):
        short = int((own % 2 == 0).sum())
        assert found == pytest.approx(short / (short + 10 * (len(own) - short)))


@undrawn
@pytest.mark.parametrize("method", [m for m in METHODS if METHODS[m].any_targets and m != "fedbn"])
def test_a_method_that_says_so_takes_values(method: str) -> None:
    further: dict[str, Any] = {} if METHODS[method].one_shot else {"rounds": 2}
    result = run("diabetes", method=method, classifier={"epochs": 2, "lr": 0.01}, **further)
    assert result.metric == "R2"
    assert result.accuracy <= 1


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": "moon"}, "moon needs one class label .* methods for these: .*fedavg"),
        ({"partition": "dirichlet"}, "dirichlet needs class labels; allowed for values: iid"),
        ({"model": "cnn"}, "cnn does not take floats"),
        ({"method": "fedbn"}, "mlp has none"),
    ],
)
def test_what_does_not_go_with_values_is_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(onefold.UserError, match=line) as caught:
        run("diabetes", **settings)
    assert "\n" not in str(caught.value)
    assert not Path("runs/run").exists()


def test_models_that_answer_whole_samples_are_refused_for_tokens() -> None:
    with pytest.raises(onefold.UserError, match="tokens need your own model"):
        run("text", model="mlp")


@pytest.mark.parametrize("targets", [np.arange(240) % 3, np.arange(240) / 9])
def test_a_model_that_answers_at_each_place_is_refused_where_targets_are_of_samples(
    targets: np.ndarray,
) -> None:
    count = len(np.unique(targets)) if targets.dtype.kind == "i" else 1
    line = rf"Characters gives \(2, 12, {count}\) for 2 samples, expected \(2, {count}\)"
    with pytest.raises(onefold.UserError, match=line):
        run("text", data=(CHARACTERS[:, :-1], targets[: len(CHARACTERS)]))


def test_a_target_with_one_value_is_refused() -> None:
    """Its score is divided by its variance: R2 was -4.6e7."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = np.stack([x[:, 0], np.full(40, 2.5)], 1)
    with pytest.raises(onefold.UserError, match="target 1 has one value in all training samples"):
        onefold.run((x, y), "mlp", "fedavg", runtime="inprocess")
