"""What is wrong with a data set's files is refused in one line, before anything trains on them."""

import struct
from pathlib import Path

import numpy as np
import pytest

from fl.data.datasets import load
from fl.data.files import read_torchvision, remove_damaged
from fl.errors import UserError
from tests.fl.data.fake_files import fake_images, write_cifar, write_idx, write_idx_family

IMAGES = "MNIST/raw/train-images-idx3-ubyte"
LABELS = "MNIST/raw/t10k-labels-idx1-ubyte"


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A root with a whole MNIST below it."""
    write_idx_family(tmp_path, "mnist")
    return tmp_path


def refused(root: Path, why: str = f"damaged: {IMAGES}", name: str = "mnist") -> None:
    with pytest.raises(UserError) as caught:
        load(name, root)
    remedy = f"`onefold data prepare {name} --data-root {root}` fetches them"
    assert str(caught.value) == f"{name}: files in {root}: {why}; {remedy}"


def test_a_missing_file_is_refused_and_a_folder_is_no_file(mnist: Path) -> None:
    (mnist / LABELS).unlink()
    refused(mnist, f"missing: {LABELS}")
    (mnist / LABELS).mkdir()
    refused(mnist, f"missing: {LABELS}")
    (mnist / IMAGES).write_bytes(b"")
    refused(mnist, f"damaged: {IMAGES}; missing: {LABELS}")


@pytest.mark.parametrize("length", [0, 3, 10, 16, 1000, 47_055, 47_057])
def test_a_file_of_another_length_than_its_header_says_is_damaged(mnist: Path, length: int) -> None:
    whole = (mnist / IMAGES).read_bytes()
    assert len(whole) == 16 + 60 * 28 * 28 == 47_056
    (mnist / IMAGES).write_bytes((whole + b"\0")[:length])
    refused(mnist)
    remove_damaged("mnist", mnist)
    assert len([*(mnist / "MNIST/raw").iterdir()]) == 3
    assert not (mnist / IMAGES).exists()


@pytest.mark.parametrize("images", [fake_images(60, 28), fake_images(60, 28, 28)[:0]], ids=len)
def test_images_without_sides_and_none_at_all_are_damage(mnist: Path, images: np.ndarray) -> None:
    write_idx(mnist / IMAGES, images)
    refused(mnist)


def test_values_of_another_type_are_damage(mnist: Path) -> None:
    header = struct.pack(">4I", 0xC03, 60, 28, 28)  # 32 bits each
    (mnist / IMAGES).write_bytes(header + bytes(4 * 60 * 28 * 28))
    refused(mnist)


def test_images_of_another_size_are_refused(mnist: Path) -> None:
    write_idx(mnist / IMAGES, fake_images(60, 8, 8))
    with pytest.raises(
        UserError, match=r"mnist: images of shape \(1, 8, 8\); .*, in train-images-idx3-ubyte, "
    ):
        load("mnist", mnist)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_changed_byte_in_cifar_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_cifar(tmp_path, name, monkeypatch)
    path = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(tmp_path, f"damaged: {path.relative_to(tmp_path)}", name)


def test_a_file_the_system_will_not_open_is_reported_in_its_words(
    mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", IMAGES)

    monkeypatch.setattr("torchvision.datasets.mnist.read_image_file", refuse)
    refused(mnist, why=f"[Errno 13] Permission denied: '{IMAGES}'")


@pytest.mark.parametrize("error", [MemoryError, ImportError])
def test_files_are_not_blamed_for_what_is_no_fault_of_theirs(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("torchvision.datasets.MNIST", fails)
    with pytest.raises(error):
        read_torchvision("mnist", tmp_path, train=True)
