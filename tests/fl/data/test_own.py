"""A user's arrays and data set objects, as the plain arrays that runs use."""

from typing import Any

import numpy as np
import pytest
import torch

from fl.data.datasets import Dataset
from fl.data.own import as_dataset
from fl.errors import UserError

COLOUR = np.random.default_rng(0).integers(0, 256, (20, 3, 5, 6), dtype=np.uint8)
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


def test_a_data_set_stays_itself() -> None:
    found = as_dataset("mine", (COLOUR, LABELS))
    assert as_dataset("other", found) is found
    assert isinstance(found, Dataset)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (3, "data x: expected .*, got int"),
        ({"train": (COLOUR, LABELS)}, "no test in the mapping"),
        ((COLOUR, LABELS[:9]), "20 images but 9 labels"),
        (((COLOUR, LABELS), (COLOUR[:, :1], LABELS)), "differ in shape"),
        ((COLOUR, LABELS - 1), "label -1; allowed: 0 and more"),
        ((COLOUR, LABELS + 0.5), "labels of type float64"),
        ((COLOUR.astype(np.int64), LABELS), "pixels of type int64; allowed: uint8 or floats"),
        ((COLOUR / 1.0, LABELS), "pixels from 0 to 255; allowed: 0 to 1"),
        ((COLOUR[:, :2], LABELS), "allowed: 1 or 3 channels"),
        ((COLOUR[0, 0], LABELS[:5]), "images of shape"),
        (Listed([(COLOUR[0], 1), (COLOUR[0, :, :4], 0)]), "images of several shapes"),
        (Listed([3, 4]), r"a sample must be \(image, label\), got a int"),
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
