"""FedGen's generator: its loss against loops, and its fit on one rank and on several."""

import torch
from torch import Tensor

from fl.fusion.fit import Fit, FitSpec
from fl.fusion.group import Group
from fl.methods.fedgen import (
    NOISE,
    FeatureGenerator,
    GenerationLoss,
    GeneratorFitConfig,
    LastLayers,
    asked,
)
from tests.fl.fusion.threads import on_ranks


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


def fitted(
    model: LastLayers, until: int = 2, state: bytes | None = None, group: Group | None = None
) -> Fit:
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
        state=state,
        until=until,
    )
    fit = Fit(spec, data(), seed=0, group=group)
    list(fit.epochs())
    return fit


def same(one: LastLayers, other: LastLayers, **close: float) -> None:
    for ours, theirs in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, **close)


def test_a_fit_can_be_continued() -> None:
    whole, halves = heads().double(), heads().double()
    fitted(whole)
    state = fitted(heads().double(), until=1).state()
    fitted(halves, state=state)
    same(whole, halves, rtol=0, atol=0)


def test_the_number_of_ranks_does_not_change_the_answer() -> None:
    """BatchNorm, and distances of features that other ranks made."""
    expected = heads().double()
    fitted(expected)
    models = [heads().double() for _ in range(3)]
    on_ranks(3, lambda group: fitted(models[group.rank], group=group))
    for model in models:
        same(model, expected, rtol=1e-9, atol=1e-9)


def test_only_the_generator_learns() -> None:
    before, model = heads().double(), heads().double()
    fitted(model)
    for name in ("weight", "bias", "shares"):
        assert torch.equal(getattr(model, name), getattr(before, name))
    assert not torch.equal(model.generator.layers[0].weight, before.generator.layers[0].weight)
