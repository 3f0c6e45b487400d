"""DynaFed: FedAvg while it follows the path, images that are learned once, and their use."""

import pytest
import torch

from fl.errors import UserError
from fl.fusion.fit import FitConfig
from fl.methods import dynafed
from fl.methods.dynafed import DynaFedConfig, MatchingConfig, SoftLabels
from fl.training.classifier import ClassifierConfig
from tests.fl.methods.personal_runs import LOCAL, fedavg, ledgers, model_of, play
from tests.fl.toy import same_bits

FEW = MatchingConfig(images_per_class=1, iterations=2, inner_steps=2)


def config(**changes: object) -> DynaFedConfig:
    local = ClassifierConfig(model="m1", width=1.0, momentum=0.9, **LOCAL)
    fit = FitConfig(epochs=2, lr=1e-3, batch_size=8)
    values = {"classifier": local, "trajectory": 3, "matching": FEW, "fit": fit, **changes}
    return DynaFedConfig(**values)  # type: ignore[arg-type]


def test_while_it_follows_the_path_it_is_fedavg() -> None:
    expected, theirs = fedavg(weighting="uniform")
    ours, clients = play("dynafed", config())
    assert same_bits(model_of(ours), model_of(expected))
    assert ledgers(clients) == ledgers(theirs)


def test_images_are_learned_once_and_trained_on_in_every_later_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned, used = [], []
    real, train = dynafed.learn_images, dynafed.train_on_images

    def learning(*args: object) -> object:
        learned.append(real(*args))  # type: ignore[arg-type]
        return learned[-1]

    def training(model: object, data: dict[str, torch.Tensor], *args: object) -> None:
        used.append(dict(data))
        train(model, data, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(dynafed, "learn_images", learning)
    monkeypatch.setattr(dynafed, "train_on_images", training)
    ours, clients = play("dynafed", config(), 5)
    (images,) = learned
    assert images["images"].shape == (10, 1, 28, 28)  # type: ignore[index]
    torch.testing.assert_close(images["labels"].sum(1), torch.ones(10))  # type: ignore[index]
    assert len(used) == 2
    assert all(same_bits(own, images) for own in used)  # type: ignore[arg-type]
    expected, theirs = fedavg(5, weighting="uniform")
    assert not same_bits(model_of(ours), model_of(expected))
    assert clients.bytes_up == theirs.bytes_up


def test_soft_labels_that_are_one_hot_give_cross_entropy() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    batch = {"images": logits, "labels": torch.nn.functional.one_hot(labels, 4).float()}
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(SoftLabels()(torch.nn.Identity(), batch), expected)


def test_a_path_that_is_too_short_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="trajectory must be at least 3"):
        config(trajectory=2)
