"""A user's data: objects, arrays, files, folders, and Hugging Face's names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset

from fl.data.catalogue import is_path, load, read_arrays, read_hugging_face, read_path, short_name
from fl.data.datasets import Dataset, Split
from fl.data.own import as_dataset
from fl.data.partition import PartitionConfig, hold_out, make_partition
from fl.errors import UserError

COLOUR = np.random.default_rng(0).integers(0, 256, (20, 3, 5, 6), dtype=np.uint8)
SMOOTH = np.random.default_rng(1).random((20, 3, 5, 6), dtype=np.float32)
"""No levels of 8 bits."""
LABELS = np.arange(20) % 4


class Listed:
    """A data set object of samples."""

    def __init__(self, samples: list[Any], **attributes: Any) -> None:
        self.samples = samples
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


@pytest.mark.parametrize(
    "images",
    [
        COLOUR,
        COLOUR.transpose(0, 2, 3, 1),
        COLOUR.astype(np.float64) / 255,
        torch.from_numpy(COLOUR).float() / 255,
    ],
    ids=["uint8", "channels last", "floats", "tensor"],
)
def test_images_in_any_common_form_are_the_same_bytes(images: Any) -> None:
    found = as_dataset("mine", ((images, LABELS), (images[:8], LABELS[:8])))
    assert np.array_equal(found.train.images, COLOUR)
    assert found.train.images.dtype == np.uint8
    assert np.array_equal(found.test.labels, LABELS[:8])
    assert (found.num_classes, found.image_shape) == (4, (3, 5, 6))


def test_gray_images_get_a_channel() -> None:
    assert as_dataset("mine", (COLOUR[:, 0], LABELS)).image_shape == (1, 5, 6)


def test_without_a_test_split_a_fifth_is_held_out_the_same_each_time() -> None:
    one, other = (as_dataset("mine", (COLOUR, LABELS)) for _ in range(2))
    assert (len(one.train.labels), len(one.test.labels)) == (16, 4)
    assert np.array_equal(one.test.images, other.test.images)
    both = np.concatenate([one.train.images, one.test.images]).reshape(20, -1)
    assert len(np.unique(both, axis=0)) == 20


@pytest.mark.parametrize("columns", [False, True])
def test_data_set_objects_have_pairs_or_columns_and_names_of_classes(columns: bool) -> None:
    pairs = list(zip(COLOUR.transpose(0, 2, 3, 1), LABELS.tolist(), strict=True))
    names = ("ant", "bee", "cat", "dog")
    if columns:
        rows = [{"img": image, "label": label} for image, label in pairs]
        features = {"img": None, "label": type("Labels", (), {"names": names})()}
        found = as_dataset("mine", {p: Listed(rows, features=features) for p in ("train", "test")})
    else:
        found = as_dataset("mine", {p: Listed(pairs, classes=names) for p in ("train", "test")})
    assert np.array_equal(found.train.images, COLOUR)
    assert found.class_names == names


def test_integers_in_the_other_order_of_bytes_are_the_same() -> None:
    tokens = np.arange(60).reshape(20, 3)
    found = as_dataset("d", (tokens.astype(tokens.dtype.newbyteorder()), LABELS)).train.images
    assert found.dtype.isnative
    assert np.array_equal(found, as_dataset("d", (tokens, LABELS)).train.images)


def test_names_of_classes_are_not_taken_from_what_may_have_other_labels() -> None:
    pairs = list(zip(COLOUR, (LABELS % 2).tolist(), strict=True))
    base = Listed(pairs, classes=("ant", "bee", "cat"))
    part = as_dataset("d", Subset(base, range(10)))  # type: ignore[arg-type]
    assert part.class_names == base.classes
    for data in (
        Listed(pairs, dataset=base),
        Listed(pairs, classes=base.classes, target_transform=abs),
    ):
        found = as_dataset("d", data)
        assert (found.num_classes, found.class_names) == (2, ())


def test_a_list_of_pillows_images_is_read_as_each_of_them() -> None:
    colours = [Image.fromarray(image.transpose(1, 2, 0)).convert("P") for image in COLOUR]
    pairs = as_dataset("d", list(zip(colours, LABELS.tolist(), strict=True)))
    assert pairs.image_shape == (3, 5, 6)
    assert np.array_equal(as_dataset("d", (colours, LABELS)).train.images, pairs.train.images)
    with pytest.raises(UserError, match="pixels of mode CMYK"):
        as_dataset("d", ([image.convert("CMYK") for image in colours], LABELS))


class InOnePlace(Listed):
    """Writes each sample over the one before."""

    def __init__(self, several: bool) -> None:
        super().__init__(list(COLOUR))
        self.place, self.several = np.empty_like(COLOUR[0]), several

    def __getitem__(self, index: int) -> Any:
        self.place[:] = self.samples[index]
        return ((self.place, self.place[0]) if self.several else self.place), LABELS[index]


@pytest.mark.parametrize("several", [False, True])
def test_samples_may_be_read_into_one_place(several: bool) -> None:
    found = as_dataset("d", InOnePlace(several))
    kept = np.concatenate([found.train.images, found.test.images])
    assert len(np.unique(kept, axis=0)) == len(np.unique(COLOUR, axis=0))


def test_a_data_set_stays_itself() -> None:
    found = as_dataset("mine", (COLOUR, LABELS))
    assert as_dataset("other", found) is found
    assert isinstance(found, Dataset)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (COLOUR, COLOUR.astype(np.float32)),
        (COLOUR, COLOUR.astype(np.int64)),
        (SMOOTH, 255 * SMOOTH),
        (2 * SMOOTH - 1, COLOUR),
    ],
)
def test_images_at_two_scales_are_refused_not_scored(train: np.ndarray, test: np.ndarray) -> None:
    """A model would be tested on values that it never saw, and have a plausible accuracy."""
    line = "the training samples are .* from|the test samples are .* from"
    with pytest.raises(UserError, match=line):
        as_dataset("x", ((train, LABELS), (test, LABELS)))
    splits = [as_dataset("x", ((same, LABELS), (same, LABELS))).train for same in (train, test)]
    with pytest.raises(UserError, match=line):
        as_dataset("x", Dataset("made by hand", *splits, num_classes=4))


@pytest.mark.parametrize("label", [-100, 4])
def test_a_data_set_made_by_hand_has_labels_of_its_classes_alone(label: int) -> None:
    good, bad = (Split(COLOUR, own) for own in (LABELS, np.where(LABELS == 3, label, LABELS)))
    for train, test in ((good, bad), (bad, good)):
        with pytest.raises(UserError, match=f"data x: label {label}; allowed: 0 "):
            as_dataset("x", Dataset("made by hand", train, test, num_classes=4))


def test_several_inputs_are_at_one_scale_too() -> None:
    one, other = (((images, SMOOTH[:, 0, 0]), LABELS) for images in (COLOUR, COLOUR.astype(float)))
    with pytest.raises(UserError, match=r"the training samples are images .* to 255"):
        as_dataset("x", (one, other))
    with pytest.raises(UserError, match="all clients need samples of one kind"):
        as_dataset("x", {"a": one, "b": other})


def test_floats_that_were_normalised_on_one_side_alone_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    as_dataset("x", ((COLOUR, LABELS), (SMOOTH, LABELS)))
    as_dataset("x", ((4 * SMOOTH - 2, LABELS), (5 * SMOOTH - 3, LABELS)))
    assert not caplog.messages
    for test in (SMOOTH, 255 * SMOOTH):
        as_dataset("x", ((4 * SMOOTH - 2, LABELS), (test, LABELS)))
        assert "were both normalised alike?" in caplog.messages.pop()
        caplog.clear()


def test_what_is_left_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    part = COLOUR, LABELS
    as_dataset("x", {"train": part, "validation": part, "test": part})
    assert "only train and test are used; ignored: validation" in caplog.messages.pop()
    as_dataset("x", Listed(list(zip(COLOUR, LABELS, strict=True)), classes=["cat", "dog"]))
    assert "2 class names, but labels up to 3" in caplog.messages.pop()
    as_dataset("x", [{"img": x, "label": y, "id": 3} for x, y in zip(COLOUR, LABELS, strict=True)])
    assert caplog.messages.pop() == "data x: left out, beside img and label: id"


@pytest.mark.parametrize("wide", [False, True])
def test_a_table_that_was_normalised_on_one_side_alone_is_told(
    wide: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By column: an income of thousands hides what was done to an age."""
    stream = np.random.default_rng(0)
    rows, labels = stream.normal([40, 3, 0.5], [12, 1, 0.2], (400, 3)), np.arange(400) % 2
    rows[:, 2] = stream.random(400) < 0.01  # seldom
    if wide:
        rows = np.hstack([rows, stream.lognormal(10, 2, (400, 1))])
    normal = (rows - rows.mean(0)) / rows.std(0)
    for train, test in ((rows, rows), (normal, normal)):
        as_dataset("x", ((train[:300], labels[:300]), (test[300:], labels[300:])))
    as_dataset("x", {"a": (rows, labels), "b": (rows, labels)})
    assert not caplog.messages
    for train, test in ((rows, normal), (normal, rows)):
        both = (train[:300], labels[:300]), (test[300:], labels[300:])
        as_dataset("x", both)
        assert "column 0, of " in caplog.messages[0]
        as_dataset("x", tuple(((own, own), its) for own, its in both))
        assert "were both normalised alike?" in caplog.messages[-1]
        caplog.clear()
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    as_dataset("x", ((np.load(tmp_path / "rows.npy", mmap_mode="r"), labels), (normal, labels)))
    assert "column 0, of " in caplog.messages[0]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (3, "data x: expected .*, got int"),
        (pd.DataFrame({"pixel": [1, 2]}), "data x: expected .*, got DataFrame"),
        ({"train": (COLOUR, LABELS)}, "the mapping lacks test"),
        ((COLOUR, LABELS[:9]), "20 samples but 9 labels"),
        (((COLOUR, LABELS), (COLOUR[:, :1], LABELS)), "differ in shape"),
        ((COLOUR, LABELS - 1), "label -1; allowed: 0 and more; values are floats"),
        ((COLOUR, LABELS.astype(str)), "labels of type <U"),
        ((COLOUR, LABELS.astype("m8[s]")), "labels of type timedelta64"),
        ((COLOUR / 0.0, LABELS), "samples have NaN or infinite values"),
        ((SMOOTH.astype(float) * 1e39, LABELS), "samples have NaN or infinite values as float32"),
        ((COLOUR.astype(complex), LABELS), "samples of type complex128"),
        ((COLOUR[:, 0, 0, 0], LABELS), "with at least one axis for each sample"),
        ((COLOUR % 2, LABELS), "uint8 samples are read as images"),
        ((np.full((20, 3), 2**63, np.uint64), LABELS), "integers must be below 2\\*\\*63"),
        ((SMOOTH, LABELS.astype(float)), "whole floats, 0 to 3: for classes give integers"),
        ((pd.DataFrame(SMOOTH[:, 0, 0]).iloc[::-1], pd.Series(LABELS)), "have different indexes"),
        ((np.ma.masked_greater(SMOOTH, 0.9), LABELS), "masked values: fill them in"),
        (
            Listed([(COLOUR[0], 1), (COLOUR[0, :, :4], 0)]),
            "one shape, got .* in sample 0 and .* in sample 1",
        ),
        (
            {
                "train": Listed([(COLOUR[0], 1)] * 3, classes=["cat", "dog"]),
                "test": Subset(Listed([(COLOUR[0], 1)] * 3, classes=["dog", "cat"]), [0, 1]),  # type: ignore[arg-type]
            },
            "name the classes differently",
        ),
        (Listed([3, 4]), r"a sample must be \(sample, label\), got a int"),
        (Listed([{"picture": 1, "label": 2}]), "has columns picture, label; expected image or img"),
        (Listed([]), "has no samples"),
    ],
)
def test_what_is_wrong_is_one_line(data: Any, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        as_dataset("x", data)
    assert "\n" not in str(caught.value)


def test_torchvisions_data_sets_are_read_sample_by_sample() -> None:
    from torchvision.datasets import FakeData

    found = as_dataset("mine", FakeData(10, (3, 8, 9), num_classes=2))
    assert found.image_shape == (3, 8, 9)
    assert len(found.train.labels) + len(found.test.labels) == 10


def test_hugging_faces_data_sets_are_read_with_their_names_of_classes() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    )
    columns = {"image": list(COLOUR.transpose(0, 2, 3, 1)), "label": (LABELS % 2).tolist()}
    part = datasets.Dataset.from_dict(columns, features=features)
    found = as_dataset("mine", datasets.DatasetDict(train=part, test=part.select(range(4))))
    assert np.array_equal(found.train.images, COLOUR)
    assert (found.class_names, len(found.test.labels)) == (("ant", "bee"), 4)
    in_columns = as_dataset("mine", (part["image"], part["label"]))
    assert np.array_equal(in_columns.train.images, as_dataset("mine", part).train.images)


GRAY = np.random.default_rng(0).integers(0, 256, (10, 4, 4), dtype=np.uint8)
TWO_LABELS = np.arange(10) % 2


def folder(path: Path, *parts: str) -> Path:
    """Two classes of five images, in each part."""
    for part in parts or ("",):
        for label, name in enumerate(("cat", "dog")):
            home = path / part / name
            home.mkdir(parents=True)
            for number in range(5):
                Image.fromarray(np.full((4, 4, 3), 100 * label + number, np.uint8)).save(
                    home / f"{number}.png"
                )
    return path


def test_what_is_a_path() -> None:
    assert all(map(is_path, ("a/b", "b.npz", "./b")))
    assert not is_path("mnist")


@pytest.mark.parametrize(
    "names",
    [
        *("x_train y_train x_test y_test", "x y x_test y_test"),
        "images labels test_images test_labels",
    ],
)
def test_a_files_own_test_arrays_are_the_test_split(names: str, tmp_path: Path) -> None:
    given = dict(zip(names.split(), (GRAY, TWO_LABELS, GRAY[:4], TWO_LABELS[:4]), strict=True))
    np.savez(tmp_path / "a.npz", **given)
    found = read_path(str(tmp_path / "a.npz"))
    assert np.array_equal(found.train.images[:, 0], GRAY)
    assert np.array_equal(found.test.labels, TWO_LABELS[:4])
    np.savez(tmp_path / "a.npz", **given, x_valid=GRAY)
    with pytest.raises(UserError, match=r"has the arrays .*x_valid; expected x_train"):
        read_path(str(tmp_path / "a.npz"))


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    np.savez(path, images=GRAY, labels=TWO_LABELS)
    assert len(read_path(str(path)).train.labels) == 8
    np.savez(path, images=GRAY[:5], labels=TWO_LABELS[:5])
    assert len(read_path(str(path)).train.labels) == 4


def test_folders_flat_or_with_train_and_test(tmp_path: Path) -> None:
    flat = read_path(str(folder(tmp_path / "flat")))
    assert (len(flat.train.labels), flat.class_names) == (8, ("cat", "dog"))
    split = read_path(str(folder(tmp_path / "split", "train", "test")))
    assert (len(split.train.labels), len(split.test.labels)) == (10, 10)
    assert (split.train.images[split.train.labels == 1] >= 100).all()


def test_parts_beside_train_and_test_are_told(
    cached: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_path(str(folder(tmp_path / "three", "train", "test", "val")))
    assert "only train and test are used; ignored: val" in caplog.messages.pop()
    (tmp_path / "other").mkdir()
    for name, part in (("train", "train"), ("validation", "test")):
        source = tmp_path / "own-digits" / f"{part}.parquet"
        (tmp_path / "other" / f"{name}.parquet").write_bytes(source.read_bytes())
    found = read_hugging_face(f"hf:{tmp_path / 'other'}")
    assert (len(found.train.labels), len(found.test.labels)) == (24, 6)
    assert "a fifth of train is held out; ignored: validation" in caplog.messages.pop()


def test_what_is_wrong_is_one_line_with_what_was_expected(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", pixels=GRAY)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    (tmp_path / "one" / "cat").mkdir(parents=True)
    (folder(tmp_path / "spoilt") / "cat" / "9.png").write_bytes(b"no image")
    for name, line in {
        "odd.npz": "has the arrays pixels; expected x_train, y_train, x_test, y_test; or images",
        "bad.npz": "cannot read .*bad.npz",
        "none.npz": "there is no such file or folder",
        "one": "holds 0 folders with images; expected FOLDER/class/image",
        "spoilt": "cannot read image .*9.png",
    }.items():
        with pytest.raises(UserError, match=line) as caught:
            read_path(str(tmp_path / name))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.25, 0.0], ids=["in memory", "read when needed"])
def test_an_image_of_another_size_is_named(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl.data.lazy.MEMORY_SHARE", share)
    odd = folder(tmp_path / "pets") / "dog" / "3.png"
    Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(odd)
    with pytest.raises(UserError, match=rf"one shape.* and .*\(.*\) in {odd}; scale or pad"):
        read_path(str(tmp_path / "pets"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_saved(tmp_path: Path, save: Callable[..., None]) -> None:
    saved = {"a": np.arange(12.0).reshape(3, 4).T, "b": np.zeros(0, np.int64), "c": np.uint8(3)}
    save(tmp_path / "x.npz", **saved)
    found = read_arrays(tmp_path / "x.npz", ("a", "none"), ("c", "a", "b"))
    assert all(map(np.array_equal, found, (saved["c"], saved["a"], saved["b"])))


datasets = pytest.importorskip("datasets")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set that was loaded once, whose own files are gone."""
    read_hugging_face.cache_clear()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    images = np.arange(30 * 64).reshape(30, 8, 8).astype(np.uint8)
    columns = {"image": list(images), "label": [k % 3 for k in range(30)]}
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    (tmp_path / "own-digits").mkdir()
    for part in ("train", "test"):
        made.to_parquet(tmp_path / "own-digits" / f"{part}.parquet")
    datasets.load_dataset(str(tmp_path / "own-digits"))
    return "hf:own-digits"


def test_a_data_set_of_the_cache_is_loaded_by_its_name(cached: str) -> None:
    found = load(cached, Path("nowhere"), max_train=20)
    assert (len(found.train.labels), len(found.test.labels)) == (20, 30)
    assert found.class_names == ("a", "b", "c")
    assert found.test.images[3, 0, 0].tolist() == list(range(192, 200))
    assert short_name(cached) == "own-digits"


def test_what_the_cache_lacks_is_refused_in_a_line_that_says_how_to_fetch_it(cached: str) -> None:
    with pytest.raises(UserError, match=r"^hf:not-there is not in Hugging Face's cache") as refused:
        load("hf:not-there", Path("nowhere"))
    assert "load_dataset('not-there')" in str(refused.value)
    assert "\n" not in str(refused.value)


def hospital(client: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples that tell whose they are."""
    return np.full((count, 3), 10.0 * client) + np.arange(count)[:, None] / 100, np.arange(
        count
    ) % 2


HOSPITALS = {f"hospital {k}": hospital(k, 10 + 10 * k) for k in range(3)}


def leaf(data: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    users = {u: {"x": x.tolist(), "y": y.tolist()} for u, (x, y) in data.items()}
    return json.dumps({"users": list(users), "num_samples": [], "user_data": users})


def test_test_samples_that_equal_a_training_sample_are_counted(tmp_path: Path) -> None:
    own, others = (COLOUR[:12], LABELS[:12]), (COLOUR[10:], LABELS[10:])
    assert as_dataset("d", {"train": own, "test": others}).leaked == 2
    np.save(tmp_path / "a.npy", COLOUR[:12])
    read_by_row = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert as_dataset("d", ((read_by_row, LABELS[:12]), (read_by_row[:3], LABELS[:3]))).leaked == 3
    assert as_dataset("d", (COLOUR, LABELS)).leaked == 0
    assert as_dataset("d", (np.tile(COLOUR, (2, 1, 1, 1)), np.tile(LABELS, 2))).leaked > 0
    # Of clients: held samples are no training samples, but another client may train on them.
    apart = {u: hospital(k, 10) for k, u in enumerate("ab")}
    assert as_dataset("d", apart).leaked == 0
    assert as_dataset("d", {"a": hospital(0, 10), "b": hospital(0, 20)}).leaked > 0


@pytest.mark.parametrize("door", ["mapping", "pairs", "file", "folder"])
def test_clients_keep_their_own_samples_and_their_own_tests(door: str, tmp_path: Path) -> None:
    tests = {u: (x[:5] + 0.5, y[:5]) for u, (x, y) in HOSPITALS.items()}
    if door == "mapping":
        found = as_dataset("own", HOSPITALS)
    elif door == "pairs":
        found = as_dataset("own", {u: (own, tests[u]) for u, own in HOSPITALS.items()})
    elif door == "file":
        (tmp_path / "leaf.json").write_text(leaf(HOSPITALS))
        found = read_path(str(tmp_path / "leaf.json"))
    else:
        for part, data in (("train", HOSPITALS), ("test", tests)):
            (tmp_path / part).mkdir()
            (tmp_path / part / "all.json").write_text(leaf(data))
        found = read_path(str(tmp_path))
    train = found.train
    assert train.clients is not None
    assert train.held is not None
    cut = make_partition(
        train.labels,
        *(3, found.num_classes, PartitionConfig(kind="natural")),
        alpha=1.0,
        seed=0,
        owners=(train.clients, train.held),
    )
    for k, (_, labels) in enumerate(HOSPITALS.values()):
        held = 5 if door in ("pairs", "folder") else len(labels) // 5
        assert len(cut.test[k]) == held
        assert len(cut.train[k]) + (held if door in ("mapping", "file") else 0) == len(labels)
        for rows in (cut.train[k], cut.test[k]):
            assert set(train.images[rows].ravel() // 10) == {k}
    assert np.array_equal(found.test.images, train.images[train.held])


def test_what_samples_are_is_told_by_all_clients_together() -> None:
    """One with bytes in floats, and one with a single sample, are clients like others."""
    exact = COLOUR / 255
    for one, other in ((SMOOTH, exact), (SMOOTH[:, 0], exact[:, 0])):
        given = {"a": (one, LABELS), "b": (other, LABELS), "c": (other[:1], LABELS[:1])}
        train = as_dataset("d", given).train
        assert train.clients is not None
        assert train.held is not None
        assert np.bincount(train.clients[train.held], minlength=3).tolist() == [4, 4, 0]
        own = np.asarray(train.images[train.clients == 1])
        assert own.dtype == np.float32
        assert np.array_equal(np.sort(own, 0), np.sort(other, 0).astype(np.float32))


def test_fewer_clients_than_the_data_is_of_are_drawn_by_the_seed() -> None:
    train = as_dataset("own", {k: hospital(k, 10) for k in range(20)}).train
    owners = (train.clients, train.held)

    def drawn(seed: int) -> list[float]:
        cut = make_partition(
            train.labels, 4, 2, PartitionConfig(kind="natural"), alpha=1, seed=seed, owners=owners
        )
        return [train.images[own[0], 0] // 10 for own in cut.train]

    assert drawn(0) == drawn(0) == sorted(drawn(0))
    assert len({*drawn(0)}) == 4
    assert drawn(0) != drawn(1)


@pytest.mark.parametrize(
    ("kind", "count", "line"),
    [
        ("natural", 4, "num_clients must be at most 3, .* got 4"),
        ("iid", 3, "iid would train on the clients' own test samples; .* natural"),
    ],
)
def test_a_partition_that_the_data_does_not_allow_is_refused(
    kind: Any, count: int, line: str
) -> None:
    train = as_dataset("own", HOSPITALS).train
    owners = (train.clients, train.held)
    with pytest.raises(UserError, match=line):
        make_partition(
            train.labels, count, 2, PartitionConfig(kind=kind), alpha=1, seed=0, owners=owners
        )
    with pytest.raises(UserError, match="needs data that is already divided among clients"):
        make_partition(train.labels, 2, 2, PartitionConfig(kind="natural"), alpha=1, seed=0)


def test_no_clients_test_sample_is_held_out_for_validation() -> None:
    data = hold_out(as_dataset("own", HOSPITALS), 0.25, 0)
    tested = as_dataset("own", HOSPITALS).test.images
    for split in (data.train, data.test):
        assert not {*split.images[:, 0]} & {*tested[:, 0]}


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"a": (np.ones((5, 3)), np.arange(5)), "b": 3}, "of client b: expected"),
        (
            {"a": (np.ones((5, 3)), np.arange(5)), "b": (np.ones((5, 4)), np.arange(5))},
            "all clients need samples of one kind, got .*3.* and .*4",
        ),
        (
            {"a": (SMOOTH, LABELS), "b": (255 * SMOOTH, LABELS)},
            "all clients need samples of one kind, got .*floats .* to 2.* and images",
        ),
    ],
)
def test_what_is_wrong_with_a_clients_data_is_one_line(data: Any, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        as_dataset("x", data)
    assert "\n" not in str(caught.value)


def test_a_json_file_that_is_not_leafs_is_one_line(tmp_path: Path) -> None:
    for text in ("[1]", "{}", '{"user_data": {"a": {"x": [1]}}}', "not json"):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(UserError, match="expected LEAF's user_data, with x and y") as caught:
            read_path(str(tmp_path / "a.json"))
        assert "\n" not in str(caught.value)


def test_a_user_of_leafs_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("train/a.json", "train/b.json", "test/a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(leaf(HOSPITALS))
    with pytest.raises(UserError, match=r"b\.json: user hospital 0 is in another file of train"):
        read_path(str(tmp_path))
