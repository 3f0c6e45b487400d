"""FedGen: where it is FedAvg, its losses against plain loops, what travels, and its generator."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from fl.errors import UserError
from fl.events import Event
from fl.exchange import prefixed
from fl.federation import RunSpec, TaskInput
from fl.fusion.fit import Fit, FitSpec
from fl.fusion.group import Group
from fl.methods.fedgen import (
    NOISE,
    FeatureGenerator,
    GenerationLoss,
    GeneratorFitConfig,
    LastLayers,
    LocalFedGen,
    asked,
    starting_generator,
)
from fl.methods.registry import get_method
from fl.models.common import state_sent
from fl.models.registry import build_classifier
from fl.seeding import in_round, seed_for, torch_generator
from fl.training.classifier import plain, starting_classifier
from fl.training.recipe import Recipe
from tests.fl.fusion.threads import on_ranks
from tests.fl.methods.averaged import (
    CLIENTS,
    WITHOUT_NORM,
    fedavg,
    federation,
    play,
    reused,
    same_model,
    samples,
    settings,
    start,
    store,
)
from tests.fl.toy import PROBLEM, shard, task_input

SHORT = GeneratorFitConfig(steps=4, batch_size=8)


def fedgen(local: dict[str, Any] = WITHOUT_NORM, **changes: Any) -> Any:
    return settings("fedgen", local, **{"generator": SHORT, **changes})


def test_without_its_terms_it_is_fedavg() -> None:
    expected = fedavg(2)
    assert same_model(play("fedgen", fedgen(recognition=0.0, imitation=0.0))[0], expected)
    for one in ({"recognition": 0.0}, {"imitation": 0.0}, {}):
        assert not same_model(play("fedgen", fedgen(**one))[0], expected)


def test_samples_that_are_held_out_choose_the_epoch_in_each_round() -> None:
    held = play("fedgen", fedgen(validation=0.2), 2)[0]
    assert not same_model(held, play("fedgen", fedgen(), 2)[0])


def test_its_first_round_is_fedavgs_and_its_bytes_are_the_models_and_the_generators(
    tmp_path: Path,
) -> None:
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "fedavg"))
    heard: list[Event] = []
    where = {"store": store(tmp_path, "fedgen"), "listener": heard.append}
    _, clients = play("fedgen", fedgen(), 2, **where)
    # Label counts of all, FedAvg's first round, the second round.
    assert reused(heard) == [False] * CLIENTS + [True] * CLIENTS + [False] * CLIENTS
    generator = starting_generator(start(), clients.run_spec)
    own, generators = (
        sum(t.numel() * t.element_size() for t in state_sent(net).values())
        for net in (start(), generator)
    )
    assert clients.bytes_up == dict.fromkeys(range(CLIENTS), 2 * own + 80)
    assert clients.bytes_down == dict.fromkeys(range(CLIENTS), own + generators + 10)


def test_who_takes_part_in_no_round_is_not_asked_for_label_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else clients would learn from features of classes that the generator has never learned."""
    there, heard = range(CLIENTS - 1), list[dict[str, Tensor]]()
    real = LocalFedGen.recipe

    def watched(self: LocalFedGen, inputs: TaskInput) -> Recipe:
        heard.append(inputs.payload)
        return real(self, inputs)

    monkeypatch.setattr(LocalFedGen, "recipe", watched)
    _, clients = play("fedgen", fedgen(newcomers=1), 2)
    assert not clients.bytes_up[CLIENTS - 1]
    held = torch.stack([torch.bincount(samples(k)[1], minlength=10) for k in there]).sum(0) > 0
    assert torch.equal(heard[-1]["held"], held)


def test_the_generator_is_the_papers() -> None:
    convnet = build_classifier("convnet", (3, 32, 32), 10)
    run_spec = RunSpec.of_images((3, 32, 32), num_classes=10, seed=0)
    generator = starting_generator(convnet, run_spec)
    assert sum(p.numel() for p in generator.parameters()) == 537_856
    assert sum(p.numel() for p in convnet.parameters()) < 537_856
    x = asked(torch.tensor([2, 0]), 3, torch.Generator())
    assert x.shape == (2, NOISE + 3)
    assert x[:, NOISE:].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert x[:, :NOISE].min() >= 0
    assert x[:, :NOISE].max() < 1


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_round_trains_the_generator_on_the_classes_that_are_held(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against torch's own optimisers over the same batches."""
    seen: list[LastLayers] = []
    real = GenerationLoss.__call__

    def watched(self: GenerationLoss, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        assert isinstance(model, LastLayers)
        seen.append(model)
        return real(self, model, batch)

    monkeypatch.setattr(GenerationLoss, "__call__", watched)
    own = fedgen(WITHOUT_NORM, generator=replace(SHORT, optimizer=name))
    clients, _ = federation("fedgen", own)
    counts = torch.stack([torch.bincount(samples(k)[1], minlength=10) for k in range(CLIENTS)])
    play("fedgen", own, 1)
    layers = seen[0]
    torch.testing.assert_close(layers.shares, counts / counts.sum(0).clamp(min=1))

    model = starting_classifier(plain(own.classifier), clients.run_spec)
    twin = LastLayers(
        starting_generator(model, clients.run_spec), layers.weight, layers.bias, layers.shares
    ).train()
    stream = torch_generator(0, "fedgen/classes")
    held = (counts.sum(0) > 0).nonzero().squeeze(1)
    labels = held[torch.randint(len(held), (32,), generator=stream)]
    x = asked(labels, 10, stream)
    kind = optim.Adam if name == "adam" else partial(optim.SGD, momentum=0.9)
    optimizer = kind(twin.generator.parameters(), lr=3e-4 * 0.98**0, weight_decay=0.01)
    order = torch.Generator().manual_seed(seed_for(0, "generator/order"))
    for rows in torch.randperm(32, generator=order).split(8):
        batch = {"images": x[rows], "labels": labels[rows], "noise": x[rows, :NOISE]}
        optimizer.zero_grad()
        real(GenerationLoss(), twin, batch).backward()
        optimizer.step()
    for ours, theirs in zip(
        layers.generator.parameters(), twin.generator.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_client_trains_by_the_plain_loop() -> None:
    """Algorithm 1, lines 6 to 8, over the same batches and the same generated features."""
    number = 4
    local = LocalFedGen(model="cnn", width=0.2, epochs=3, lr=0.05, batch_size=8, taught_epochs=2)
    model = starting_classifier(plain(local), PROBLEM)
    generator = starting_generator(model, PROBLEM).eval()
    held = torch.tensor([True, False, True])
    data = shard(6, 7, 5)
    inputs = task_input(local, data)
    own = {**prefixed("classifier", model), **prefixed("generator", generator)}
    sent = {n: t.clone() for n, t in own.items()} | {"held": held}
    inputs = type(inputs)(**{**vars(inputs), "payload": sent, "round": number})
    found = local.task(inputs).tensors

    sgd = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch_generator(0, in_round("local/order", number), 0)
    stream = torch_generator(0, in_round("local/features", number), 0)
    for epoch in range(3):
        for rows in torch.randperm(18, generator=order).split(8):
            labels = data.labels[rows]
            drawn = torch.tensor([0, 2])[torch.randint(2, (len(rows),), generator=stream)]
            with torch.no_grad():
                generated = generator(asked(drawn, 3, stream))
                of_label = generator(asked(labels, 3, stream))
            logits = model(data.images[rows])
            loss = F.cross_entropy(logits, labels)
            if epoch < 2:
                answers = model.classifier(of_label).softmax(1).detach()
                apart = (answers * (answers.log() - logits.log_softmax(1))).sum(1).mean()
                recognised = F.cross_entropy(model.classifier(generated), drawn)
                loss = loss + 10 * 0.98 ** (number - 1) * (recognised + apart)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[f"classifier.{name}"], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [{"num_large": 2}, {"prototypes": ("cnn", "convnet")}])
def test_several_architectures_are_refused_by_name(bad: dict[str, Any]) -> None:
    own = type(fedgen())(**{"classifier": LocalFedGen(**WITHOUT_NORM), **bad})
    spec = RunSpec.of_images((1, 8, 8), num_classes=10, seed=0)
    with pytest.raises(UserError, match=r"num_large must be all clients \(4\) or left out"):
        get_method("fedgen").assign(own, CLIENTS, spec)


# The generator's loss, and its fit on one rank and on several.


def heads(clients: int = 3, classes: int = 4, features: int = 6) -> LastLayers:
    torch.manual_seed(0)
    generator = FeatureGenerator(features, classes)
    shares = torch.rand(clients, classes)
    return LastLayers(
        generator, torch.randn(clients, classes, features), torch.randn(clients, classes), shares
    )


def test_the_generators_loss_is_the_papers_with_loops() -> None:
    layers, labels = heads(), torch.tensor([0, 3, 3, 1, 2])
    x = asked(labels, 4, torch.Generator().manual_seed(1))
    layers.eval()
    batch = {"images": x, "labels": labels, "noise": x[:, :NOISE]}
    z = layers.generator(x)
    recognised = torch.zeros(())
    for i, y in enumerate(labels):
        for k in range(3):
            logits = layers.weight[k] @ z[i] + layers.bias[k]
            recognised -= layers.shares[k, y] * (logits.softmax(0)[y]).log() / len(labels)
    products = torch.zeros(())
    for i in range(5):
        for j in range(5):
            noise = ((x[i, :NOISE] - x[j, :NOISE]) ** 2).mean()
            products += noise * (z[i] - z[j]).abs().mean() / 25
    expected = recognised + (-products).exp()
    torch.testing.assert_close(GenerationLoss()(layers, batch), expected)


LABELS = torch.arange(16) % 4


def data() -> dict[str, Tensor]:
    x = asked(LABELS, 4, torch.Generator().manual_seed(1)).double()
    return {"images": x, "labels": LABELS, "noise": x[:, :NOISE]}


def fitted(model: LastLayers, group: Group | None = None) -> None:
    """A fit of two epochs, the last batch of which has one sample less than a rank for each."""
    config = GeneratorFitConfig(epochs=2, batch_size=7)
    spec = FitSpec(
        model=model,
        columns={},
        loss=GenerationLoss(),
        config=config,
        stage="g",
        streams="g",
        tested=False,
    )
    list(Fit(spec, data(), seed=0, group=group).epochs())


def test_the_number_of_ranks_does_not_change_the_answer() -> None:
    """BatchNorm, and distances of features that other ranks made."""
    expected = heads().double()
    fitted(expected)
    models = [heads().double() for _ in range(3)]
    on_ranks(3, lambda group: fitted(models[group.rank], group=group))
    for model in models:
        for name, tensor in expected.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-9, atol=1e-9)


def test_only_the_generator_learns() -> None:
    before, model = heads().double(), heads().double()
    fitted(model)
    for name in ("weight", "bias", "shares"):
        assert torch.equal(getattr(model, name), getattr(before, name))
    assert not torch.equal(model.generator.layers[0].weight, before.generator.layers[0].weight)
