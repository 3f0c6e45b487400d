"""The note beside an upload: read back as packed, and not believed where impossible."""

from dataclasses import replace

import pytest

from fl.client_note import ClientNote

NOTE = ClientNote(client=3, seconds=0.5, span=(1.0, 2.0), stats={"epochs": 2}, losses=[0.7, 0.5])


def test_a_note_is_read_back_as_it_was_packed() -> None:
    assert ClientNote.of(NOTE.pack({})) == NOTE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seconds": float("inf")}, "client 3 tells impossible times or bytes"),
        ({"stats": [1.0]}, "neither span nor stats"),
        ({"losses": 0.5}, "client 3 tells losses that are no numbers"),
        ({"losses": [0.5, "low"]}, "client 3 tells losses that are no numbers"),
    ],
)
def test_an_impossible_note_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ClientNote.of(replace(NOTE, **changes).pack({}))
