"""Every data set that a run can name: Onefold's, those that the user registered, and paths."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fl.bounds import Bound
from fl.data import datasets
from fl.data.by_path import is_hugging_face, is_path, read_hugging_face, read_path
from fl.data.datasets import INFO, NAMES, Dataset, DatasetInfo, subset
from fl.data.lazy import Lazy
from fl.data.own import as_dataset
from fl.errors import UserError, check_name, unknown
from fl.sources import code_of

REGISTERED: dict[str, Dataset] = {}
_GIVEN: dict[str, tuple[Any, Callable[[Tensor], Tensor] | None, str]] = {}
"""What a registered data set was made of, and the digest of the code that reads it later."""


class DatasetName(Bound):
    """The name of a data set, or of one that the user registered; or the path of one."""

    def __init__(self, also: Iterable[str] = ()) -> None:
        """``also``: names that stand for data sets without being in the catalogue."""
        self._also = tuple(also)

    def allows(self, value: object) -> bool:
        """Whether there is such a name, or it is a path, which is looked for later."""
        return isinstance(value, str) and (is_elsewhere(value) or value in self.names)

    def refusal(self, name: str, value: object) -> UserError:
        """The error lists the names."""
        return UserError(
            f"{unknown(name, value, self.names)}; or the path of an .npz or a folder, or hf:NAME"
        )

    @property
    def names(self) -> list[str]:
        """All names there are."""
        return [*NAMES, *REGISTERED, *self._also]


def register_dataset(
    name: str, data: Any, augment: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Makes the user's data known by a name, for ``--dataset``.

    Args:
        name: letters, digits and ``. _ + -``; not one of Onefold's data sets.
        data: whatever :func:`fl.data.own.as_dataset` takes.
        augment: a function of one sample, as a model gets it, by which it is changed each time that
            a classifier trains on it, such as torchvision's random transforms.

    Raises:
        UserError: the name is taken, or the data is none.
    """
    check_name("data set", name, {*NAMES, "folder"})
    found = REGISTERED[name] = as_dataset(name, data, augment)
    lazy = isinstance(found.train.images, Lazy) and found.train.images.draws
    kept = data if lazy else replace(found, train=replace(found.train, augment=None))
    _GIVEN[name] = (kept, augment, _code(kept, augment))


def read_again(name: str) -> None:
    """Registers a data set anew, if what its code refers to has changed since it was registered.

    Raises:
        UserError: as :func:`register_dataset`.
    """
    data, augment, code = _GIVEN.get(name, (None, None, ""))
    if code and code != _code(data, augment):
        register_dataset(name, data, augment)


def _code(data: Any, augment: Callable[[Tensor], Tensor] | None) -> str:
    return code_of((None if isinstance(data, Dataset) else data, augment)).digest


def dataset_info(name: str) -> DatasetInfo:
    """Classes and samples of a data set; one of the user's own is read for it.

    Raises:
        UserError: there is no such data set, or it cannot be read.
    """
    if name in INFO:
        return INFO[name]
    found = own_dataset(name)
    return DatasetInfo(found.num_classes, found.inputs, found.targets)


def load(
    name: str, data_root: Path, *, max_train: int | None = None, max_test: int | None = None
) -> Dataset:
    """The data set of that name; see :func:`fl.data.datasets.load`."""
    if name in INFO:
        return datasets.load(name, data_root, max_train=max_train, max_test=max_test)
    return subset(own_dataset(name), max_train=max_train, max_test=max_test)


def short_name(name: str) -> str:
    """The name as a part of a file's name."""
    return Path(name.rpartition(":")[2]).stem if is_elsewhere(name) else name


def is_elsewhere(name: str) -> bool:
    """Whether it is a path, or the name of a data set of Hugging Face's."""
    return is_hugging_face(name) or is_path(name)


def own_dataset(name: str) -> Dataset:
    """The user's data set of that name or path, whole.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    if name in REGISTERED:
        return REGISTERED[name]
    if is_hugging_face(name):
        return read_hugging_face(name)
    if is_path(name):
        return read_path(name)
    raise unknown("data set", name, [*NAMES, *REGISTERED])
