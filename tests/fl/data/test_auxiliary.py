"""Auxiliary images: another data set, its shape made to fit, and nothing downloaded."""

from pathlib import Path

import pytest
import torch

from fl.data.datasets import AuxiliaryConfig, fit_shape, load_auxiliary
from fl.errors import UserError


@pytest.mark.parametrize(
    ("dataset", "own", "valid"),
    [
        ("digits", "digits", "mnist"),
        ("cifar10", "cinic10", "digits"),
        ("cinic10", "cifar10", "dig"),
    ],
)
def test_images_of_the_runs_own_data_set_are_refused(dataset: str, own: str, valid: str) -> None:
    with pytest.raises(UserError, match=f"the run's {own}, of other images; valid: {valid}"):
        load_auxiliary(AuxiliaryConfig(dataset=dataset), own, (1, 28, 28), Path())


def test_missing_files_are_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"auxiliary data: fmnist.*prepare fmnist") as error:
        load_auxiliary(AuxiliaryConfig(dataset="fmnist"), "digits", (1, 28, 28), tmp_path)
    assert "\n" not in str(error.value)


def test_gray_images_become_color_ones_of_the_runs_size() -> None:
    config = AuxiliaryConfig(dataset="digits", max_images=7)
    images = load_auxiliary(config, "cifar10", (3, 32, 32), Path())
    assert images.shape == (7, 3, 32, 32)
    assert torch.equal(images[:, 0], images[:, 2])
    assert 0 <= images.min() < 0.1 < 0.9 < images.max() <= 1


def test_color_images_become_gray_by_the_mean_of_their_channels() -> None:
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(fit_shape(images, (1, 8, 8))[:, 0], images.mean(1))
    assert fit_shape(images, (1, 4, 4)).shape == (2, 1, 4, 4)


def test_images_of_the_right_shape_stay_as_they_are() -> None:
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(fit_shape(images, (1, 28, 28)), images)
