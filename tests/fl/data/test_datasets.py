"""The data sets by name: read from their files, kept as arrays, or refused in one line."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fl.data import datasets
from fl.data.datasets import INFO, NAMES, Dataset, Split, enlarge, load, read_digits
from fl.errors import UserError
from fl.whole_files import cache_dir
from tests.fl.data.fake_files import (
    IDX_STEMS,
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


def test_what_is_known_without_files() -> None:
    assert NAMES[:5] == ("digits", "mnist", "fmnist", "emnist", "svhn")
    assert NAMES[5:] == ("cifar10", "cifar100", "cinic10")
    assert [INFO[name].num_classes for name in NAMES] == [10, 10, 10, 47, 10, 10, 100, 10]
    assert INFO["svhn"].inputs.image_shape == (3, 32, 32)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("digits", "cinic10")])
def test_images_and_labels_are_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name in IDX_STEMS:
        write_idx_family(tmp_path, name)
        expected, counts = fake_images(60, 28, 28)[:, None], (60, 20)
    elif name == "svhn":
        write_svhn(tmp_path, monkeypatch)
        expected, counts = fake_images(30, 3, 32, 32), (30, 10)
    else:
        write_cifar(tmp_path, name, monkeypatch)
        expected = fake_images(20, 3 * 32 * 32).reshape(20, 3, 32, 32)
        counts = (100 if name == "cifar10" else 20, 10)
    dataset = load(name, tmp_path)
    assert_sound(dataset)
    assert (len(dataset.train.labels), len(dataset.test.labels)) == counts
    upright = expected.transpose(0, 1, 3, 2) if name == "emnist" else expected
    assert np.array_equal(dataset.train.images[: len(upright)], upright)
    first = 1 if name == "svhn" else 0  # whose digit 0 is labelled 10
    assert np.array_equal(dataset.test.labels[:10], (np.arange(10) + first) % 10)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("digits", "cinic10")])
def test_missing_files_are_refused_with_their_remedy(tmp_path: Path, name: str) -> None:
    remedy = f"`onefold data prepare {name} --data-root {tmp_path}` fetches them"
    first = {
        "svhn": "test_32x32.mat, train_32x32.mat",
        "cifar10": "cifar-10-batches-py/batches.meta, .* and 2 more",
        "cifar100": "cifar-100-python/meta, cifar-100-python/test, cifar-100-python/train",
    }
    family = "EMNIST/raw/emnist-balanced-test-images" if name == "emnist" else "raw/t10k-images"
    files = first.get(name, f".*{family}-idx3-ubyte, .*")
    with pytest.raises(UserError) as caught:
        load(name, tmp_path)
    line = f"{name}: files in {tmp_path}: missing: {files}; {remedy}"
    assert re.fullmatch(line, str(caught.value))


@pytest.mark.parametrize(
    ("part", "labels", "line"),
    [
        ("t10k", np.arange(19) % 10, "mnist: 20 images but 19 labels, in t10k-images-idx3-ubyte, "),
        ("train", np.arange(60), r"mnist: labels 0\.\.59; allowed: 0\.\.9, in train-"),
    ],
)
def test_labels_of_other_data_are_refused(
    tmp_path: Path, part: str, labels: np.ndarray, line: str
) -> None:
    write_idx_family(tmp_path, "mnist")
    write_idx(tmp_path / f"MNIST/raw/{part}-labels-idx1-ubyte", labels)
    with pytest.raises(UserError, match=line):
        load("mnist", tmp_path)


def test_real_mnist(mnist_root: Path) -> None:
    dataset = load("mnist", mnist_root, max_train=5000)
    assert_sound(dataset)
    assert len(dataset.train.labels) == 5000
    assert len(dataset.test.labels) == 10_000
    assert dataset.test.labels[:5].tolist() == [7, 2, 1, 0, 4]


def test_the_kept_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.model_selection import train_test_split

    digits = datasets.load_digits()
    rows = np.arange(len(digits.target))
    splits = train_test_split(rows, test_size=0.2, random_state=0, stratify=digits.target)
    kept = read_digits()
    for chosen, part in zip(splits, ("train", "test"), strict=True):
        assert np.array_equal(kept[f"{part}_images"][:, 0], enlarge(digits.images[chosen]))
        assert np.array_equal(kept[f"{part}_labels"], digits.target[chosen])


IMAGES = f"{IDX_STEMS['mnist'][0]}-images-idx3-ubyte"


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The data sets that were read from their own files; the cache is empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found: list[str] = []
    read = datasets.read_torchvision

    def counted(name: str, root: Path, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
        if train:
            found.append(name)
        return read(name, root, train=train)

    monkeypatch.setattr(datasets, "read_torchvision", counted)
    return found


def arrays(dataset: Dataset) -> list[np.ndarray]:
    return [a for split in (dataset.train, dataset.test) for a in (split.images, split.labels)]


def test_files_are_read_once_and_give_the_same_arrays(tmp_path: Path, readings: list[str]) -> None:
    write_idx_family(tmp_path, "mnist")
    first, again = (load("mnist", tmp_path) for _ in range(2))
    assert readings == ["mnist"]
    for one, other in zip(arrays(first), arrays(again), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_files_that_changed_or_lie_elsewhere_are_read_anew(
    tmp_path: Path, readings: list[str]
) -> None:
    for root in (tmp_path / "a", tmp_path / "b"):
        write_idx_family(root, "mnist")
        load("mnist", root)
    assert len(readings) == 2
    before = (tmp_path / "a" / IMAGES).stat()
    write_idx(tmp_path / "a" / IMAGES, fake_images(60, 28, 28)[::-1])
    os.utime(tmp_path / "a" / IMAGES, ns=(0, before.st_mtime_ns + 1))
    changed = load("mnist", tmp_path / "a").train.images
    assert np.array_equal(changed[:, 0], fake_images(60, 28, 28)[::-1])
    (tmp_path / "b" / IMAGES).unlink()
    with pytest.raises(UserError, match="missing"):
        load("mnist", tmp_path / "b")


def flipped(content: bytes) -> bytes:
    """One bit of one pixel is another."""
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


@pytest.mark.parametrize(
    "broken", [lambda content: b"not what it was", lambda content: content[:-7], flipped]
)
def test_a_broken_file_in_the_cache_is_named_and_replaced(
    tmp_path: Path,
    readings: list[str],
    broken: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_idx_family(tmp_path, "mnist")
    expected = arrays(load("mnist", tmp_path))
    (file,) = (cache_dir() / "data").iterdir()
    file.write_bytes(broken(file.read_bytes()))
    for _ in range(2):
        for one, other in zip(arrays(load("mnist", tmp_path)), expected, strict=True):
            assert np.array_equal(one, other)
    assert readings == ["mnist"] * 2
    assert f"{file} is damaged" in caplog.text


def test_writing_to_the_arrays_leaves_the_file_alone(tmp_path: Path, readings: list[str]) -> None:
    write_idx_family(tmp_path, "mnist")
    load("mnist", tmp_path)
    load("mnist", tmp_path).train.images[:] = 7
    assert np.array_equal(load("mnist", tmp_path).train.images[:, 0], fake_images(60, 28, 28))
    assert readings == ["mnist"]


def test_without_a_place_to_keep_them_files_are_read_each_time(
    tmp_path: Path, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx_family(tmp_path, "mnist")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert len(load("mnist", tmp_path).train.labels) == 60
    assert readings == ["mnist"] * 2


@pytest.mark.process
def test_who_finds_them_kept_does_not_import_torchvision(
    tmp_path: Path, readings: list[str]
) -> None:
    write_idx_family(tmp_path, "mnist")
    load("mnist", tmp_path)
    line = (
        "import sys; from pathlib import Path; from fl.data.datasets import load; "
        f"load('mnist', Path({str(tmp_path)!r})); print('torchvision' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
