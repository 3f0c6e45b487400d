"""A validation split: training images that no client gets, on which settings are chosen."""

from dataclasses import replace

import numpy as np

from fl.data.datasets import Dataset
from fl.errors import UserError
from fl.seeding import numpy_generator


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The data set with a random share of its training images in place of its test split.

    The rest is for the clients, and the true test split is not used.

    Raises:
        UserError: the share leaves one of the two without an image.
    """
    available = len(dataset.train.labels)
    size = round(share * available)
    if not 0 < size < available:
        raise UserError(f"data.validation {share:g} of {available} images is {size} of them")
    shuffled = numpy_generator(seed, "validation").permutation(available)
    return replace(
        dataset,
        train=dataset.train.take(np.sort(shuffled[size:])),
        test=dataset.train.take(np.sort(shuffled[:size])),
    )
