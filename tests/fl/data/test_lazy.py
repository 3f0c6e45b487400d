"""Samples that are read when needed, and transforms that are drawn anew in each epoch."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fl.data.lazy import Lazy
from fl.data.own import as_dataset
from fl.data.shard import Shard, shard_digest
from fl.errors import UserError
from fl.inputs import Inputs

LABELS = np.arange(40) % 4
VALUES = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
STREAMS = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),
    "python": random.random,
}


class Noisy:
    """Rows of a table with noise from one of the three libraries' global streams."""

    def __init__(self, library: str, scale: float = 0.1) -> None:
        self.draw, self.scale, self.read = STREAMS[library], scale, 0

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        self.read += 1
        return VALUES[row] + np.float32(self.scale * self.draw()), int(LABELS[row])


def shard_of(data: object) -> Shard:
    train = as_dataset("d", data).train
    return Shard.from_split(train, np.arange(len(train.labels)), 4)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("library", STREAMS)
def test_a_random_transform_is_drawn_anew_by_the_clients_own_stream(library: str) -> None:
    shard, rows = shard_of(Noisy(library)), torch.arange(8)
    one = stream()
    first, second = shard.batch(rows, one), shard.batch(rows, one)
    assert not torch.equal(first, second)
    assert torch.equal(shard.batch(rows, stream()), first)
    assert not torch.equal(shard.batch(rows, stream(1)), first)
    assert torch.equal(shard.images, shard_of(Noisy(library)).images)


def test_reading_leaves_the_global_streams_as_they_were() -> None:
    shard = shard_of(Noisy("torch"))
    expected = [torch.get_rng_state().clone(), np.random.get_state()[1].copy(), random.getstate()]
    shard.batch(torch.arange(4), stream())
    found = [torch.get_rng_state(), np.random.get_state()[1], random.getstate()]
    assert torch.equal(found[0], expected[0])  # type: ignore[arg-type]
    assert np.array_equal(found[1], expected[1])
    assert found[2] == expected[2]


def test_data_without_chance_is_read_once_into_memory() -> None:
    data = Noisy("torch")
    data.draw = lambda: 1.0
    train = as_dataset("d", data).train
    assert isinstance(train.images, np.ndarray)
    read = data.read
    Shard.from_split(train, np.arange(5), 4).batch(torch.arange(5), stream())
    assert data.read == read


def test_nothing_but_digests_and_labels_is_kept_of_what_is_read_when_needed() -> None:
    data = Noisy("numpy")
    dataset = as_dataset("d", (data, data))
    assert isinstance(dataset.train.images, Lazy)
    assert (dataset.inputs.shape, dataset.inputs.kind, dataset.num_classes) == ((3,), "floats", 4)
    assert np.array_equal(dataset.train.labels, LABELS)
    before = data.read
    dataset.train.images.read(np.array([3, 7]), 0)
    assert data.read == before + 2


class Drawing(Noisy):
    """Gives a sample by chance, whichever is asked for."""

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return super().__getitem__(random.randrange(len(self)))


class Shuffling(Noisy):
    """Is in another order behind its last sample."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.order = list(range(len(LABELS)))

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        found = super().__getitem__(self.order[row])
        if row == len(LABELS) - 1:
            self.order.reverse()
        return found


class LateNoise(Noisy):
    """Only the second half of the rows is noisy, as where a clean and a noisy set are joined."""

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return super().__getitem__(row) if row >= 20 else (VALUES[row], int(LABELS[row]))


@pytest.mark.parametrize("library", STREAMS)
def test_transforms_of_later_samples_are_drawn_anew_too(library: str) -> None:
    shard, one = shard_of(LateNoise(library)), stream()
    assert not torch.equal(shard.batch(torch.arange(32), one), shard.batch(torch.arange(32), one))
    assert torch.equal(shard.images, shard_of(LateNoise(library)).images)


class Bright:
    """Colour images of floats, their channels last, that are drawn anew at each reading."""

    def __init__(self, most: float) -> None:
        self.most = most

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return np.random.rand(5, 4, 3) * self.most, int(LABELS[row])


def test_images_of_floats_have_their_channels_first_as_those_of_an_array() -> None:
    assert shard_of(Bright(1.0)).batch(torch.arange(2), stream()).shape == (2, 3, 5, 4)
    array = np.stack([Bright(1.0)[row][0] for row in range(40)])
    assert as_dataset("d", Bright(1.0)).inputs == as_dataset("d", (array, LABELS)).inputs
    # What is no image keeps its axes.
    assert shard_of(Bright(2.0)).batch(torch.arange(2), stream()).shape == (2, 5, 4, 3)


class OfItsOwn(Noisy):
    """Draws its noise from a stream that no seed of the run's reaches."""

    def __init__(self) -> None:
        super().__init__("numpy")
        own = np.random.default_rng(0)
        self.draw = lambda: float(own.random())

    def noise(self, sample: Tensor) -> Tensor:
        return sample + self.draw()


def test_noise_that_the_seed_does_not_reach_is_told(caplog: pytest.LogCaptureFixture) -> None:
    shard_of(Noisy("numpy"))
    assert not caplog.messages
    shard_of(OfItsOwn())
    assert "so no run can be repeated" in caplog.text


def test_an_index_that_stands_for_several_samples_is_refused() -> None:
    with pytest.raises(UserError, match=r"data d: sample \d+ now has the label \d; it had \d when"):
        as_dataset("d", Drawing("python"))
    shuffled = as_dataset("d", (Shuffling(), Noisy("torch"))).train.images
    assert isinstance(shuffled, Lazy)
    with pytest.raises(ValueError, match="the data: sample 1 now has the label 2; it had 1"):
        shuffled.read(np.array([1]), 0)


def test_other_transforms_make_another_digest() -> None:
    train = [as_dataset("d", Noisy("python", scale)).train for scale in (0.1, 0.1, 0.2)]
    one, same, other = (shard_digest(split, np.arange(10)) for split in train)
    assert one == same
    assert one != other
    assert shard_digest(train[0], np.arange(9)) != one


def test_an_array_in_a_file_is_read_by_rows_to_the_same_samples(tmp_path: Path) -> None:
    for name, array in {
        "images": np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8),
        "tokens": np.random.default_rng(0).integers(0, 9, (40, 7)),
        "table": VALUES,
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
        there = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        whole, by_row = (as_dataset("d", ((x, LABELS), (array, LABELS))) for x in (array, there))
        assert isinstance(by_row.train.images, Lazy), name
        assert by_row.inputs == whole.inputs
        rows = torch.tensor([7, 1, 39])
        one, other = (Shard.from_split(d.train, np.arange(40), 4) for d in (whole, by_row))
        assert torch.equal(one.batch(rows, stream()), other.batch(rows, stream()))
        assert torch.equal(one.images, other.images)
        assert shard_digest(by_row.train, np.arange(5)) != shard_digest(
            by_row.train, np.arange(5, 10)
        )


def test_bytes_of_0_and_1_are_refused_in_a_file_too(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(40, 64, dtype=np.uint8).reshape(40, 1, 8, 8))
    with pytest.raises(UserError, match="uint8 samples are read as images"):
        as_dataset("d", (np.load(tmp_path / "a.npy", mmap_mode="r"), LABELS))


def test_arrays_in_files_that_must_be_turned_are_read_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((40, 8, 8, 3), np.uint8) + 7)
    dataset = as_dataset("d", (np.load(tmp_path / "a.npy", mmap_mode="r"), LABELS))
    assert dataset.inputs == Inputs((3, 8, 8))
    assert isinstance(dataset.train.images, np.ndarray)


def test_changes_to_a_copy_of_an_array_in_a_file_are_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES)
    changed = np.load(tmp_path / "a.npy", mmap_mode="c")
    changed *= -1
    found = as_dataset("d", ((changed, LABELS), (VALUES, LABELS))).train.images
    assert np.array_equal(np.asarray(found), -VALUES)


def test_clients_with_transforms_of_their_own_are_one_data_set() -> None:
    dataset = as_dataset("d", {"a": Noisy("torch", 0.1), "b": Noisy("numpy", 5.0)})
    train, owners = dataset.train, dataset.train.clients
    assert isinstance(train.images, Lazy)
    assert owners is not None
    for client, scale in ((0, 0.1), (1, 5.0)):
        own = np.flatnonzero(owners == client)
        read = [train.images.read(own, seed) for seed in (1, 2)]
        moved = np.abs(read[0] - read[1])
        assert 0 < moved.max() < scale


def test_samples_that_change_their_form_are_refused() -> None:
    class Growing(Noisy):
        def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
            found, label = super().__getitem__(row)
            return np.resize(found, 3 + (row > 20)), label

    with pytest.raises(UserError, match="one shape"):
        as_dataset("d", Growing("torch"))

    class Broken(Noisy):
        def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
            found, label = super().__getitem__(row)
            return found / 0 if row == 30 else found, label

    with pytest.raises(UserError, match="NaN or infinite"), np.errstate(divide="ignore"):
        as_dataset("d", Broken("torch"))


def test_augment_changes_each_sample_by_itself_and_nothing_that_is_tested() -> None:
    def shifted(sample: Tensor) -> Tensor:
        return sample + torch.rand(())

    dataset = as_dataset("d", (VALUES, LABELS), shifted)
    shard = Shard.from_split(dataset.train, np.arange(20), 4)
    moved = shard.batch(torch.arange(20), stream()) - shard.images
    assert len({round(float(m), 5) for m in moved[:, 0]}) == 20
    assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-6)
    assert dataset.test.augment is None
    plain = as_dataset("d", (VALUES, LABELS)).train
    assert torch.equal(Shard.from_split(plain, np.arange(20), 4).images, shard.images)


def test_augment_is_part_of_what_tells_samples_from_others() -> None:
    def digest(factor: float | None) -> str:
        own = None if factor is None else lambda sample: sample * factor
        return shard_digest(as_dataset("d", (VALUES, LABELS), own).train, np.arange(5))

    assert len({digest(None), digest(1.0), digest(2.0)}) == 3
    assert digest(2.0) == digest(2.0)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (3, "expected a function, got int"),
        (lambda sample: sample[:1], r"got torch.float32 \(1,\) for a sample"),
        (lambda sample: sample.double(), "got torch.float64"),
        (OfItsOwn().noise, "augment has its own random generator"),
        (lambda sample: sample.no_such(), "augment fails on a sample of shape .* AttributeError"),
    ],
)
def test_an_augment_that_cannot_be_used_is_refused(augment: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        as_dataset("d", (VALUES, LABELS), augment)  # type: ignore[arg-type]
