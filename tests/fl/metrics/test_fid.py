"""The Fréchet distance against scipy's square root, and its order of better and worse images."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from fl.metrics.fid import frechet_distance, measure
from tests.fl.methods.tiny import tiny_data


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
