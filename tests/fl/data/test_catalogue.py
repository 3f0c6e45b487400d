"""Every data set that a run can name."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fl.data import catalogue
from fl.data.catalogue import DatasetName, dataset_info, load, register_dataset, short_name
from fl.errors import UserError

DATA = (np.zeros((10, 4, 4), np.uint8), np.arange(10) % 2)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    catalogue.REGISTERED.clear()


def test_a_registered_data_set_is_known_by_its_name() -> None:
    register_dataset("mine", DATA)
    assert dataset_info("mine").inputs.shape == (1, 4, 4)
    assert len(load("mine", Path(), max_train=3).train.labels) == 3
    assert DatasetName().allows("mine")


def test_onefolds_own_stay_what_they_are() -> None:
    assert dataset_info("digits").num_classes == 10
    for taken in ("digits", "folder"):
        with pytest.raises(UserError, match="comes with Onefold"):
            register_dataset(taken, DATA)
    with pytest.raises(UserError, match="allowed: letters, digits"):
        register_dataset("a/b", DATA)


def test_an_unknown_name_lists_those_there_are_and_paths() -> None:
    register_dataset("mine", DATA)
    bound = DatasetName(["folder"])
    assert not bound.allows("minst")
    assert bound.allows("folder")
    assert bound.allows("data/mine.npz")  # it is looked for when it is read
    refusal = str(bound.refusal("dataset", "minst"))
    assert "mine" in refusal
    assert "or the path of an .npz" in refusal
    with pytest.raises(UserError, match="unknown data set 'minst'"):
        load("minst", Path())


def test_a_path_is_named_by_its_file() -> None:
    assert short_name("data/mine.npz") == "mine"
    assert short_name("mnist") == "mnist"
