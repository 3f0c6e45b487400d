"""Data sets kept as arrays: read once, and never taken for others."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fl.data import datasets
from fl.data.datasets import Dataset, load
from fl.whole_files import cache_dir
from tests.fl.data.fake_files import IDX_STEMS, fake_images, write_idx, write_idx_family

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
    with pytest.raises(datasets.UserError, match="missing"):
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


def test_who_finds_them_kept_does_not_import_torchvision(
    tmp_path: Path, readings: list[str]
) -> None:
    write_idx_family(tmp_path, "mnist")
    load("mnist", tmp_path)
    line = (
        "import sys; from pathlib import Path; from fl.data.datasets import load; "
        f"load('mnist', Path({str(tmp_path)!r})); print('torchvision' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
