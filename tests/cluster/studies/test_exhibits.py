"""Every table and figure that is drawn is one that can be run, and is told."""

import pytest

from cluster.studies.cells import TABLES
from cluster.studies.exhibits import EXHIBITS


def test_what_is_drawn_can_be_run() -> None:
    assert EXHIBITS.keys() <= TABLES.keys()


@pytest.mark.parametrize("name", [name for name in EXHIBITS if name.startswith("hfldd")])
def test_hfldds_pictures_have_names_of_their_own(name: str) -> None:
    assert set(EXHIBITS[name].also) == ({"traffic", "clusters"} if name == "hfldd" else set())
