"""Data of the user's own: arrays and data set objects, as the plain arrays that runs use."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl.data.arrays import is_whole
from fl.data.datasets import Dataset, Split
from fl.data.image_files import check_names, in_one_form, pixels
from fl.errors import UserError, reason_of
from fl.seeding import numpy_generator

TEST_SHARE = 0.2
"""Share of the samples that is held out where no test split is given."""
FORMS = (
    "(images, labels), ((images, labels), (test images, test labels)), a mapping with train and "
    "test, or a data set object"
)
FEW_CLASSES = 1000
"""More are allowed where there are as many samples, since labels count the classes from 0."""
log = logging.getLogger(__name__)
IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img"), ("label", "labels", "fine_label")


def as_dataset(name: str, data: Any) -> Dataset:
    """The user's data as a data set.

    Args:
        name: what it is called.
        data: a `Dataset`; a pair of arrays, images and labels, of which a fifth is held out as the
            test split; two such pairs, training and test; a mapping with ``train`` and ``test``,
            of pairs or data set objects (a Hugging Face ``DatasetDict`` is one); or one data set
            object, indexable with a length, whose samples are (image, label). Images are uint8, or
            floating point in [0, 1]: (H, W), (C, H, W) or (H, W, C) with one or three channels,
            all of one size. Labels are integers from 0.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping):
        missing = {"train", "test"} - data.keys()
        if missing:
            raise UserError(f"data {name}: no {' and no '.join(sorted(missing))} in the mapping")
        train, test = (_split(f"{name} {part}", data[part]) for part in ("train", "test"))
        names = _class_names(data["train"])
    elif isinstance(data, tuple | list) and len(data) == 2 and _is_pair(data[0]):
        train, test = (
            _split(f"{name} {p}", d) for p, d in zip(("train", "test"), data, strict=True)
        )
        names = ()
    else:
        train, test = _held_out(_split(name, data))
        names = _class_names(data)
    return _checked(name, train, test, names)


def _is_pair(data: Any) -> bool:
    """Whether it is images and labels, and not a sample, or two of them."""
    if not isinstance(data, tuple | list) or len(data) != 2 or isinstance(data[1], tuple):
        return False
    try:
        return np.ndim(data[1]) > 0
    except ValueError:  # of several lengths
        return False


def _held_out(whole: Split) -> tuple[Split, Split]:
    order = numpy_generator(0, "own test").permutation(len(whole.labels))
    count = max(1, round(TEST_SHARE * len(order)))
    return whole.take(np.sort(order[count:])), whole.take(np.sort(order[:count]))


def _split(name: str, data: Any) -> Split:
    if _is_pair(data):
        images, labels = (_array(name, column) for column in data)
        if len(images) != len(labels):
            raise UserError(f"data {name}: {len(images)} images but {len(labels)} labels")
        return Split(_images(name, images), _labels(name, labels))
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError(f"data {name}: expected {FORMS}, got {type(data).__name__}")
    samples = [_sample(name, data[index]) for index in range(len(data))]
    if not samples:
        raise UserError(f"data {name} has no samples")
    alike = in_one_form([image for image, _ in samples])
    shapes = {np.shape(image) for image in alike}
    if len(shapes) > 1:
        raise UserError(f"data {name}: images of several shapes, {sorted(shapes)[:3]}; scale them")
    return Split(
        _images(name, np.stack(alike)),
        _labels(name, _array(name, [label for _, label in samples])),
    )


def _sample(name: str, sample: Any) -> tuple[np.ndarray, Any]:
    """Image and label of a data set object's sample: a pair, or a mapping of columns."""
    if isinstance(sample, Mapping):
        image, label = _column(sample, IMAGE_COLUMNS), _column(sample, LABEL_COLUMNS)
        if image is None or label is None:
            raise UserError(
                f"data {name} has columns {', '.join(sample)}; expected "
                f"{' or '.join(IMAGE_COLUMNS)}, and {' or '.join(LABEL_COLUMNS)}"
            )
        return _array(name, sample[image]), sample[label]
    if not isinstance(sample, Sequence) or len(sample) != 2:
        kind = type(sample).__name__
        raise UserError(f"data {name}: a sample must be (image, label), got a {kind}")
    return _array(name, sample[0]), sample[1]


def _array(name: str, image: Any) -> np.ndarray:
    """An image or a column as an array; Pillow's images by what their pixels mean."""
    if hasattr(image, "getbands"):
        return pixels(image, f"of data {name}")
    try:
        return np.asarray(image)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, or a tensor of another kind
        raise UserError(f"data {name}: no array: {reason_of(error)}") from None


def _column(sample: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in sample), None)


def _images(name: str, images: np.ndarray) -> np.ndarray:
    """uint8 (N, C, H, W)."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise UserError(f"data {name}: images of shape {images.shape}; expected (N, C, H, W)")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1] not in (1, 3):
        raise UserError(
            f"data {name}: images of shape {images.shape}; allowed: 1 or 3 channels, as "
            "(N, C, H, W) or (N, H, W, C)"
        )
    if np.issubdtype(images.dtype, np.floating):
        low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
        if not 0 <= low <= high <= 1:
            raise UserError(
                f"data {name}: pixels from {low:g} to {high:g}; allowed: 0 to 1, or uint8"
            )
        levels = np.round(images * 255)
        if not np.allclose(levels, images * 255, atol=1e-3):
            log.warning("data %s: floats are rounded to 256 levels, the nearest n/255", name)
        images = levels
    elif images.dtype != np.uint8:
        raise UserError(f"data {name}: pixels of type {images.dtype}; allowed: uint8 or floats")
    return np.ascontiguousarray(images, dtype=np.uint8)


def _labels(name: str, labels: np.ndarray) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not is_whole(labels):
        raise UserError(
            f"data {name}: labels of type {labels.dtype} and shape {labels.shape}; expected "
            "integers below 2**63, one for each image"
        )
    return labels.astype(np.int64)


def _class_names(data: Any) -> tuple[str, ...]:
    """What the data set object calls its classes, as torchvision and Hugging Face do."""
    if isinstance(names := getattr(data, "classes", None), list | tuple):
        return tuple(map(str, names))
    features = getattr(data, "features", None)
    label = _column(features, LABEL_COLUMNS) if isinstance(features, Mapping) else None
    if features is None or label is None:
        return ()
    return tuple(getattr(features[label], "names", None) or ())


def _checked(name: str, train: Split, test: Split, names: tuple[str, ...]) -> Dataset:
    for part, split in (("training", train), ("test", test)):
        if not len(split.labels):
            raise UserError(f"data {name} has no {part} samples")
        if split.labels.min() < 0:
            raise UserError(f"data {name}: label {split.labels.min()}; allowed: 0 and more")
    if train.images.shape[1:] != test.images.shape[1:]:
        shapes = f"{train.images.shape[1:]} and {test.images.shape[1:]}"
        raise UserError(f"data {name}: training and test images differ in shape: {shapes}")
    check_names(f"data {name}: class", names)
    classes = max(len(names), 1 + int(max(train.labels.max(), test.labels.max())))
    samples = len(train.labels) + len(test.labels)
    if classes > max(FEW_CLASSES, samples):
        raise UserError(
            f"data {name}: label {classes - 1} with {samples} samples; allowed: 0 to "
            f"{max(FEW_CLASSES, samples) - 1}, as labels count the classes"
        )
    named = names if len(names) == classes else ()
    return Dataset(name, train, test, classes, class_names=named)
