"""The data sets by name: what is read from their files, and what is refused in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fl.data.datasets import INFO, NAMES, Dataset, Split, dataset_info, enlarge, load
from fl.errors import UserError
from tests.fl.data.fake_files import (
    fake_images,
    write_cifar,
    write_idx,
    write_idx_family,
    write_svhn,
)


def assert_sound(dataset: Dataset) -> None:
    for split in (dataset.train, dataset.test):
        assert split.images.dtype == np.uint8
        assert split.images.flags.c_contiguous
        assert split.images.shape == (len(split.labels), *dataset.image_shape)
        assert split.labels.dtype == np.int64
        assert split.labels.min() >= 0
        assert split.labels.max() < dataset.num_classes


def pairs(split: Split) -> list[tuple[bytes, int]]:
    return [(i.tobytes(), int(label)) for i, label in zip(split.images, split.labels, strict=True)]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", Path("unused"))


def test_digits_are_the_whole_set_split_in_two(digits: Dataset) -> None:
    assert_sound(digits)
    assert digits.image_shape == (1, 28, 28)
    assert len(digits.train.labels) == 1437
    assert len(digits.test.labels) == 360
    assert digits.train.images.max() == 255
    assert digits.train.images.min() == 0


def test_digits_split_is_stratified(digits: Dataset) -> None:
    train = np.bincount(digits.train.labels)
    test = np.bincount(digits.test.labels)
    assert np.abs(test - 0.2 * (train + test)).max() < 1


def test_digits_are_the_same_every_time(digits: Dataset) -> None:
    again = load("digits", Path("unused"))
    assert np.array_equal(again.train.images, digits.train.images)
    assert np.array_equal(again.test.labels, digits.test.labels)


def test_enlarging_keeps_flat_images_flat_and_orientation() -> None:
    assert (enlarge(np.full((1, 8, 8), 16.0)) == 255).all()
    assert (enlarge(np.full((1, 8, 8), 8.0)) == 128).all()
    corner = np.zeros((1, 8, 8))
    corner[0, 0, 7] = 16
    large = enlarge(corner)[0]
    assert large[0, 27] == 255
    assert large[:14].sum() == large.sum() == large[:, 14:].sum()


def test_enlarging_agrees_with_torch() -> None:
    images = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.float64)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(images)[:, None], size=(28, 28), mode="bilinear"
    )
    difference = enlarge(images) - expected[:, 0].numpy() * 255 / 16
    assert np.abs(difference).max() < 0.501


def test_subsets_are_fixed_nested_and_paired(digits: Dataset) -> None:
    small = load("digits", Path("unused"), max_train=50, max_test=20)
    large = load("digits", Path("unused"), max_train=100)
    assert_sound(small)
    assert len(small.train.labels) == 50
    assert len(small.test.labels) == 20
    assert len(large.test.labels) == 360
    assert np.array_equal(small.train.images, large.train.images[:50])
    assert set(pairs(small.train)) <= set(pairs(digits.train))
    assert len(np.unique(small.train.labels)) > 5


@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_subset_is_refused(size: int) -> None:
    with pytest.raises(UserError, match=rf"max_train {size} for digits; allowed: 1 and more"):
        load("digits", Path("unused"), max_train=size)


def test_a_subset_larger_than_its_split_is_all_of_it() -> None:
    """A preset for a large data set serves a small one."""
    whole, larger = (load("digits", Path("unused"), max_train=size) for size in (1437, 1438))
    assert len(whole.train.labels) == 1437
    assert np.array_equal(whole.train.images, larger.train.images)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown data set 'minst'; valid: .*digits.*mnist"):
        load("minst", Path("unused"))
    with pytest.raises(UserError, match="unknown data set"):
        dataset_info("minst")


def test_what_is_known_without_files() -> None:
    assert NAMES[:5] == ("digits", "mnist", "fmnist", "emnist", "svhn")
    assert NAMES[5:] == ("cifar10", "cifar100", "cinic10")
    assert [INFO[name].num_classes for name in NAMES] == [10, 10, 10, 47, 10, 10, 100, 10]
    assert dataset_info("svhn").image_shape == (3, 32, 32)


@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_the_mnist_family_is_read_as_stored(tmp_path: Path, name: str) -> None:
    write_idx_family(tmp_path, name)
    dataset = load(name, tmp_path)
    assert_sound(dataset)
    assert np.array_equal(dataset.train.images[:, 0], fake_images(60, 28, 28))
    assert np.array_equal(dataset.test.labels, np.arange(20) % 10)


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    write_idx_family(tmp_path, "emnist")
    dataset = load("emnist", tmp_path)
    assert_sound(dataset)
    assert dataset.num_classes == 47
    assert np.array_equal(dataset.test.images[3, 0], fake_images(20, 28, 28)[3].T)


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path, monkeypatch)
    dataset = load("svhn", tmp_path)
    assert_sound(dataset)
    assert np.array_equal(dataset.train.images, fake_images(30, 3, 32, 32))
    assert np.array_equal(dataset.train.labels[:10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 0])


@pytest.mark.parametrize(("name", "train"), [("cifar10", 100), ("cifar100", 20)])
def test_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, train: int) -> None:
    write_cifar(tmp_path, name, monkeypatch)
    dataset = load(name, tmp_path)
    assert_sound(dataset)
    assert len(dataset.train.labels) == train
    assert np.array_equal(dataset.test.images[1].ravel(), fake_images(10, 3 * 32 * 32)[1])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("digits", "cinic10")])
def test_missing_files_are_named_with_their_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{name}: missing: {tmp_path}")
    assert f"`onefold data prepare {name} --data-root {tmp_path}`" in message
    assert "damaged" not in message


def test_as_many_labels_as_images_are_needed(tmp_path: Path) -> None:
    write_idx_family(tmp_path, "mnist")
    write_idx(tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte", np.arange(19) % 10)
    with pytest.raises(UserError, match="mnist: 20 images but 19 labels"):
        load("mnist", tmp_path)


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    write_idx_family(tmp_path, "mnist")
    write_idx(tmp_path / "MNIST/raw/train-labels-idx1-ubyte", np.arange(60))
    with pytest.raises(UserError, match=r"mnist: labels 0\.\.59 in its files; allowed: 0\.\.9"):
        load("mnist", tmp_path)


def test_real_mnist(mnist_root: Path) -> None:
    dataset = load("mnist", mnist_root, max_train=5000)
    assert_sound(dataset)
    assert len(dataset.train.labels) == 5000
    assert len(dataset.test.labels) == 10_000
    assert dataset.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
