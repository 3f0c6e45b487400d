"""A loss of one's own, and a model for each client."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onefold
from tests.onefold.test_running import Tiny, blobs
from tests.registries import registries_restored
from tests.undrawn import WRITE_REPORT, draw_nothing


class Wide(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU())
        self.head = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images))


class Deep(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Tanh(), nn.Linear(6, 8))
        self.head = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images))


class Stepping(Tiny):
    """Says itself what is minimised."""

    def training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(images), labels)


Stepping.__name__ = "Tiny"  # by which the starting weights are drawn


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)
    with registries_restored():
        yield


def run(model: object = Tiny, method: object = "fedavg", **options: object) -> onefold.Result:
    base: dict[str, object] = {"num_clients": 3, "classifier": {"epochs": 3, "lr": 0.05}}
    more = {"runtime": "inprocess", "progress": False, "partition": "iid"}
    return onefold.run(blobs(), model, method, **{**base, **more, **options})  # type: ignore[arg-type]


def weights(result: onefold.Result) -> Tensor:
    return torch.cat([t.flatten() for t in result.model.state_dict().values()])


def each(answers: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(answers, labels, reduction="none")


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedprox", "ditto"])
def test_cross_entropy_given_as_a_loss_is_the_loss_that_there_is(method: str) -> None:
    options = {"rounds": 2, "classifier.momentum": 0.0}
    plain = run(method=method, output_dir="a", **options)
    for name, model, loss in (
        ("b", Tiny, F.cross_entropy),  # one number for a batch
        ("c", Tiny, each),
        ("d", Stepping, None),
    ):
        own = run(model, method, loss=loss, output_dir=name, **options)
        assert own.figures["accuracy_curve"] == plain.figures["accuracy_curve"]
        if method != "ditto":
            torch.testing.assert_close(weights(own), weights(plain), rtol=1e-4, atol=1e-6)


def test_another_loss_trains_otherwise_and_takes_no_upload_of_the_first() -> None:
    def smoothed(answers: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(answers, labels, label_smoothing=0.5)

    first = run()
    other = run(loss=smoothed)  # the same output directory, and so the same store
    assert not any(client["reused"] for client in other.clients)
    assert not torch.allclose(weights(other), weights(first))
    assert weights(other).abs().max() < weights(first).abs().max() + 1
    strength = 0.5

    def by_closure(answers: Tensor, labels: Tensor) -> Tensor:
        return strength * F.cross_entropy(answers, labels)

    half = run(loss=by_closure)
    strength = 0.01
    assert not torch.allclose(weights(run(loss=by_closure)), weights(half))


def test_a_model_of_ours_may_be_trained_by_a_loss_of_ones_own() -> None:
    result = run("mlp", loss=each, classifier={"epochs": 20, "lr": 0.1})
    assert result.accuracy > 0.5
    assert type(result.model).__name__ == type(run("mlp").model).__name__


def test_methods_that_fuse_such_clients_take_it_and_others_refuse() -> None:
    assert run(method="feddf", loss=each, **{"auxiliary.dataset": "digits"}).accuracy > 0
    for method in ("moon", "fedproto", "fedgen"):
        with pytest.raises(onefold.UserError, match=f"{method} trains clients by a loss of"):
            run(Wide, method, loss=each)
        assert not list(Path().glob(f"runs/{method}*"))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3, "loss: expected a function, got int"),
        (lambda answers, labels: answers, r"the loss gives \(4, 3\) for 4 samples"),
        (lambda answers, labels: 0.5, "the loss gives float"),
        (lambda answers, labels: labels.float().mean(), "depends on no weight"),
        (lambda answers, labels: answers.nothing(), "the loss of Tiny fails: AttributeError"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused(loss: object, message: str) -> None:
    with pytest.raises(onefold.UserError, match=message):
        run(loss=loss)
    assert not list(Path("runs").glob("fedavg*"))


def test_a_loss_needs_a_model() -> None:
    with pytest.raises(onefold.UserError, match="name the model"):
        run(None, loss=each)


@pytest.mark.parametrize("method", ["local", "fedmd", "fedproto"])
def test_each_client_trains_the_model_that_it_is_given(method: str) -> None:
    models = [Wide, Deep]
    options: dict[str, object] = {"partition.test_fraction": 0.3, "rounds": 2}
    options["classifier"] = {"epochs": 3, "lr": 0.05, "momentum": 0.9}
    if method == "fedmd":
        options |= {"auxiliary.dataset": "digits", "auxiliary.max_images": 40}
    listed = run(models, method, output_dir="a", **options)
    assert [c["model"] for c in listed.clients] == ["Wide", "Deep", "Wide"]
    by_client = run(lambda client: models[client % 2], method, output_dir="b", **options)
    assert by_client.figures["client_accuracy"] == listed.figures["client_accuracy"]
    assert listed.figures["fedavg_bytes_up"] > 0


def test_averages_are_of_clients_with_the_same_model() -> None:
    result = run(lambda client: [Wide, Deep, Wide][client], "fedavg")
    assert [c["model"] for c in result.clients] == ["Wide", "Deep", "Wide"]
    kinds = [type(member).__name__ for member in result.model.members]  # type: ignore[union-attr]
    assert kinds == ["Wide", "Deep"]


def test_functions_of_one_name_are_several_models() -> None:
    result = run([lambda num_classes: Wide(num_classes), lambda num_classes: Deep(num_classes)])
    assert len({c["model"] for c in result.clients}) == 2


@pytest.mark.parametrize(
    ("models", "method", "message"),
    [
        ([Wide, Tiny], "fedper", "fedper gives all clients one model; several go with"),
        ([Wide] * 2 + [Tiny] * 2, "local", "4 models need as many clients, got 3"),
        ([Wide, "cnn"], "fedproto", "which must have one width; got Wide 8, cnn"),
        ([Wide, "no-such"], "local", "no-such"),
    ],
)
def test_models_that_cannot_be_given_so_are_refused(
    models: list[object], method: str, message: str
) -> None:
    with pytest.raises(onefold.UserError, match=message):
        run(models, method)
