"""What is wrong with a data set's files: each named, with its state, and none that is whole."""

import re
from pathlib import Path

import numpy as np
import pytest

from fl.data.datasets import NAMES
from fl.data.files import DAMAGED, MISSING, describe, find_problems
from tests.fl.data.fake_files import (
    IDX_STEMS,
    fake_images,
    write_cifar,
    write_idx,
    write_idx_family,
    write_svhn,
)

IMAGES = "MNIST/raw/train-images-idx3-ubyte"
LABELS = "MNIST/raw/t10k-labels-idx1-ubyte"


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A root with a whole MNIST below it."""
    write_idx_family(tmp_path, "mnist")
    return tmp_path


def found(root: Path, name: str = "mnist") -> dict[str, str]:
    """State of each file that cannot be used, by its path below the root."""
    problems = find_problems(name, root)
    return {str(path.relative_to(root)): state for path, state in problems.items()}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cinic10"])
def test_whole_files_have_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name in IDX_STEMS:
        write_idx_family(tmp_path, name)
    elif name == "svhn":
        write_svhn(tmp_path, monkeypatch)
    elif name != "digits":  # which come with the package
        write_cifar(tmp_path, name, monkeypatch)
    assert found(tmp_path, name) == {}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_an_empty_folder_lacks_every_file(tmp_path: Path, name: str) -> None:
    states = found(tmp_path, name)
    assert len(states) >= 2
    assert set(states.values()) == {MISSING}


def test_only_what_is_missing_is_named_and_a_folder_is_no_file(mnist: Path) -> None:
    (mnist / LABELS).unlink()
    assert found(mnist) == {LABELS: MISSING}
    (mnist / LABELS).mkdir()
    assert found(mnist) == {LABELS: MISSING}


@pytest.mark.parametrize("length", [0, 3, 10, 16, 1000, 47_055, 47_057])
def test_a_file_of_another_length_than_its_header_says_is_damaged(mnist: Path, length: int) -> None:
    whole = (mnist / IMAGES).read_bytes()
    assert len(whole) == 16 + 60 * 28 * 28 == 47_056
    (mnist / IMAGES).write_bytes((whole + b"\0")[:length])
    assert found(mnist) == {IMAGES: DAMAGED}


@pytest.mark.parametrize(
    "images", [fake_images(60, 8, 8), fake_images(60, 28), fake_images(60, 28, 28)[:0]], ids=len
)
def test_images_of_another_size_and_none_at_all_are_refused(
    mnist: Path, images: np.ndarray
) -> None:
    write_idx(mnist / IMAGES, images)
    assert found(mnist) == {IMAGES: DAMAGED}


def test_missing_and_damaged_files_are_listed_apart(tmp_path: Path) -> None:
    write_idx_family(tmp_path, "emnist")
    stem = tmp_path / IDX_STEMS["emnist"][1]
    Path(f"{stem}-images-idx3-ubyte").unlink()
    Path(f"{stem}-labels-idx1-ubyte").write_bytes(b"an error page")
    said = describe(find_problems("emnist", tmp_path))
    assert re.fullmatch(r"missing: \S+images\S+; truncated or damaged: \S+labels\S+", said)


def test_each_state_is_said_once_in_one_line() -> None:
    paths = [Path("a"), Path("b"), Path("c")]
    states = [DAMAGED, MISSING, DAMAGED]
    problems = dict(zip(paths, states, strict=True))
    assert describe(problems) == "truncated or damaged: a, c; missing: b"
    assert describe({}) == ""


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_changed_byte_in_cifar_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_cifar(tmp_path, name, monkeypatch)
    path = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert found(tmp_path, name) == {str(path.relative_to(tmp_path)): DAMAGED}


def test_a_file_the_system_will_not_open_is_reported_in_its_words(
    mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert found(mnist)[IMAGES] == "Permission denied"
