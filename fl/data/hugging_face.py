"""Hugging Face data sets by name, from the local cache alone: no run ever downloads."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import lru_cache
from io import StringIO
from typing import Any

from fl.data.datasets import Dataset
from fl.data.own import as_dataset
from fl.errors import UserError

PREFIX = "hf:"


def is_hugging_face(name: str) -> bool:
    """Whether it is ``hf:NAME`` or ``hf:NAME:CONFIGURATION``."""
    return name.startswith(PREFIX)


@lru_cache(maxsize=1)
def read_hugging_face(name: str) -> Dataset:
    """The data set, of whose splits ``train`` and ``test`` are used.

    Without a ``test`` split a fifth of the training split is held out.

    Raises:
        UserError: one line: the package is missing, or the cache has no such data set.
    """
    if importlib.util.find_spec("datasets") is None:
        raise UserError(f"{name} needs the package datasets: pip install 'onefold[huggingface]'")
    where, _, configuration = name.removeprefix(PREFIX).partition(":")
    from datasets import load_dataset

    try:
        with _offline(), redirect_stderr(StringIO()):  # it tells there what it has found
            found: Any = load_dataset(where, configuration or None)
    except Exception as error:  # of many kinds, for a name or a file that is not there
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name} is not in Hugging Face's cache: {reason}; to fetch it: "
            f"python -c \"import datasets; datasets.load_dataset('{where}')\""
        ) from None
    if "train" not in found:
        raise UserError(f"{name} has the splits {', '.join(found)}; expected train")
    data = {"train": found["train"], "test": found["test"]} if "test" in found else found["train"]
    return as_dataset(where, data)


@contextmanager
def _offline() -> Iterator[None]:
    """Both libraries read their variable when they are imported, so it is set in both."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
