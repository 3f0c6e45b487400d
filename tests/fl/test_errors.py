"""What errors say, in one line, whatever is in them."""

from fl.errors import UserError, error_line, reason_of


class Silent(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_a_reason_is_one_short_line_even_of_an_error_that_cannot_say_it() -> None:
    assert reason_of(ValueError("a\n b")) == "a b"
    assert len(reason_of(ValueError("ab " * 900))) == 300
    assert reason_of(Silent()) == "it fails to say why"


def test_what_cannot_be_printed_is_escaped() -> None:
    assert error_line(UserError("a\x1b[1m\nb\udcff")) == "onefold: a\\x1b[1m b\\udcff"
