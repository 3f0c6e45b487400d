"""Measures of synthetic samples: the Fréchet distance, the oracle, the teachers."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor

from fl import sample_quality
from fl.json_files import JsonObject
from fl.sample_quality import (
    ask,
    ask_oracle,
    describe_oracle,
    describe_teacher,
    feature_network,
    frechet_distance,
    measure,
)
from tests.fl.devices import EXACT, Where, on_both
from tests.fl.methods.tiny import tiny_data
from tests.pretended_gpu import pretended_gpus


def test_the_distance_is_that_of_its_definition() -> None:
    stream = np.random.default_rng(0)
    one = stream.normal(size=(60, 5)) @ stream.normal(size=(5, 5))
    other = 1 + stream.normal(size=(40, 5)) @ stream.normal(size=(5, 5))
    first, second = np.cov(one.T), np.cov(other.T)
    means = np.sum((one.mean(0) - other.mean(0)) ** 2)
    expected = means + np.trace(first + second - 2 * sqrtm(first @ second).real)
    found = frechet_distance(torch.from_numpy(one), torch.from_numpy(other))
    assert found == pytest.approx(expected)
    assert frechet_distance(torch.from_numpy(one), torch.from_numpy(one)) == pytest.approx(0)


def test_blurred_images_lie_between_real_ones_and_noise() -> None:
    data = tiny_data(train=240)
    images = torch.from_numpy(data.train.images).float() / 255
    blurred = torch.nn.functional.avg_pool2d(images, 5, stride=1, padding=2)
    synthetic = {"images": torch.cat([images, blurred]), "kept": torch.arange(240)}
    found = measure(data.train, 10, synthetic, torch.device("cpu"))
    assert found["kept"] == pytest.approx(0, abs=1e-6)
    assert found["real"] < found["generated"] < found["noise"]
    assert "not InceptionV3" in found["features"]


@pytest.mark.gpu
def test_a_gpu_measures_the_same_distances() -> None:
    data = tiny_data(train=48)

    def work(where: Where) -> JsonObject:
        images = torch.from_numpy(data.train.images).float().to(where.device) / 255
        kept = torch.arange(20, device=where.device)
        return measure(data.train, 10, {"images": images.flip(3), "kept": kept}, where.device)

    on_cpu, on_gpu = on_both(work)
    assert on_cpu.pop("features") == on_gpu.pop("features")
    assert on_gpu == pytest.approx(on_cpu, rel=1e-5 if EXACT else 1e-3)  # eigenvalues


def test_a_gpus_features_are_brought_to_the_host() -> None:
    """Where they may be more than it has memory for."""
    with pretended_gpus():
        network = feature_network(1).to("cuda")
        assert ask(network, torch.rand(3, 1, 28, 28), 2).device.type == "cpu"


def test_labels_are_confirmed_where_they_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real images as synthetic ones, of which the second half have wrong labels."""
    monkeypatch.setattr(sample_quality, "STEPS", 100)
    data = tiny_data(train=300, test=100)
    images = torch.from_numpy(data.train.images).float() / 255
    labels = torch.from_numpy(data.train.labels).clone()
    teacher = 8.0 * torch.nn.functional.one_hot(labels, 10)
    labels[150:] = (labels[150:] + 1) % 10
    synthetic = {"images": images, "labels": labels, "kept": torch.arange(300)}
    found = ask_oracle(data, {**synthetic, "teacher_logits": teacher}, torch.device("cpu"))
    assert found["accuracy"] > 0.7
    assert found["agreement"] == pytest.approx(0.5, abs=0.1)
    assert found["teacher"]["agreement"] > 0.85
    assert found["teacher"]["agreement_where_confirmed"] > 0.95


@pytest.mark.gpu
def test_a_gpus_oracle_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_quality, "STEPS", 3)
    data = tiny_data(train=48, test=20)

    def work(where: Where) -> dict[str, float]:
        images = torch.from_numpy(data.train.images).float().to(where.device) / 255
        labels = torch.from_numpy(data.train.labels).to(where.device)
        kept = torch.arange(20, device=where.device)
        synthetic = {"images": images, "labels": labels, "kept": kept}
        return ask_oracle(data, synthetic, where.device)

    on_cpu, on_gpu = on_both(work)
    assert on_gpu == pytest.approx(on_cpu, rel=1e-5 if EXACT else 1e-3)


def test_a_teacher_is_described_by_agreement_and_confidence() -> None:
    sure, unsure = [8.0, 0, 0, 0], [0.1, 0, 0, 0]
    logits = torch.tensor([sure, sure, unsure, unsure])
    said = describe_teacher(logits, torch.tensor([0, 1, 0, 2]))
    surest, least = torch.softmax(torch.tensor([sure, unsure]), 1)[:, 0].tolist()
    assert said["agreement"] == pytest.approx(0.5)
    assert said["confidence"] == pytest.approx((surest + least) / 2)
    assert said["confidence_when_wrong"] == pytest.approx((surest + least) / 2)
    assert describe_teacher(logits, torch.zeros(4))["confidence_when_wrong"] == 0


def sure_of(*classes: int) -> Tensor:
    return 8.0 * torch.nn.functional.one_hot(torch.tensor(classes), 4)


def test_a_wrong_synthetic_label_is_not_held_against_the_teacher() -> None:
    """Of six samples the oracle finds four labels right; the teacher answers as it does on five."""
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    oracle, teacher = sure_of(0, 1, 2, 3, 2, 3), sure_of(0, 1, 2, 0, 2, 3)
    assert describe_teacher(teacher, labels)["agreement"] == pytest.approx(3 / 6)
    said = describe_oracle(oracle, labels, teacher)
    assert said["agreement"] == pytest.approx(4 / 6)
    assert said["teacher"]["agreement"] == pytest.approx(5 / 6)
    assert said["teacher"]["agreement_where_confirmed"] == pytest.approx(3 / 4)


def test_an_oracle_that_confirms_nothing_and_a_method_without_a_teacher() -> None:
    labels = torch.tensor([0, 0])
    said = describe_oracle(sure_of(1, 2), labels, sure_of(1, 1))
    assert said["agreement"] == 0
    assert said["teacher"]["agreement_where_confirmed"] == 0
    assert "teacher" not in describe_oracle(sure_of(1, 2), labels)
