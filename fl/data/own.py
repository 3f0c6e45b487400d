"""Data of the user's own: arrays and data set objects, as the plain arrays that runs use.

What is stored of it is exact, but that floats become float32, as which models take them. A data
set object that draws random numbers, or that main memory cannot hold, is read when it is needed
(:mod:`fl.data.lazy`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from fl.data.datasets import Dataset, Split
from fl.data.files import check_names, in_one_form, pixels
from fl.data.lazy import Augment, Lazy, is_lazy, items_of, mapped, naming, numbered
from fl.errors import UserError, reason_of
from fl.inputs import (
    FAR,
    Inputs,
    as_inputs,
    channels_first,
    in_bytes,
    is_whole,
    together,
    unlike_columns,
)
from fl.seeding import all_streams, numpy_generator, stream_states, streams_restored
from fl.targets import FEW_CLASSES, Targets, stored_targets

Raw = tuple[np.ndarray | Lazy | tuple[np.ndarray, ...], np.ndarray]
"""Samples, of several inputs a tuple, and labels, as they were given."""
TEST_SHARE = 0.2
"""Share of the samples that is held out where no test split is given."""
FORMS = (
    "(samples, labels), ((samples, labels), (test samples, test labels)), a mapping with train and "
    "test, a mapping of clients, or a data set object"
)
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
            of clients, each with data in any of these forms, see :func:`_divided`; or one data
            set object, indexable with a length, whose samples are (sample, label). In place of
            samples there may be a tuple of several inputs, each (N, ...). Samples are
            numbers of any type and one shape; see :func:`stored` for what is taken as an image.
            Labels are integers from 0, one for each sample; or targets, see
            :func:`fl.targets.stored_targets`.
        augment: what is done to a sample (...), as a model gets it, each time that a classifier
            trains on it; None: nothing.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    found = _as_dataset(name, data)
    if augment is None:
        return found
    if found.inputs.parts:
        raise UserError("augment needs samples with one input")
    few = as_inputs(np.asarray(found.train.images[np.arange(min(4, len(found.train.labels)))]))
    return replace(found, train=replace(found.train, augment=Augment.of(augment, few)))


def _as_dataset(name: str, data: Any) -> Dataset:
    if isinstance(data, Dataset):
        with _named(name):
            _check(data.train, data.test)
            most = max(int(split.labels.max()) for split in (data.train, data.test))
            if most >= data.num_classes:
                raise UserError(f"label {most}; allowed: 0 to {data.num_classes - 1}")
        return data
    owned = {name: data}
    by_client = isinstance(data, Mapping) and not {"train", "test"} & data.keys()
    if by_client and data:
        owned = {f"{name} of client {client}": own for client, own in data.items()}
    given = [_parts(whose, own) for whose, own in owned.items()]
    raws = [_read_each(parts) for parts in given]
    with _named(name):
        splits = _splits(raws)
        train, test = _divided(splits) if by_client else _two(splits[0])
        names = _one_name(part for parts in given for part in parts.values())
        return _checked(name, train, test, names)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Inside, errors begin with the name of the data."""
    try:
        yield
    except UserError as error:
        raise UserError(f"data {name}: {error}") from None


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
        raise UserError(f"data {name}: the mapping lacks {' and '.join(sorted(missing))}")
    if others := [str(part) for part in data if part not in ("train", "test")]:
        log.warning("data %s: only train and test are used; ignored: %s", name, ", ".join(others))
    return {f"{name} {part}": data[part] for part in ("train", "test")}


def _read_each(parts: Mapping[str, Any]) -> list[Raw]:
    found = []
    for name, part in parts.items():
        with _named(name):
            found.append(_read(name, part))
    return found


def _splits(clients: Sequence[Sequence[Raw]]) -> list[list[Split]]:
    """Each client's parts, or those of all data; together they tell what they are."""
    every = [raw for own in clients for raw in own]
    labels = [labels for _, labels in every]
    if len({(own.dtype.kind, own.shape[1:]) for own in labels}) > 1:
        raise UserError("its parts have labels or targets of different kinds")
    columns = stored_targets(np.concatenate(labels))
    rows = pairwise(np.cumsum([0, *map(len, labels)]))
    samples = _alike([samples for samples, _ in every])
    splits = (
        Split(own, **{key: column[first:last] for key, column in columns.items()})
        for own, (first, last) in zip(samples, rows, strict=True)
    )
    return [[next(splits) for _ in own] for own in clients]


def _alike(parts: Sequence[Any]) -> list[Any]:
    """Samples of each part as they are stored, in one type where all were of one kind."""
    if any(isinstance(part, tuple) for part in parts):
        if len({isinstance(part, tuple) and len(part) for part in parts}) > 1:
            raise UserError("its parts have different inputs")
        columns = [_alike(column) for column in zip(*parts, strict=True)]
        return [together(own) for own in zip(*columns, strict=True)]
    kept = [stored(part) for part in parts]
    lazy = any(isinstance(part, Lazy) for part in parts)
    if lazy or len({(own.shape[1:], own.dtype) for own in kept}) == 1:
        return kept
    given = map(channels_first, parts)
    if len({(own.shape[1:], own.dtype.kind, Inputs.found(own).kind) for own in given}) > 1:
        return kept
    ends = np.cumsum([len(part) for part in parts])
    return np.split(stored(np.concatenate(parts)), ends[:-1])


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
        labels = _plain(data.labels if data.targets is None else data.targets)
        return tuple(np.asarray(images)[part] for part in parts) if parts else images, labels
    if _is_pair(data):
        return _read_pair(*data)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        hint = "; give its dataset" if hasattr(data, "dataset") else ""
        raise UserError(f"expected {FORMS}, got {type(data).__name__}{hint}")
    try:
        with streams_restored():
            first = data[0] if len(data) else None
    except KeyError:  # a data frame has columns
        raise UserError(f"expected {FORMS}, got {type(data).__name__}") from None
    _tell_of_left_out(name, first)
    if is_lazy(name, data, _lazy_sample):
        return _read_later(data)
    with all_streams(0):
        before = stream_states()
        samples = [_sample(data[index]) for index in range(len(data))]
        draws = stream_states() != before
    if draws:  # of later samples than were tried
        return _read_later(data)
    labels = _plain([np.asarray(label) for _, label in samples])
    if len({len(inputs) for inputs, _ in samples}) > 1:
        raise UserError("its samples differ in their inputs")
    named, inputs = naming(data), zip(*(i for i, _ in samples), strict=True)
    columns = [_numbers(_stacked(own, named)) for own in inputs]
    return tuple(columns) if len(columns) > 1 else columns[0], labels


def _read_pair(given: Any, targets: Any) -> Raw:
    """Arrays of samples and labels; a tuple of several inputs has each (N, ...)."""
    indexed = hasattr(given, "iloc") and hasattr(targets, "iloc")
    if indexed and len(given) == len(targets) and not given.index.equals(targets.index):
        raise UserError(
            "samples and labels have different indexes, so their rows do not match; if both are "
            "in the same order, reset both indexes"
        )
    labels = _plain(targets)
    if isinstance(given, tuple) and len(given) != len(labels):
        inputs = [_array(part) for part in given]
        counts = {len(column) for column in (*inputs, labels)}
        if len(counts) > 1:
            raise UserError(f"inputs and labels must have one length, got {sorted(counts)}")
        return tuple(map(_numbers, inputs)), labels
    if len(given) != len(labels):
        raise UserError(f"{len(given)} samples but {len(labels)} labels")
    in_file = mapped(given) if isinstance(given, np.memmap) else None
    return _numbers(_array(given)) if in_file is None else in_file, labels


def _plain(labels: Any) -> np.ndarray:
    """Labels as an array, without an axis of one; integers as int64."""
    found = _array(labels)
    if not len(found):
        raise UserError("it has no samples")
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    return found.astype(np.int64) if found.dtype == bool or is_whole(found) else found


def _read_later(data: Any) -> Raw:
    """A data set object's samples, which are read when they are needed."""
    if len(_sample(data[0])[0]) > 1:
        raise UserError(
            "samples with several inputs must fit in memory, and reading them must not draw "
            "random numbers: give arrays"
        )
    read, targets = items_of(data, _lazy_sample)
    if read.form.dtype.kind == "f" and channels_first(read.form) is not read.form:
        read, targets = items_of(data, partial(_lazy_sample, channels_last=True))
    return read, _plain([np.asarray(own) for own in targets])


def _lazy_sample(sample: Any, *, channels_last: bool = False) -> tuple[np.ndarray, Any]:
    """A sample that is read when needed, as it is stored: images with their channels first, floats
    as float32. Of floats only all samples tell whether they are images: ``channels_last``. Several
    inputs, which are only tried, are one array."""
    inputs, label = _sample(sample)
    found = inputs[0] if len(inputs) == 1 else np.concatenate([part.ravel() for part in inputs])
    if found.dtype.kind not in "biuf" or not found.ndim:
        raise UserError(
            f"samples of type {found.dtype} and shape {found.shape}; expected numbers with at "
            "least one axis"
        )
    if found.dtype.kind in "bf":
        found = found.astype(np.float32)
        return found.transpose(2, 0, 1) if channels_last else found, label
    return channels_first(found[None])[0] if found.dtype == np.uint8 else found, label


def _sample(sample: Any) -> tuple[list[np.ndarray], Any]:
    """Inputs and label of a data set object's sample: a pair, whose first may be a tuple of several
    arrays; or a mapping of columns."""
    if isinstance(sample, Mapping):
        image, label = _column(sample, IMAGE_COLUMNS), _column(sample, LABEL_COLUMNS)
        if image is None or label is None:
            raise UserError(
                f"it has columns {', '.join(sample)}; expected {' or '.join(IMAGE_COLUMNS)}, and "
                f"{' or '.join(LABEL_COLUMNS)}"
            )
        sample = (sample[image], sample[label])
    if not isinstance(sample, Sequence) or len(sample) != 2:
        raise UserError(
            f"a sample must be (sample, label), got a {type(sample).__name__}; data may be {FORMS}"
        )
    given, label = sample
    several = isinstance(given, tuple) and all(hasattr(part, "shape") for part in given)
    parts = given if several else (given,)
    return [np.array(_array(part)) for part in parts], label  # copies: the next may lie there


def _array(image: Any) -> np.ndarray:
    """An image or a column as an array; Pillow's images by what their pixels mean."""
    if hasattr(image, "getbands"):
        return pixels(image, "of a sample")
    if isinstance(image, Sequence) and len(image) and hasattr(image[0], "getbands"):
        return _stacked([_array(own) for own in image])
    if np.ma.is_masked(image):
        raise UserError("the array has masked values: fill them in")
    try:
        found = np.asarray(image)
        return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, or a tensor of another kind
        ragged = "; pad or cut rows of several lengths" if isinstance(error, ValueError) else ""
        raise UserError(f"cannot be read as an array: {reason_of(error)}{ragged}") from None


def _stacked(images: Sequence[np.ndarray], named: Callable[[int], str] = numbered) -> np.ndarray:
    alike = in_one_form(images)
    shapes = {np.shape(image): k for k, image in reversed([*enumerate(alike)])}
    if len(shapes) > 1:
        (k, one), (j, other), *_ = sorted((k, shape) for shape, k in shapes.items())
        raise UserError(
            f"samples must have one shape, got {one} in {named(k)} and {other} in {named(j)}; "
            "scale or pad them"
        )
    return np.stack(alike)


def _tell_of_left_out(name: str, first: Any) -> None:
    """A warning of columns of the first sample beside its inputs and label, such as its weight."""
    if isinstance(first, Mapping):
        taken = _column(first, IMAGE_COLUMNS), _column(first, LABEL_COLUMNS)
        others = [str(column) for column in first if column not in taken]
        if others and None not in taken:
            line = "data %s: left out, beside %s and %s: %s"
            log.warning(line, name, *taken, ", ".join(others))


def _column(sample: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in sample), None)


def _numbers(samples: np.ndarray) -> np.ndarray:
    """The samples, (N, ...), if they can be stored."""
    if samples.dtype.kind not in "biuf" or samples.ndim < 2:
        raise UserError(
            f"samples of type {samples.dtype} and shape {samples.shape}; expected numbers, "
            "(N, ...) with at least one axis for each sample"
        )
    if samples.dtype.kind == "f" and not (np.abs(samples) <= np.finfo(np.float32).max).all():
        raise UserError("samples have NaN or infinite values as float32")
    if samples.dtype.kind in "iu" and not is_whole(samples):
        raise UserError("integers must be below 2**63")
    return samples.astype(np.float32) if samples.dtype == bool else samples


def stored(samples: np.ndarray | Lazy) -> Any:
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
            "uint8 samples are read as images with levels 0 to 255, but these are all 0 or 1: "
            "give floats"
        )
    if isinstance(samples, Lazy):
        return samples
    samples = channels_first(in_bytes(samples) if samples.dtype.kind == "f" else samples)
    kept = np.float32 if samples.dtype.kind == "f" else samples.dtype
    return np.ascontiguousarray(samples, dtype=kept)


def _one_name(parts: Iterable[Any]) -> tuple[str, ...]:
    """What the data set objects that say so call their classes."""
    found = [*dict.fromkeys(filter(None, map(_class_names, parts)))]
    if len(found) > 1:
        raise UserError(
            f"its parts name the classes differently, {found[0]} and {found[1]}: a label must mean "
            "the same class in all parts"
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


def _check(train: Split, test: Split) -> None:
    """Raises `UserError` where a split is empty, or the two differ in what they hold."""
    for part, split in (("training", train), ("test", test)):
        if not len(split.labels):
            raise UserError(f"it has no {part} samples")
        if split.labels.min() < 0:
            raise UserError(f"label {split.labels.min()}; allowed: 0 and more; values are floats")
    _check_alike(train, test)
    of_both = [None if s.targets is None else Targets.found(s.targets) for s in (train, test)]
    if len({own and (own.kind, own.shape) for own in of_both}) > 1:
        raise UserError("training and test samples have targets of different kinds")
    if constant := [k for k, s in enumerate(of_both[0].spread if of_both[0] else ()) if s <= 1e-12]:
        raise UserError(
            f"target {constant[0]} has one value in all training samples, so there is nothing to "
            "learn: leave it out"
        )


def _check_alike(train: Split, test: Split) -> None:
    """Refuses training and test samples of which a model for the ones is none for the others."""
    if train.images.dtype.names and train.images.dtype != test.images.dtype:
        raise UserError("training and test samples differ in their inputs")
    if train.images.shape[1:] != test.images.shape[1:]:
        shapes = f"{train.images.shape[1:]} and {test.images.shape[1:]}"
        raise UserError(f"training and test samples differ in shape: {shapes}")
    if unlike := unlike_columns(train.images, test.images):
        log.warning("training and test samples differ in %s: were both normalised alike?", unlike)
    learnt, tested = (Inputs.found(split.images) for split in (train, test))
    for one, other in zip(learnt.parts or [learnt], tested.parts or [tested], strict=True):
        _check_scale(one, other, one.kind == "floats" and test.images.dtype.kind in "fV")


def _check_scale(learnt: Inputs, tested: Inputs, as_floats: bool) -> None:
    """Refuses, or of floats warns of, samples that a model would see at two scales."""
    line = f"the training samples are {learnt}; the test samples are {tested}"
    if learnt.kind != tested.kind and not as_floats:
        raise UserError(f"{line}; give both in one type and range")
    width = learnt.high - learnt.low
    beyond = max(learnt.low - tested.low, tested.high - learnt.high)
    not_normalised = tested.kind == "pixels" and width >= 1.5  # theirs is 1 at most
    if learnt.kind == "floats" and (not_normalised or beyond > FAR * width):
        log.warning("%s; were both normalised alike?", line)


def _checked(name: str, train: Split, test: Split, names: tuple[str, ...]) -> Dataset:
    _check(train, test)
    check_names("class", names)
    classes = max(len(names), 1 + int(max(train.labels.max(), test.labels.max())))
    samples = len(train.labels) + len(test.labels)
    if classes > max(FEW_CLASSES, samples):
        raise UserError(
            f"label {classes - 1} is too large for {samples} samples; allowed: 0 to "
            f"{max(FEW_CLASSES, samples) - 1}, since labels number the classes"
        )
    named = names if len(names) == classes else ()
    if names and not named:
        log.warning("data %s: %d class names, but labels up to %d", name, len(names), classes - 1)
    return Dataset(name, train, test, classes, class_names=named)


# Data that is divided among clients already: a data set for each.


def _divided(clients: Sequence[Sequence[Split]]) -> tuple[Split, Split]:
    """Training and test split of the clients' own ones, for ``partition.kind natural``.

    Clients are numbered from 0 in the mapping's order. The training split holds all samples; those
    that are for a client's own test are marked as held. Together they are the test split.
    """
    forms: dict[Any, Inputs] = {}
    for own in clients:
        _check_alike(own[0], own[-1])
        inputs = Inputs.found(own[0].images)
        kinds = [part.kind for part in inputs.parts or [inputs]]
        forms |= {(inputs.shape, str(part.images.dtype), *kinds): inputs for part in own}
    if len(forms) > 1:
        named = " and ".join(str(forms[form]) for form in sorted(forms)[:2])
        raise UserError(f"all clients need samples of one kind, got {named}")
    splits = [split for own in clients for split in _two(own)]
    sizes = [len(split.labels) for split in splits]
    targets = [split.targets for split in splits if split.targets is not None]
    held = np.repeat(np.tile([False, True], len(clients)), sizes)
    train = Split(
        images=_samples_together([split.images for split in splits]),
        labels=np.concatenate([split.labels for split in splits]),
        targets=np.concatenate(targets) if targets else None,
        clients=np.repeat(np.repeat(np.arange(len(clients)), 2), sizes),
        held=held,
    )
    return train, train.take(np.flatnonzero(held))


def _samples_together(parts: Sequence[np.ndarray | Lazy]) -> np.ndarray | Lazy:
    lazy = [part for part in parts if isinstance(part, Lazy)]
    if lazy and len(lazy) < len(parts):
        raise UserError(
            "some clients' samples are loaded at once, others' when needed (as with random "
            "transforms): give all clients the same form"
        )
    return Lazy.joined(lazy) if lazy else np.concatenate([np.asarray(part) for part in parts])
