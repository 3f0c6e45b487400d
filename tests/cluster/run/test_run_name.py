"""A run's name is one folder's name."""

import pytest

from cluster.run.command_line import LONGEST_BYTES, check_run_name
from fl.errors import UserError


@pytest.mark.parametrize("name", ["a", "a b", "größe=3,ö", "x" * LONGEST_BYTES, "[red]", "a..b"])
def test_any_plain_name_is_taken(name: str) -> None:
    check_run_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", ".", "..", "../x", "/x", "a/b", "a/../b", ".store", "[/x]"),
        *("a\nb", "a\0b", "\x1b[1m", "x" * (LONGEST_BYTES + 1), "ä" * LONGEST_BYTES, "\udcff"),
    ],
)
def test_what_is_no_folder_of_its_own_is_refused_in_a_line(name: str) -> None:
    with pytest.raises(UserError, match="name must be a folder's name") as refusal:
        check_run_name(name)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 400
