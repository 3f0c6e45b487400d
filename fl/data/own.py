"""Data of the user's own: arrays and data set objects, as the plain arrays that runs use.

What is stored of it is exact, but that floats become float32, as which models take them. A data
set object that draws random numbers, or that main memory cannot hold, is read when it is needed
(:mod:`fl.data.lazy`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from fl.data.datasets import Dataset, Split
from fl.data.image_files import check_names, in_one_form, pixels
from fl.data.lazy import Augment, Lazy, is_lazy, items_of, mapped
from fl.errors import UserError, reason_of
from fl.inputs import Inputs, as_inputs, channels_first, in_bytes, is_whole, together
from fl.seeding import all_streams, numpy_generator, stream_states
from fl.targets import NOT_COUNTED, Targets

Raw = tuple[np.ndarray | Lazy | tuple[np.ndarray, ...], np.ndarray]
"""Samples, of several inputs a tuple, and labels, as they were given."""
TEST_SHARE = 0.2
"""Share of the samples that is held out where no test split is given."""
FORMS = (
    "(samples, labels), ((samples, labels), (test samples, test labels)), a mapping with train and "
    "test, a mapping of clients, or a data set object"
)
LARGEST_VALUE = 1e4
"""Of a target: what clients answer is taken for a lie far above it (:mod:`fl.plausible`)."""
FEW_CLASSES = 1000
"""More are allowed where there are as many samples, since labels count the classes from 0."""
FAR = 10
"""Widths of the training samples' range; test samples so far outside it are warned of."""
log = logging.getLogger(__name__)
IMAGE_COLUMNS = ("image", "img", "x")
LABEL_COLUMNS = ("label", "labels", "fine_label", "y")


def as_dataset(name: str, data: Any, augment: Callable[[Tensor], Tensor] | None = None) -> Dataset:
    """The user's data as a data set.

    Args:
        name: what it is called.
        data: a `Dataset`; a pair of arrays, samples and labels, of which a fifth is held out as the
            test split; two such pairs or data set objects, training and test; a mapping with
            ``train`` and ``test``, of the same (a Hugging Face ``DatasetDict`` is one); a mapping
            of clients, each with data in any of these forms, see :func:`of_clients`; or one data
            set object, indexable with a length, whose samples are (sample, label). In place of
            samples there may be a tuple of several inputs, each (N, ...). Samples are
            numbers of any type and one shape; see :func:`stored` for what is taken as an image.
            Labels are integers from 0, one for each sample; or targets, see :func:`_labels`.
        augment: what is done to a sample (...), as a model gets it, each time that a classifier
            trains on it; None: nothing.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    found = _as_dataset(name, data)
    if augment is None:
        return found
    if found.inputs.parts:
        raise UserError("augment goes with samples of one input")
    few = as_inputs(np.asarray(found.train.images[np.arange(min(4, len(found.train.labels)))]))
    return replace(found, train=replace(found.train, augment=Augment.of(augment, few)))


def _as_dataset(name: str, data: Any) -> Dataset:
    if isinstance(data, Dataset):
        _check(name, data.train, data.test)
        return data
    if isinstance(data, Mapping) and data and not {"train", "test"} & data.keys():
        return of_clients(name, data)
    given = _parts(name, data)
    [found] = _splits(name, [[_read(own, part) for own, part in given.items()]])
    train, test = _two(found)
    return _checked(name, train, test, _one_name(name, given.values()))


def _parts(name: str, data: Any) -> dict[str, Any]:
    """The data by its name; or the training and the test part, each by its own."""
    if isinstance(data, Dataset):
        data = {"train": data.train, "test": data.test}
    two = isinstance(data, tuple | list) and len(data) == 2
    if two and (all(map(_is_pair, data)) or all(map(_is_object, data))):
        data = {"train": data[0], "test": data[1]}
    if not isinstance(data, Mapping):
        return {name: data}
    if missing := {"train", "test"} - data.keys():
        raise UserError(f"data {name}: no {' and no '.join(sorted(missing))} in the mapping")
    return {f"{name} {part}": data[part] for part in ("train", "test")}


def _splits(name: str, clients: Sequence[Sequence[Raw]]) -> list[list[Split]]:
    """Each client's parts, or those of all data; all of them together tell what they are."""
    every = [raw for own in clients for raw in own]
    labels = [labels for _, labels in every]
    if len({(own.dtype.kind, own.shape[1:]) for own in labels}) > 1:
        raise UserError(f"data {name}: parts of it have labels or targets of several kinds")
    columns = _labels(name, np.concatenate(labels))
    rows = pairwise(np.cumsum([0, *map(len, labels)]))
    samples = _alike(name, [samples for samples, _ in every])
    splits = (
        Split(own, **{key: column[first:last] for key, column in columns.items()})
        for own, (first, last) in zip(samples, rows, strict=True)
    )
    return [[next(splits) for _ in own] for own in clients]


def _alike(name: str, parts: Sequence[Any]) -> list[Any]:
    """Samples of each part as they are stored, in one type where all were of one kind."""
    if any(isinstance(part, tuple) for part in parts):
        if len({isinstance(part, tuple) and len(part) for part in parts}) > 1:
            raise UserError(f"data {name}: parts of it differ in their inputs")
        columns = [_alike(name, column) for column in zip(*parts, strict=True)]
        return [together(own) for own in zip(*columns, strict=True)]
    kept = [stored(name, part) for part in parts]
    lazy = any(isinstance(part, Lazy) for part in parts)
    if lazy or len({(own.shape[1:], own.dtype) for own in kept}) == 1:
        return kept
    given = map(channels_first, parts)
    if len({(own.shape[1:], own.dtype.kind, Inputs.found(own).kind) for own in given}) > 1:
        return kept
    ends = np.cumsum([len(part) for part in parts])
    return np.split(stored(name, np.concatenate(parts)), ends[:-1])


def _is_pair(data: Any) -> bool:
    """Whether it is images and labels, and not a sample, or two of them."""
    if not isinstance(data, tuple | list) or len(data) != 2 or isinstance(data[1], tuple):
        return False
    try:
        return np.ndim(data[1]) > 0
    except ValueError:  # of several lengths
        return False


def _is_object(data: Any) -> bool:
    """Whether it is a data set object: indexable with a length, and no array or list."""
    able = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    is_array = hasattr(data, "__array__")  # a table of pandas too
    return able and not is_array and not isinstance(data, Sequence | Mapping)


def _two(parts: Sequence[Split]) -> Sequence[Split]:
    """Training and test split; of one sample there is no test."""
    if len(parts) == 2:
        return parts
    order = numpy_generator(0, "own test").permutation(len(parts[0].labels))
    count = min(max(1, round(TEST_SHARE * len(order))), len(order) - 1)
    return [parts[0].take(np.sort(own)) for own in (order[count:], order[:count])]


def _read(name: str, data: Any) -> Raw:
    """What is given for one split."""
    if isinstance(data, Split):
        images, parts = data.images, data.images.dtype.names
        labels = _plain(name, data.labels if data.targets is None else data.targets)
        return tuple(np.asarray(images)[part] for part in parts) if parts else images, labels
    if _is_pair(data):
        _check_rows(name, *data)
        given, labels = data[0], _plain(name, data[1])
        if isinstance(given, tuple) and len(given) != len(labels):
            return _several(name, [_array(name, part) for part in given], labels)
        if len(given) != len(labels):
            raise UserError(f"data {name}: {len(given)} samples but {len(labels)} labels")
        in_file = mapped(name, given) if isinstance(given, np.memmap) else None
        return _numbers(name, _array(name, given)) if in_file is None else in_file, labels
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        kind = type(data).__name__
        hint = "; give its dataset" if hasattr(data, "dataset") else ""
        raise UserError(f"data {name}: expected {FORMS}, got {kind}{hint}")
    if len(data) and _has_several(data[0]):
        return _several_of(name, data)
    if is_lazy(name, data, partial(_lazy_sample, name)):
        return _read_later(name, data)
    with all_streams(0):
        before = stream_states()
        samples = [_sample(name, data[index]) for index in range(len(data))]
        draws = stream_states() != before
    if draws:  # of later samples than were tried
        return _read_later(name, data)
    labels = _plain(name, [np.asarray(label) for _, label in samples])
    return _numbers(name, _stacked(name, [image for image, _ in samples])), labels


def _plain(name: str, labels: Any) -> np.ndarray:
    """Labels as an array, without an axis of one; integers as int64."""
    found = _array(name, labels)
    if not len(found):
        raise UserError(f"data {name} has no samples")
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    return found.astype(np.int64) if found.dtype == bool or is_whole(found) else found


def _read_later(name: str, data: Any) -> Raw:
    """A data set object's samples, which are read when they are needed."""
    read, targets = items_of(name, data, partial(_lazy_sample, name))
    if read.form.dtype.kind == "f" and channels_first(read.form) is not read.form:
        read, targets = items_of(name, data, partial(_lazy_sample, name, channels_last=True))
    return read, _plain(name, [np.asarray(own) for own in targets])


def _check_rows(name: str, given: Any, labels: Any) -> None:
    """Refuses pandas objects of which one was sorted or shuffled without the other."""
    indexed = hasattr(given, "iloc") and hasattr(labels, "iloc")
    if indexed and len(given) == len(labels) and not given.index.equals(labels.index):
        raise UserError(
            f"data {name}: the samples' index is not the labels': row by row they belong to other "
            "rows; reset both if they are in one order"
        )


# Samples of several inputs, such as an image and a row of a table.


def _has_several(sample: Any) -> bool:
    """Whether a data set object's sample is (inputs, label), with a tuple of arrays."""
    if not isinstance(sample, Sequence) or len(sample) != 2 or not isinstance(sample[0], tuple):
        return False
    return all(hasattr(part, "shape") for part in sample[0])


def _several_of(name: str, data: Any) -> Raw:
    """A data set object's samples of several inputs, which are read once.

    Raises:
        UserError: reading them draws random numbers, or main memory cannot hold them.
    """

    def flat(sample: Any) -> tuple[np.ndarray, Any]:
        return np.concatenate([np.ravel(_array(name, part)) for part in sample[0]]), sample[1]

    if is_lazy(name, data, flat):
        raise UserError(
            f"data {name}: samples of several inputs are read once, but reading them draws random "
            "numbers, or they exceed memory: give arrays"
        )
    rows, labels = [], []
    for inputs, label in (data[k] for k in range(len(data))):
        rows.append([np.array(_array(name, part)) for part in inputs])  # copies, as in _sample
        labels.append(np.asarray(label))
    columns = [np.stack(column) for column in zip(*rows)]  # noqa: B905
    return _several(name, columns, _plain(name, labels))


def _several(name: str, inputs: Sequence[np.ndarray], labels: np.ndarray) -> Raw:
    """Samples of several inputs, each (N, ...)."""
    counts = {len(column) for column in (*inputs, labels)}
    if len(counts) > 1:
        raise UserError(f"data {name}: inputs and labels of several lengths, {sorted(counts)}")
    return tuple(_numbers(name, column) for column in inputs), labels


def _lazy_sample(name: str, sample: Any, *, channels_last: bool = False) -> tuple[np.ndarray, Any]:
    """A sample that is read when needed, as it is stored: images with their channels first, floats
    as float32. Of floats only all samples tell whether they are images: ``channels_last``."""
    found, label = _sample(name, sample)
    if found.dtype.kind not in "biuf" or not found.ndim:
        raise UserError(
            f"data {name}: samples of type {found.dtype} and shape {found.shape}; expected numbers "
            "with at least one axis"
        )
    if found.dtype.kind in "bf":
        found = found.astype(np.float32)
        return found.transpose(2, 0, 1) if channels_last else found, label
    return channels_first(found[None])[0] if found.dtype == np.uint8 else found, label


def _sample(name: str, sample: Any) -> tuple[np.ndarray, Any]:
    """Image and label of a data set object's sample: a pair, or a mapping of columns."""
    if isinstance(sample, Mapping):
        image, label = _column(sample, IMAGE_COLUMNS), _column(sample, LABEL_COLUMNS)
        if image is None or label is None:
            raise UserError(
                f"data {name} has columns {', '.join(sample)}; expected "
                f"{' or '.join(IMAGE_COLUMNS)}, and {' or '.join(LABEL_COLUMNS)}"
            )
        sample = (sample[image], sample[label])
    if not isinstance(sample, Sequence) or len(sample) != 2:
        kind = type(sample).__name__
        raise UserError(f"data {name}: a sample must be (sample, label), got a {kind}")
    return np.array(_array(name, sample[0])), sample[1]  # a copy: the next may lie in its place


def _array(name: str, image: Any) -> np.ndarray:
    """An image or a column as an array; Pillow's images by what their pixels mean."""
    if hasattr(image, "getbands"):
        return pixels(image, f"of data {name}")
    if isinstance(image, Sequence) and len(image) and hasattr(image[0], "getbands"):
        return _stacked(name, [_array(name, own) for own in image])
    if np.ma.is_masked(image):
        raise UserError(f"data {name}: masked values; fill them in")
    try:
        found = np.asarray(image)
        return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, or a tensor of another kind
        raise UserError(f"data {name}: no array: {reason_of(error)}") from None


def _stacked(name: str, images: Sequence[np.ndarray]) -> np.ndarray:
    alike = in_one_form(images)
    shapes = {np.shape(image) for image in alike}
    if len(shapes) > 1:
        raise UserError(
            f"data {name}: samples of several shapes, {sorted(shapes)[:3]}; scale or pad them"
        )
    return np.stack(alike)


def _column(sample: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in sample), None)


def _numbers(name: str, samples: np.ndarray) -> np.ndarray:
    """The samples, (N, ...), if they can be stored.

    Raises:
        UserError: they are no numbers, not finite, or without a shape.
    """
    if samples.dtype.kind not in "biuf" or samples.ndim < 2:
        raise UserError(
            f"data {name}: samples of type {samples.dtype} and shape {samples.shape}; expected "
            "numbers, (N, ...) with at least one axis for each sample"
        )
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise UserError(f"data {name}: samples with NaN or infinite values")
    if samples.dtype.kind in "iu" and not is_whole(samples):
        raise UserError(f"data {name}: integers of 2**63 and more; allowed: less")
    return samples.astype(np.float32) if samples.dtype == bool else samples


def stored(name: str, samples: np.ndarray | Lazy) -> Any:
    """Samples, (N, ...), as they are stored: integers in their own type, floats as float32; those
    that are read when needed are already.

    Images, uint8 or floats in [0, 1], are (N, C, H, W) or (N, H, W, C) with 1 or 3 channels, and
    become uint8 (N, C, H, W) where they have 256 levels exactly. Of three axes, (N, H, W), they are
    gray images only with such levels: other floats are sequences.

    Raises:
        UserError: they are uint8 of 0 and 1.
    """
    values = samples.form if isinstance(samples, Lazy) else samples
    if values.dtype == np.uint8 and values.ndim in (3, 4) and values.max(initial=0) == 1:
        raise UserError(
            f"data {name}: samples of type uint8 that are 0 or 1 look like no images, whose levels "
            "are 0 to 255: give floats"
        )
    if isinstance(samples, Lazy):
        return samples
    samples = channels_first(in_bytes(samples) if samples.dtype.kind == "f" else samples)
    kept = np.float32 if samples.dtype.kind == "f" else samples.dtype
    return np.ascontiguousarray(samples, dtype=kept)


def _labels(name: str, labels: np.ndarray) -> dict[str, Any]:
    """``labels``, int64 (N,), by integers, one for each sample; or ``targets`` beside labels of 0.

    Floats, (N,) or (N, D), are values, float32; 0 and 1, (N, L), are L labels, uint8; other
    integers, (N, T), are tokens, int64.

    Raises:
        UserError: they are none of these.
    """
    if labels.ndim == 1 and is_whole(labels):
        return {"labels": labels}
    targets: np.ndarray | None = None
    if labels.dtype.kind == "f" and labels.ndim in (1, 2) and np.isfinite(labels).all():
        targets = _values(name, labels)
    elif labels.ndim == 2 and is_whole(labels) and (labels[labels < 0] == NOT_COUNTED).all():
        targets = labels.astype(np.uint8 if abs(labels).max(initial=0) <= 1 else np.int64)
        if targets.dtype == np.uint8 and (targets.sum(1) == 1).all():
            raise UserError(
                f"data {name}: labels with a single 1 in each row look like one-hot classes: give "
                "integers, as by labels.argmax(1)"
            )
    if targets is None or not targets.shape[1]:
        raise UserError(
            f"data {name}: labels of type {labels.dtype} and shape {labels.shape}; expected "
            "integers below 2**63, one for each sample, or targets: finite floats, (N,) or (N, D), "
            "or integers, (N, L), of 0 and more, or -100 for a place that does not count"
        )
    return {"labels": np.zeros(len(labels), np.int64), "targets": targets}


def _values(name: str, values: np.ndarray) -> np.ndarray:
    """float32 (N, D)."""
    if np.isin(values, (0, 1)).all():
        raise UserError(
            f"data {name}: targets of floats that are 0 or 1: give integers, for classes or labels"
        )
    found = np.unique(values)
    if len(found) <= FEW_CLASSES and np.array_equal(found, np.arange(len(found))):
        raise UserError(
            f"data {name}: targets of the floats 0 to {len(found) - 1}: give integers for classes; "
            "standardise them, as (y - mean) / deviation, for values"
        )
    few = 1 < len(found) <= min(20, len(values) / 10)  # as classes are
    if few and np.array_equal(found, np.round(found)):
        line = "data %s: %d whole numbers as floats are learned as values; integers are classes"
        log.warning(line, name, len(found))
    if (most := float(np.abs(values).max(initial=0))) > LARGEST_VALUE:
        raise UserError(
            f"data {name}: targets up to {most:g}; allowed: {LARGEST_VALUE:g}: standardise them, "
            "as (y - mean) / deviation"
        )
    return values.reshape(len(values), -1).astype(np.float32)


def _one_name(name: str, parts: Iterable[Any]) -> tuple[str, ...]:
    """What the data set objects that say so call their classes."""
    found = [*dict.fromkeys(filter(None, map(_class_names, parts)))]
    if len(found) > 1:
        raise UserError(
            f"data {name}: parts of it name the classes otherwise, {found[0]} and {found[1]}, so a "
            "label is not the same class in both"
        )
    return found[0] if found else ()


def _class_names(data: Any) -> tuple[str, ...]:
    """What the data set object calls its classes, as torchvision and Hugging Face do; nothing where
    it may change their labels."""
    if isinstance(data, Subset):
        return _class_names(data.dataset)
    if getattr(data, "target_transform", None) is not None:
        return ()
    if isinstance(names := getattr(data, "classes", None), list | tuple):
        return tuple(map(str, names))
    features = getattr(data, "features", None)
    label = _column(features, LABEL_COLUMNS) if isinstance(features, Mapping) else None
    if features is None or label is None:
        return ()
    return tuple(getattr(features[label], "names", None) or ())


def _check(name: str, train: Split, test: Split) -> None:
    """Raises `UserError` where a split is empty, or the two differ in what they hold."""
    for part, split in (("training", train), ("test", test)):
        if not len(split.labels):
            raise UserError(f"data {name} has no {part} samples")
        if split.labels.min() < 0:
            raise UserError(f"data {name}: label {split.labels.min()}; allowed: 0 and more")
    _check_alike(name, train, test)
    of_both = [None if s.targets is None else Targets.found(s.targets) for s in (train, test)]
    if len({own and (own.kind, own.shape) for own in of_both}) > 1:
        raise UserError(f"data {name}: training and test samples have targets of several kinds")
    if constant := [k for k, s in enumerate(of_both[0].spread if of_both[0] else ()) if s <= 1e-12]:
        raise UserError(
            f"data {name}: target {constant[0]} has one value in all training samples, so there is "
            "nothing to learn: leave it out"
        )


def _check_alike(name: str, train: Split, test: Split) -> None:
    """Refuses training and test samples of which a model for the ones is none for the others."""
    if train.images.dtype.names and train.images.dtype != test.images.dtype:
        raise UserError(f"data {name}: training and test samples differ in their inputs")
    if train.images.shape[1:] != test.images.shape[1:]:
        shapes = f"{train.images.shape[1:]} and {test.images.shape[1:]}"
        raise UserError(f"data {name}: training and test samples differ in shape: {shapes}")
    learnt, tested = (Inputs.found(split.images) for split in (train, test))
    for one, other in zip(learnt.parts or [learnt], tested.parts or [tested], strict=True):
        _check_scale(name, one, other, one.kind == "floats" and test.images.dtype.kind in "fV")


def _check_scale(name: str, learnt: Inputs, tested: Inputs, as_floats: bool) -> None:
    """Refuses, or of floats warns of, samples that a model would see at two scales."""
    line = f"the training samples are {learnt}; the test samples are {tested}"
    if learnt.kind != tested.kind and not as_floats:
        raise UserError(f"data {name}: {line}; give both in one type and range")
    width = learnt.high - learnt.low
    beyond = max(learnt.low - tested.low, tested.high - learnt.high)
    not_normalised = tested.kind == "pixels" and width >= 1.5  # theirs is 1 at most
    if learnt.kind == "floats" and (not_normalised or beyond > FAR * width):
        log.warning("data %s: %s; were both normalised alike?", name, line)


def _checked(name: str, train: Split, test: Split, names: tuple[str, ...]) -> Dataset:
    _check(name, train, test)
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


# Data that is divided among clients already: a data set for each.


def of_clients(name: str, data: Mapping[Any, Any]) -> Dataset:
    """One data set of the clients' own ones, for ``partition.kind natural``.

    Clients are numbered from 0 in the mapping's order. The training split holds all samples; those
    that are for a client's own test are marked as held. Together they are the test split.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    given = [_parts(f"{name} of client {client}", own) for client, own in data.items()]
    raws = [[_read(own, part) for own, part in parts.items()] for parts in given]
    found = _splits(name, raws)
    forms: dict[Any, Inputs] = {}
    for own in found:
        _check_alike(name, own[0], own[-1])
        inputs = Inputs.found(own[0].images)
        kinds = [part.kind for part in inputs.parts or [inputs]]
        forms |= {(inputs.shape, str(part.images.dtype), *kinds): inputs for part in own}
    if len(forms) > 1:
        named = " and ".join(str(forms[form]) for form in sorted(forms)[:2])
        raise UserError(f"data {name}: clients' samples are of several kinds: {named}")
    splits = [split for own in found for split in _two(own)]
    sizes = [len(split.labels) for split in splits]
    held = np.repeat(np.tile([False, True], len(raws)), sizes)
    targets = [split.targets for split in splits if split.targets is not None]
    train = Split(
        images=_samples_together(name, [split.images for split in splits]),
        labels=np.concatenate([split.labels for split in splits]),
        targets=np.concatenate(targets) if targets else None,
        clients=np.repeat(np.repeat(np.arange(len(raws)), 2), sizes),
        held=held,
    )
    test = train.take(np.flatnonzero(held))
    every = [part for parts in given for part in parts.values()]
    return _checked(name, train, test, _one_name(name, every))


def _samples_together(name: str, parts: Sequence[np.ndarray | Lazy]) -> np.ndarray | Lazy:
    lazy = [part for part in parts if isinstance(part, Lazy)]
    if lazy and len(lazy) < len(parts):
        raise UserError(
            f"data {name}: some clients' samples can be read at once, others' only when needed, as "
            "by random transforms: give all in one form"
        )
    return Lazy.joined(lazy) if lazy else np.concatenate([np.asarray(part) for part in parts])
