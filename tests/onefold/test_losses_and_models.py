"""A loss of one's own; and a model, and training settings, for each client."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import onefold
from fl.training import classifier
from tests.onefold.test_running import Tiny, blobs


class Wide(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU())
        self.head = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images))


class Deep(Wide):
    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Tanh(), nn.Linear(6, 8))


class Stepping(Tiny):
    """Says itself what is minimised."""

    def training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(images), labels)


Stepping.__name__ = "Tiny"  # by which the starting weights are drawn


pytestmark = pytest.mark.usefixtures("elsewhere", "undrawn")


def run(model: object = Tiny, method: object = "fedavg", **options: object) -> onefold.Result:
    base: dict[str, object] = {"num_clients": 3, "classifier": {"epochs": 3, "lr": 0.05}}
    more = {"runtime": "inprocess", "progress": False, "partition": "iid"}
    return onefold.run(blobs(), model, method, **{**base, **more, **options})  # type: ignore[arg-type]


def weights(result: onefold.Result) -> Tensor:
    return torch.cat([t.flatten() for t in result.model.state_dict().values()])


def each(answers: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(answers, labels, reduction="none")


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
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


def test_a_module_of_torchs_is_a_loss_as_a_function_is() -> None:
    module, options = partial(nn.CrossEntropyLoss, label_smoothing=0.5), {"rounds": 2}
    by_module = run(loss=module(), output_dir="a", **options)

    def smoothed(answers: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(answers, labels, label_smoothing=0.5)

    assert torch.equal(weights(run(loss=smoothed, output_dir="b", **options)), weights(by_module))
    # Weights of classes are values of the loss: others take no upload of the first.
    ones, others = torch.ones(3), torch.tensor([1.0, 0.2, 0.2])
    first = run(loss=module(weight=ones), output_dir="c")
    assert not torch.allclose(
        weights(run(loss=module(weight=others), output_dir="c")), weights(first)
    )
    assert set(by_module.model.state_dict()) == set(Tiny(3).state_dict())


KEPT = {"smoothing": 0.0, "drop": 0.0, "shade": 1.0}


class Dropping(Tiny):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.dropout(images, KEPT["drop"], self.training))


def test_a_value_that_changes_after_registering_takes_no_upload_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a notebook: registered once, run again after another value was set."""

    def loss(answers: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(answers, labels, label_smoothing=KEPT["smoothing"])

    onefold.register_model("dropping", Dropping, loss)
    onefold.register_dataset("shaded", blobs(), lambda image: image * KEPT["shade"])
    given = {"num_clients": 3, "num_large": 3, "partition": "iid", "progress": False}
    train = partial(onefold.run, "shaded", "dropping", "fedavg", runtime="inprocess", **given)
    first, same = train(), train()
    assert all(client["reused"] for client in same.clients)
    for name in KEPT:
        with monkeypatch.context() as patch:
            patch.setitem(KEPT, name, 0.5)
            changed = train()
        assert not any(client["reused"] for client in changed.clients), name
        assert not torch.equal(weights(changed), weights(first)), name


class Begun(Tiny):
    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        nn.init.constant_(self.layers[1].bias, KEPT["shade"])


def test_a_registered_models_start_is_what_its_code_says_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    onefold.register_model("begun", Begun)
    for shade in (1.0, 5.0):
        monkeypatch.setitem(KEPT, "shade", shade)
        trained = run("begun", num_large=3, classifier={"epochs": 1, "lr": 1e-6}).model
        assert torch.allclose(trained.layers[1].bias, torch.full((3,), shade), atol=1e-3)


def test_a_model_of_ours_may_be_trained_by_a_loss_of_ones_own() -> None:
    result = run("mlp", loss=each, classifier={"epochs": 20, "lr": 0.1})
    assert result.accuracy > 0.5
    assert type(result.model).__name__ == type(run("mlp").model).__name__


def test_methods_that_fuse_such_clients_take_it_and_others_refuse() -> None:
    few = {"auxiliary.dataset": "digits", "auxiliary.max_images": 40, "distil.epochs": 1}
    assert run(method="feddf", loss=each, **few).accuracy > 0
    for method in ("moon", "fedproto", "fedgen", "centralised"):
        with pytest.raises(onefold.UserError, match=f"{method} has its own loss"):
            run(Wide, method, loss=each, classifier={})
        assert not list(Path().glob(f"runs/{method}*"))


class Counting:
    """Weighs each call less than the one before."""

    calls = 0

    def __call__(self, answers: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(answers, labels) / self.calls


class WithCentres(nn.Module):
    """Has something to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3))

    def forward(self, answers: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(answers - self.centres, labels)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3, "loss: expected a function, got int"),
        (lambda answers, labels: answers, r"the loss gives \(4, 3\) for 4 samples"),
        (lambda answers, labels: 0.5, "the loss gives float"),
        (lambda answers, labels: labels.float().mean(), "depends on no weight"),
        (lambda answers, labels: answers.nothing(), "the loss of Tiny fails: AttributeError"),
        (Counting(), "the loss of Tiny gives another number when it is called again"),
        (WithCentres(), "loss: the parameters of a WithCentres would not be trained"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused(loss: object, message: str) -> None:
    with pytest.raises(onefold.UserError, match=message):
        run(loss=loss)
    assert not list(Path("runs").glob("fedavg*"))


def likelihood(answers: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(answers.log(), labels, reduction="none")


class Softmax(Tiny):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).softmax(1)


class Sigmoid(Tiny):
    def forward(self, images: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(images))


@pytest.mark.parametrize("model", [Softmax, Sigmoid])
def test_a_model_that_answers_with_probabilities_is_refused(model: type[nn.Module]) -> None:
    name = model.__name__.lower()
    message = f"ends with a {name}, but cross-entropy takes logits: leave it out, or give the loss"
    with pytest.raises(onefold.UserError, match=message):
        run(model)
    assert not list(Path("runs").glob("fedavg*"))


def test_by_its_own_loss_it_is_trained_where_nobody_fuses_its_answers() -> None:
    assert run(Softmax, loss=likelihood, classifier={"epochs": 20, "lr": 0.1}).accuracy > 0.5
    few = {"auxiliary.dataset": "digits", "auxiliary.max_images": 40, "distil.epochs": 1}
    with pytest.raises(onefold.UserError, match="ends with a softmax, but feddf fuses logits"):
        run(Softmax, "feddf", loss=likelihood, **few)


refused_of_batches = partial(
    pytest.raises, onefold.UserError, match="is not the mean of its samples' losses"
)
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 5.0, 5.0]))


@pytest.mark.parametrize("option", [{"classifier.micro_batch": 4}, {"dp.epsilon": 8.0}])
def test_a_loss_of_whole_batches_is_refused_where_samples_are_apart(
    option: dict[str, float],
) -> None:
    with refused_of_batches():
        run(loss=WEIGHTED, **option)
    assert run(loss=nn.CrossEntropyLoss(label_smoothing=0.1), **option).accuracy > 0


def test_a_loss_of_whole_batches_is_found_by_classes_and_targets_of_any_kind() -> None:
    option = {"classifier.micro_batch": 4}
    for weight in ([1.0] * 8 + [20.0] * 2, [1.0] * 4 + [20.0] * 6):
        with refused_of_batches():
            loss = nn.CrossEntropyLoss(weight=torch.tensor(weight))
            onefold.run("digits", "mlp", "fedavg", loss=loss, dry_run=True, **option)
    table = np.random.default_rng(0).random((60, 6)).astype(np.float32)
    own = {"num_clients": 3, "num_large": 3, "partition": "iid", "dry_run": True, **option}
    for targets in (np.arange(240).reshape(60, 4) % 7 < 3).astype(np.uint8), TOKENS:
        samples = table if targets is not TOKENS else TOKENS
        model = "mlp" if targets is not TOKENS else Tagger
        with refused_of_batches():
            onefold.run((samples, targets), model, "fedavg", loss=by_its_sum, **own)


TOKENS = np.random.default_rng(0).integers(0, 4, (60, 8))


class Tagger(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(4, 5), nn.Linear(5, num_classes))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens)


def by_its_sum(answers: Tensor, targets: Tensor) -> Tensor:
    """A mean over the targets that count, as one without padding is."""
    counted = (targets > 0).float()
    return (answers.flatten(1).square().mean(1) * counted.sum(1)).sum() / counted.sum()


def count(model: nn.Module, samples: Tensor, targets: Tensor) -> float:
    return float(len(samples))


def test_a_loss_that_mixes_up_targets_by_their_shape_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    samples = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    given = {"num_clients": 3, "num_large": 3, "partition": "iid", "runtime": "inprocess"}
    regress = partial(onefold.run, (samples, samples.sum(1)), "mlp", "fedavg", **given)
    with pytest.raises(
        onefold.UserError, match=r"does not change when targets are permuted.* squeeze"
    ):
        regress(loss=lambda answers, targets: (answers.squeeze() - targets).square().mean())
    regress(loss=lambda answers, targets: (answers - targets).square().mean())
    regress(metrics={"error": lambda model, x, y: (model(x).squeeze() - y).abs().mean()})
    assert "metric error does not change when targets are permuted" in caplog.text
    caplog.clear()
    regress(metrics={"error": lambda model, x, y: (model(x) - y).abs().mean(), "n": count})
    assert "metric" not in caplog.text


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(
        onefold.UserError, match="has a method training_loss and was also given a loss"
    ):
        run(Stepping, loss=each)
    with pytest.raises(onefold.UserError, match="dataset is given twice"):
        run(dataset="digits")
    with pytest.raises(onefold.UserError, match=r"classifier\.model is given twice"):
        run(classifier={"model": "mlp"})


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
    assert listed.figures["fedavg_bytes_up"] > 0
    if method == "local":
        by_client = run(lambda client: models[client % 2], method, output_dir="b", **options)
        assert by_client.figures["client_accuracy"] == listed.figures["client_accuracy"]


def test_averages_are_of_clients_with_the_same_model() -> None:
    result = run(lambda client: [Wide, Deep, Wide][client], "fedavg")
    assert [c["model"] for c in result.clients] == ["Wide", "Deep", "Wide"]
    kinds = [type(member).__name__ for member in result.model.members]  # type: ignore[union-attr]
    assert kinds == ["Wide", "Deep"]


def test_functions_of_one_name_are_several_models() -> None:
    result = run([lambda num_classes: Wide(num_classes), lambda num_classes: Deep(num_classes)])
    assert len({c["model"] for c in result.clients}) == 2
    wide, other, numbered = (type(name, (Wide,), {}) for name in ("Own", "Own", "Own2"))
    result = run([wide, other, numbered])
    assert len({c["model"] for c in result.clients}) == 3


@pytest.mark.parametrize(
    ("models", "method", "message"),
    [
        ([Wide, Tiny], "fedper", "fedper takes one model for all clients; "),
        ([Wide] * 2 + [Tiny] * 2, "local", "4 models need at least as many clients, got 3"),
        ([Wide, "cnn"], "fedproto", "which must have one width; got Wide 8, cnn"),
        ([Wide, "no-such"], "local", "no-such"),
    ],
)
def test_models_that_cannot_be_given_so_are_refused(
    models: list[object], method: str, message: str
) -> None:
    with pytest.raises(onefold.UserError, match=message):
        run(models, method)


def upload(result: onefold.Result, client: int) -> dict[str, Tensor]:
    return load_file(result.path / "updates" / f"client-{client:05d}.safetensors")


@pytest.mark.parametrize("method", ["fedavg", "fednova"])
def test_a_client_may_train_by_settings_of_its_own_and_is_averaged_with_the_others(
    method: str,
) -> None:
    plain = run(method=method, output_dir="a")
    own = run(method=method, output_dir="b", per_client=["1.lr=0.5", "1.epochs=1"])
    alone = run(method=method, output_dir="c", classifier={"epochs": 1, "lr": 0.5})
    for client, like in ((0, plain), (1, alone), (2, plain)):
        found, expected = upload(own, client), upload(like, client)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert isinstance(own.model, Tiny)
    if method == "fedavg":
        for name, tensor in own.model.state_dict().items():
            sent = torch.stack([upload(own, k)[f"classifier.{name}"] for k in range(3)])
            torch.testing.assert_close(tensor, sent.mean(0))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("3.lr=0.1", "per_client 3.lr=0.1: no client '3'; allowed: 0 to 2"),
        ("x.lr=0.1", "no client 'x'"),
        ("0.lrr=0.1", "unknown setting 'lrr'.*lr"),
        ("0.model=cnn", "unknown setting 'model'"),
        ("0.lr=-1", "lr must be"),
        ("0.epochs=two", "epochs must be"),
        ("0.epochs=2.5", "epochs must be"),
        ("0.lr", "the value is missing"),
    ],
)
def test_settings_of_a_client_that_cannot_be_are_refused(entry: str, message: str) -> None:
    with pytest.raises(onefold.UserError, match=message):
        run(per_client=[entry])


def test_what_a_method_refuses_of_all_clients_is_refused_of_one() -> None:
    fednova = partial(run, method="fednova", num_large=1, dry_run=True)
    for entry in ("0.optimizer=adam", "2.optimizer=adam"):  # of classifier, and of small_model
        with pytest.raises(onefold.UserError, match=f"per_client {entry}: fednova counts"):
            fednova(per_client=[entry])
    fednova(per_client=["0.proximal=1e-2", "0.momentum=0"])  # by what it has in the end
    with refused_of_batches():
        run(loss=WEIGHTED, per_client=["1.micro_batch=4"])


@pytest.mark.parametrize("method", ["scaffold", "moon", "local", "centralised"])
def test_methods_that_reckon_with_a_clients_training_refuse_it(method: str) -> None:
    with pytest.raises(onefold.UserError, match="only for clients with plain classifier settings"):
        run(Wide, method=method, per_client=["0.lr=0.1"], dry_run=True)


class OfNumPy(nn.Module):
    """Draws its first weights, and noise in training, from NumPy's and Python's global streams."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        drawn = torch.tensor(np.random.normal(size=(num_classes, 192)) / 14)
        self.weight = nn.Parameter(drawn.float())

    def forward(self, images: Tensor) -> Tensor:
        noise = random.random() if self.training else 0.0
        return (images.flatten(1) + noise) @ self.weight.T


def test_what_a_model_draws_from_any_global_stream_is_of_the_seed() -> None:
    found = []
    for state in (1, 2):
        np.random.seed(state)
        random.seed(state)
        classifier._start.cache_clear()  # as in a process of its own
        found.append(weights(run(OfNumPy, name=f"state {state}", output_dir=f"runs{state}")))
    assert torch.equal(*found)
    assert not torch.equal(found[0], weights(run(OfNumPy, seed=1)))
