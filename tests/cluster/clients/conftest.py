"""A Ray of two cores, for the tests of a module."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # Ray may be missing
    from cluster.hardware.bundles import Bundles


@pytest.fixture(scope="module")
def bundles(template: Path) -> "Iterator[Bundles]":
    from cluster.hardware.bundles import open_bundles
    from cluster.hardware.private_ray import private_ray
    from cluster.scheduling.capacity import Bundle

    whole = Bundle(name="here", cpus=2, gpus=0, memory_bytes=2**32)
    own = private_ray(whole, template=template)
    with own, open_bundles() as bundles:
        yield bundles
