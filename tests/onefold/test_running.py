"""onefold.run: a user's own data, model, method, partition and metrics, in a folder elsewhere."""

import json
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onefold
from fl.data.catalogue import REGISTERED, register_dataset
from fl.data.partition_file import read_lists
from onefold.running import partition_arguments
from tests.registries import registries_restored
from tests.tutorials import blocks, type_commands, write_files
from tests.undrawn import WRITE_REPORT, draw_nothing


def blobs(count: int = 120, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 8, 8, 3) in [0, 1] whose brightness tells the class, and labels (N,)."""
    labels = np.random.default_rng(0).integers(0, classes, count)
    noise = np.random.default_rng(1).random((count, 8, 8, 3)) * 0.2
    return noise + labels[:, None, None, None] * 0.25, labels


class Tiny(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Halving(Tiny):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.div_(2) if self.training else images)


def from_one(answers: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(answers, labels.clamp_(min=1))


pytestmark = pytest.mark.usefixtures("elsewhere")


quick = pytest.mark.usefixtures("undrawn")
PAGE = "own-method.md"
TWO = {"num_clients": 2, "num_large": 2}


def run(**options: object) -> onefold.Result:
    base: dict[str, object] = {
        **{"data": blobs(), "model": Tiny, "method": "fedavg", "runtime": "inprocess"},
        **{"num_clients": 4, "num_large": 4, "partition": "iid", "progress": False},
        "classifier": {"epochs": 2, "batch_size": 8},
    }
    return onefold.run(**{**base, **options})


def test_own_data_and_model_with_a_method_of_onefolds() -> None:
    result = run(rounds=5, classifier={"epochs": 5, "lr": 0.1})
    assert result.accuracy > 0.6  # brightness alone tells the class
    assert len(result.clients) == 4
    assert result.report.is_file()
    assert {"accuracy", "partition"} <= result.pictures.keys()
    images = torch.full((5, 3, 8, 8), 0.6)
    assert result.model(images).shape == (5, 3)
    assert "fedavg on own" in result._repr_html_()
    again = onefold.load_model(result.path)
    assert torch.equal(again(images), result.model(images))


@quick
@pytest.mark.parametrize(
    ("weights", "line"),
    [
        ([1, 2], "average: 2 weights for 4 updates"),
        ([1, -1, 1, 1], "weights must be 0 or more"),
        ([0, 0, 0, 0], "and not all 0"),
        ([1, 1, 1, float("nan")], "weights must be 0 or more"),
    ],
)
def test_weights_that_would_leave_clients_out_of_the_average_are_refused(
    weights: list[float], line: str
) -> None:
    @onefold.method("weighted", over_rounds=False)
    def weighted(clients: Any, server: Any, config: Any) -> Any:
        model = onefold.starting_model(config, server)
        onefold.average(model, clients.train(), weights)
        return onefold.Outcome(model=model, start=server.evaluate(model), epochs=[])

    with pytest.raises(onefold.UserError, match=line):
        run(method=weighted, num_large=None)


@quick
@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (nn.Module.state_dict, "sent layers.1.bias, but their training uses only"),
        (lambda model: {}, "sent no weights in round 2, so each starts anew"),
        (onefold.sent, ""),
    ],
)
def test_who_sends_clients_what_they_do_not_begin_with_is_told(
    sent: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each round began with the first weights, and ended with what one round gives."""

    @onefold.method("resending")
    def resending(clients: Any, server: Any, config: Any, rounds: Any) -> Any:
        model = onefold.starting_model(config, server)
        for _ in rounds.play(clients, server, model):
            onefold.average(model, clients.train(broadcast=dict(sent(model))))
        return rounds.outcome(model)

    refused = pytest.raises(onefold.UserError, match=line) if "layers" in line else nullcontext()
    with refused as caught:
        run(method=resending, num_large=None, rounds=3)
    told = caplog.messages if caught is None else [str(caught.value)]
    assert len(told) == bool(line)
    assert all(line in message for message in told)


def outcome_of(kind: str, model: nn.Module, before: Any, server: Any) -> Any:
    after = server.evaluate(model)
    return {
        "nothing": None,
        "model": model,
        "number": onefold.Outcome(model=model, start=0.5, epochs=[after]),  # type: ignore[arg-type]
        "untested": onefold.Outcome(model=model, start=before, epochs=[]),
        "stale": onefold.Outcome(model=model, start=before, epochs=[before]),
        "tensor": onefold.Outcome(
            model=model, start=before, epochs=[after], figures={"x": torch.ones(2)}
        ),
        "better": onefold.Outcome(
            model=model, start=before, epochs=[after], figures={"accuracy": 1.1}
        ),
        "right": onefold.Outcome(model=model, start=before, epochs=[before, after]),
    }[kind]


@quick
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("nothing", "method returns returned NoneType; expected a model or an onefold.Outcome"),
        ("untested", "epochs a list of evaluations"),
        ("number", "start must be an evaluation"),
        ("stale", r"its last evaluation has \d.\d+, the returned model 1.0000"),
        ("tensor", "figures cannot be written as JSON"),
        ("better", "figures cannot have the names accuracy"),
        ("right", ""),
        ("model", ""),
    ],
)
def test_a_methods_figures_are_those_of_the_model_that_it_returns(kind: str, line: str) -> None:
    @onefold.method("returns", over_rounds=False)
    def returns(clients: Any, server: Any, config: Any) -> Any:
        model = onefold.starting_model(config, server)
        before = server.evaluate(model)
        onefold.average(model, clients.train())
        return outcome_of(kind, model, before, server)

    training = {"epochs": 20, "lr": 0.1}
    if not line:
        assert run(method=returns, num_large=None, classifier=training).accuracy == 1.0
        return
    with pytest.raises(onefold.UserError, match=line):
        run(method=returns, num_large=None, classifier=training)


class Noisy(Tiny):
    def forward(self, images: Tensor) -> Tensor:
        answers = super().forward(images)
        return answers + torch.randn_like(answers)


class Centred(Tiny):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images - images.mean(0))


@quick
@pytest.mark.parametrize(
    ("model", "reason"),
    [(Noisy, "draws random numbers"), (Centred, "depends on the batch's other samples")],
)
def test_a_model_that_answers_a_sample_in_several_ways_is_told(
    model: type[nn.Module], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(model=Tiny)
    assert "in evaluation" not in caplog.text
    run(model=model)
    assert f"{model.__name__}: its output in evaluation {reason}" in caplog.text


def test_a_test_on_training_samples_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = "120 of the 120 test samples equal a training sample"
    assert run().figures["leaked"] == 0
    assert told not in caplog.text
    result = run(data=(blobs(), blobs()))
    assert told in caplog.text
    assert result.figures["leaked"] == 120
    assert "120 test samples equal a training sample." in result.report.read_text()


FEWER, HELD_OUT = {"data.max_train": 60}, {"data.validation": 0.2}


@quick
@pytest.mark.parametrize(
    ("whole", "less"), [(True, {}), (True, FEWER), (True, HELD_OUT), (False, HELD_OUT)]
)
def test_indices_are_of_the_samples_as_they_were_given(whole: bool, less: dict[str, Any]) -> None:
    """Whatever is taken away for a test, for validation or by a limit."""
    images, labels = blobs()
    data = (images, labels) if whole else {"train": (images, labels), "test": (images, labels)}
    of_class = [np.flatnonzero(labels == c) for c in range(3)]
    given = {"data": data, "num_clients": 3, "num_large": 3, **less}
    result = run(partition=of_class, **given)
    counts = np.array(json.loads((result.path / "partition.json").read_text())["counts"])
    assert (counts.argmax(1) == np.arange(3)).all()
    assert np.count_nonzero(counts) == 3
    there = less.get("data.max_train", 96 if whole else 120)
    expected = there - (round(0.2 * there) if "data.validation" in less else 0)
    assert counts.sum() == expected
    kept = {"partition": "file", "partition.file": str(result.path / "partition.npz")}
    again = run(**{**given, **kept, "name": "again"})
    assert all(map(torch.equal, result.model.parameters(), again.model.parameters()))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"model": Tiny(3)}, "the class or a function, got a Tiny object: .*deepcopy"),
        ({"model": 3}, "expected a torch.nn.Module class or a function"),
        ({"model": lambda: 3}, "expected a torch.nn.Module of"),
        ({"model": lambda: nn.Flatten()}, r"gives \(2, 192\).* expected \(2, 3\): a logit"),
        ({"model": lambda: nn.Linear(5, 3)}, "fails on images of shape"),
        ({"model": Halving}, "model Halving changes its samples in place, but they are used again"),
        ({"loss": from_one}, "the loss of Tiny changes samples or labels in place"),
        ({"model": lambda depth: nn.Flatten()}, "needs depth, but Onefold passes only shape, "),
        ({"method": print}, "expected a name or a Method, got builtin_function_or_method"),
        ({"method": "fedagv"}, "unknown method 'fedagv'"),
        ({"data": 3}, "data own: expected .* got int"),
        ({"data": (blobs()[0] / 0, blobs()[1])}, "samples have NaN or infinite values"),
        ({"partition": [[0, 1], [1, 2]], **TWO}, "gives sample 1 to client 0 and to client 1"),
        ({"partition": [[0, 1], [2, 99999]], **TWO}, "gives client 1 sample 99999"),
        ({"partition": 4}, "expected a kind, a list of index arrays or"),
        ({"partition": [[0.5]]}, "client 0 must have a list of whole numbers"),
        ({"partition": [[0], []]}, "client 1 has no samples"),
        ({"data": (*blobs(), 0)}, r"must be \(sample, label\), .*a mapping of clients, or"),
        ({"data": ([[0], [0, 1]], [0, 1])}, "pad or cut rows of several lengths"),
        ({"method": "fedcvae-ens"}, "fedcvae-ens trains no classifier at its clients"),
        ({"epochs": 3}, "unknown option '--epochs'"),
        ({"slurm": {"partition": "gpu"}}, "slurm needs the command line: use onefold run --slurm"),
    ],
)
def test_a_wrong_object_is_one_line_that_says_what_was_expected(
    options: dict[str, object], line: str
) -> None:
    with pytest.raises(onefold.UserError, match=line) as caught:
        run(**options)
    assert "\n" not in str(caught.value)


def test_the_page_about_a_method_is_25_lines() -> None:
    (script,) = (b.text for b in blocks(PAGE) if b.title == "my.py")
    assert sum(bool(line.strip()) for line in script.splitlines()) <= 25


@quick
@pytest.mark.ray
@pytest.mark.slow
def test_a_script_elsewhere_runs_its_own_method_on_ray_to_the_bits_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a cluster.py, which does no harm."""
    folders = ray, here = tmp_path / "ray", tmp_path / "here"
    for folder in folders:
        folder.mkdir()
        write_files(PAGE, folder)
    (ray / "cluster.py").write_text("raise RuntimeError('not ours')")
    type_commands(PAGE, ray)
    text = (here / "my.py").read_text()
    (here / "one.py").write_text(text.replace("max_actors=2", 'runtime="inprocess"'))
    monkeypatch.chdir(here)
    runpy.run_path("one.py", run_name="__main__")
    models, runs = zip(*(only_run(folder) for folder in folders), strict=True)
    assert models[0] == models[1]
    assert runs == ("ray", "inprocess")


def only_run(folder: Path) -> tuple[bytes, str]:
    """The model of the folder's one run, and how it ran."""
    (path,) = (file.parent for file in folder.glob("runs/*/result.json"))
    runtime = onefold.load_result(path).figures["runtime"]
    return (path / "model" / "global.safetensors").read_bytes(), runtime


class Viewing(nn.Module):
    """As many write it: the layout of images after a convolution is taken for granted."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images).relu()
        return self.head(x.view(len(x), -1))


class LooksInside(nn.Module):
    """Reads a layer's weights by itself, and asks where they are."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU())
        self.head = nn.Linear(8, num_classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        images = images.to(next(self.parameters()).device)
        weights = nn.functional.normalize(self.head.weight, dim=1)
        return 5 * nn.functional.linear(self.layers(images), weights)


class Recurrent(nn.Module):
    """Has a submodule that returns a tuple."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.rows, self.head = nn.LSTM(24, 8, batch_first=True), nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        states, _ = self.rows(images.flatten(2).view(len(images), 8, 24))
        return self.head(states[:, -1])


@quick
@pytest.mark.parametrize(
    ("model", "method"),
    [(Viewing, "fedavg"), (LooksInside, "fedavg"), (Recurrent, "fedavg"), (Viewing, "fedmho-sd")],
)
def test_ordinary_networks_train(model: type[nn.Module], method: str) -> None:
    more = {"num_large": None, "num_samples": 20, "generator": {"epochs": 1, "width": 0.1}}
    result = run(model=model, method=method, **(more if method == "fedmho-sd" else {}))
    assert 0 <= result.accuracy <= 1
    assert result.model(torch.rand(2, 3, 8, 8)).shape == (2, 3)


class Centring(Tiny):
    """Subtracts what it has seen last, where only this process knows it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.seen = images.detach().mean() * 10
        return super().forward(images - self.seen)


@quick
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_a_model_that_keeps_what_it_learns_out_of_its_state_is_refused(method: str) -> None:
    with pytest.raises(onefold.ClientFailed, match="training changes more of the model than is"):
        run(model=Centring, method=method, rounds=2)


@quick
def test_the_model_is_that_of_all_clients_unless_others_are_asked_for() -> None:
    result = run(num_clients=3, num_large=None)
    assert {client["model"] for client in result.clients} == {"Tiny"}
    mixed = run(num_clients=3, num_large=2)
    assert [client["model"] for client in mixed.clients] == ["Tiny", "Tiny", "cnn"]


def test_a_dry_run_says_where_clients_train_several_models_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"method": "fedmho", "num_large": None, "progress": True, "dry_run": True}
    assert run(**options, output_dir=str(tmp_path / "runs")) is None
    said = capsys.readouterr().out
    assert "of 4 clients 2 train Tiny, 2 train cvae-small" in said
    assert "would run in" in said
    assert not (tmp_path / "runs").exists()


@quick
def test_a_model_of_the_same_name_is_another_one() -> None:
    """As in a notebook whose cell was edited and is run again."""

    def named(layers: list[nn.Module]) -> type[nn.Module]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.Sequential(nn.Flatten(), *layers, nn.Linear(192, 3))

            def forward(self, images: Tensor) -> Tensor:
                return self.layers(images)

        return Net

    told = {
        "plain": run(model=named([]), rounds=2, name="plain"),
        "squashed": run(model=named([nn.Tanh()]), rounds=2, name="squashed"),
    }
    kinds = {name: [type(layer) for layer in r.model.layers] for name, r in told.items()}
    assert kinds == {"plain": [nn.Flatten, nn.Linear], "squashed": [nn.Flatten, nn.Tanh, nn.Linear]}
    with pytest.raises(onefold.UserError, match=r"another Net .* here: give its class"):
        onefold.load_model("runs/plain")
    assert len(onefold.load_model("runs/plain", named([])).layers) == 2


class Vote(nn.Module):
    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([member(images) for member in self.members]).mean(0)


@quick
def test_a_method_may_return_a_module_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    @onefold.method("vote", over_rounds=False)
    def vote(clients: Any, server: Any, config: Any) -> Any:
        return Vote([onefold.received(update, server) for update in clients.train()])

    def right(model: nn.Module, images: Tensor, labels: Tensor) -> float:
        return float((model(images).argmax(1) == labels).float().mean())

    training = {"epochs": 20, "lr": 0.1}
    result = run(method=vote, num_large=None, metrics={"right": right}, classifier=training)
    assert result.figures["metrics"]["right"] == pytest.approx(result.accuracy)
    assert result.model(torch.zeros(1, 3, 8, 8)).shape == (1, 3)
    assert result.figures["start_accuracy"] < result.accuracy  # of the untrained classifier
    assert "holds only the global model's weights" in caplog.text


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[Tensor]:
    """The weights of a run where the caller has set nothing."""
    with registries_restored(), mock.patch(WRITE_REPORT, draw_nothing):
        done = run(rounds=2, output_dir=str(tmp_path_factory.mktemp("usual")))
        return [*done.model.parameters()]


@quick
@pytest.mark.parametrize("state", ["no_grad", "inference_mode", "autocast", "dtype", "device"])
def test_what_the_caller_has_set_changes_nothing_and_is_as_it_was(
    state: str, usual: list[Tensor], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    around = {
        "no_grad": torch.no_grad(),
        "inference_mode": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "device": torch.device("meta"),
    }
    if state == "dtype":
        torch.set_default_dtype(torch.float64)
    stream = torch.get_rng_state()
    with around.get(state, nullcontext()):
        before = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device())
        found = [*run(rounds=2).model.parameters()]
        after = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device())
    assert before == after
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(map(torch.equal, found, usual))


@quick
def test_a_client_that_exits_fails_and_does_not_end_the_launch() -> None:
    class Exits(Tiny):
        def forward(self, images: Tensor) -> Tensor:
            if self.training:
                sys.exit("0\nat once")  # an error of torch's may have a hundred lines
            return super().forward(images)

    line = r"client 0 \(Exits\) failed: SystemExit: 0 at once"
    with pytest.raises(onefold.ClientFailed, match=line):
        run(model=Exits)


# A partition of one's own, as arguments of the command.


def test_lists_are_kept_under_a_name_made_of_them(tmp_path: Path) -> None:
    lists = [np.array([0, 2]), [1, 3, 4]]
    arguments = partition_arguments(lists, None, tmp_path)
    assert arguments == partition_arguments(lists, None, tmp_path)
    assert arguments != partition_arguments(lists[::-1], None, tmp_path)
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (options["--partition.kind"], options["--num-clients"]) == ("file", "2")
    train, _ = read_lists(Path(options["--partition.file"]), 2, 5)
    assert [own.tolist() for own in train] == [[0, 2], [1, 3, 4]]


def test_a_partitioner_of_flwr_datasets_cuts_by_the_labels(tmp_path: Path) -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    labels = np.arange(90) % 3
    register_dataset("own", (np.zeros((90, 1, 8, 8)), labels))
    cut = partitioner.ShardPartitioner(
        num_partitions=3, partition_by="label", num_shards_per_partition=1, shuffle=False
    )
    train = REGISTERED["own"].train
    own = train.labels
    arguments = partition_arguments(cut, (), tmp_path)
    assert arguments[-2:] == ["--num-clients", "3"]
    indices, _ = read_lists(Path(arguments[3]), 3, len(own), train.taken)
    assert sorted(np.concatenate(indices).tolist()) == list(range(len(own)))
    assert all(len(set(own[rows])) <= 2 for rows in indices)


def test_values_have_no_labels_by_which_a_partitioner_could_cut(tmp_path: Path) -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    register_dataset("own", (np.zeros((90, 4)), np.random.default_rng(0).normal(size=90)))
    skewed = partitioner.DirichletPartitioner(num_partitions=3, partition_by="label", alpha=0.5)
    with pytest.raises(onefold.UserError, match=r"fails: .*label where targets are classes"):
        partition_arguments(skewed, (), tmp_path)
    even = partitioner.IidPartitioner(num_partitions=3)
    assert partition_arguments(even, (), tmp_path)[-2:] == ["--num-clients", "3"]
