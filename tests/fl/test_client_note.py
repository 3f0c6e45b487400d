"""A client's note is checked before a figure of it is believed."""

import json
from typing import Any

import pytest

from fl.client_note import ClientNote, readable_notes
from fl.wire import pack

WHOLE = ClientNote(
    client=3, role="classifier", model="cnn", seconds=1.0, span=(2.0, 3.0), losses=[0.7, 0.5]
)


def told(**changes: Any) -> bytes:
    return pack({}, {"seconds": 1.0, "span": [2.0, 3.0], "stats": {}, **changes})


def test_a_note_is_read_as_it_was_written() -> None:
    assert ClientNote.of(WHOLE.pack({})) == WHOLE
    assert ClientNote.of(told(peak_bytes=7)).peak_bytes == 7
    assert ClientNote.of(told(peak_bytes=None, node=None, assigned=None)).assigned is None


def test_an_older_note_has_the_defaults() -> None:
    assert ClientNote.of(pack({}, {"seconds": 2})) == ClientNote(seconds=2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seconds": None}, "impossible times"),
        ({"seconds": -1}, "impossible times"),
        ({"seconds": "1"}, "impossible times"),
        ({"seconds": True}, "impossible times"),
        ({"span": [3.0, 2.0]}, "impossible times"),
        ({"span": [1.0]}, "no span"),
        ({"span": "ab"}, "no span"),
        ({"peak_bytes": -5}, "impossible peak_bytes"),
        ({"peak_bytes": 2**70}, "impossible peak_bytes"),
        ({"cohort": 0}, "impossible cohort"),
        ({"node": "a\x1b[2Jb"}, "cannot be printed"),
        ({"node": "n" * 201}, "no readable node"),
        ({"model": 7}, "no readable model"),
        ({"stats": [1]}, "no figures"),
        ({"stats": {"loss": "low"}}, "impossible figure"),
        ({"stats": {"loss": 1e39}}, "impossible figure"),
        ({"stats": {"x\n": 1.0}}, "impossible figure"),
        ({"stats": {str(n): 0.0 for n in range(10_001)}}, "no figures"),
        ({"assigned": {"GPU": None}}, "impossible figure"),
        *(({"span": value}, "no span") for value in (None, 0, False, [], {})),
        *(({"stats": value}, "no figures") for value in (None, 0, False, [], "")),
        *(({"losses": value}, "losses that are no numbers") for value in (None, 0, False, {})),
        ({"assigned": []}, "no figures"),
        ({"cohort": None}, "impossible cohort"),
        ({"client": None}, "impossible client"),
        ({"role": None}, "no readable role"),
        ({"losses": 0.5}, "losses that are no numbers"),
        ({"losses": [0.5, "low"]}, "losses that are no numbers"),
    ],
)
def test_impossible_notes_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ClientNote.of(told(**changes))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_figure_that_is_no_number_is_refused(word: str) -> None:
    assert word in json.dumps({"x": float(word)})
    with pytest.raises(ValueError, match=f"the note holds {word}"):
        ClientNote.of(told(stats={"loss": float(word)}))


def test_notes_that_cannot_be_read_are_left_out() -> None:
    assert readable_notes([b"", WHOLE.pack({}), told(seconds=-1)]) == [WHOLE]
