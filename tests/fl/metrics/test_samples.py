"""The Fréchet distance against scipy's square root, and its order of better and worse images."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from fl.json_files import JsonObject
from fl.metrics.samples import FeatureNetwork, frechet_distance, measure
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
        network = FeatureNetwork(1, 10).to("cuda")
        assert network.describe(torch.rand(3, 1, 28, 28)).device.type == "cpu"
