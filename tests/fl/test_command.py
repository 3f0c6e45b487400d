"""Command lines: whatever is typed is answered by one line, also of tyro's boxes."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from fl.command import TESTED_WITH, parsed, run_command
from fl.errors import UserError, error_line, reason_of
from tests.contracts import contract


def look(where: Path, times: int = 1) -> None:
    """Looks.

    Args:
        where: to look.
        times: how often.
    """
    print(where.stat().st_mode * times)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "where"),
        (["--where"], "--where needs a value"),
        (["--where=x", "more"], "unknown argument 'more'"),
        (["--where=x", "--nix=3"], "unknown option --nix"),
        (["--where=x", "--times=nan"], "--times must be a whole number, got 'nan'"),
        (["--where=/no/such"], "cannot use /no/such: No such file or directory"),
        ([f"--where={'x' * 5000}"], "File name too long"),
        (["--where=a\nb\udcff"], "cannot use 'a\\nb\\udcff'"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(look, "look", arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.startswith("onefold: ")
    assert printed.err.count("\n") == 1
    assert len(printed.err) < 400
    assert not printed.out


def test_good_input_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(look, "look", [f"--where={tmp_path}", "--times=0"]) == 0
    assert capsys.readouterr().out == "0\n"
    with pytest.raises(SystemExit) as end:
        run_command(look, "look", ["--help"])
    assert end.value.code == 0
    assert "how often" in capsys.readouterr().out


def test_what_was_given_is_printed_in_one_line_that_any_terminal_shows() -> None:
    line = error_line(UserError(f"no run 'a\nb\x1b[31m\udcff' in é/{'x' * 3000}"))
    assert line.isprintable()
    assert line.startswith("onefold: no run 'a b\\x1b[31m\\udcff' in é/xxx")
    assert len(line) < 250


class Silent(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_a_reason_is_one_short_line_even_of_an_error_that_cannot_say_it() -> None:
    assert reason_of(ValueError("a\n b")) == "a b"
    assert len(reason_of(ValueError("ab " * 900))) == 300
    assert reason_of(Silent()) == "it fails to say why"


@dataclass(frozen=True)
class Inner:
    lr: float = 1.0

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"inner.lr must be {'really ' * 20}positive, got {self.lr:g}")


@dataclass(frozen=True)
class Record:
    inner: Inner = field(default_factory=Inner)
    seed: int = 0
    kind: Literal["a", "bb2"] = "a"

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sed=1"], "no sed"),
        (["--seed=1", "--inner.my-lr", "2"], "no inner.my_lr"),
        (["--seed=1.5"], "--seed must be a whole number, got '1.5'"),
        (["--inner.lr=high"], "--inner.lr: could not convert string to float: 'high'"),
        (["--seed=-1"], "seed must not be negative, got -1"),
        (["--inner.lr=0"], f"inner.lr must be {'really ' * 20}positive, got 0"),
        (["--kind=bb"], "unknown --kind 'bb'; valid: a, bb2; did you mean bb2?"),
        (["--seed"], "--seed needs a value"),
        (["loose"], "unknown argument 'loose': a setting is given as --NAME VALUE"),
    ],
)
def test_a_box_is_one_line(
    arguments: list[str], expected: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    with contract("tyro", "the box of an error", TESTED_WITH):
        with pytest.raises(UserError) as refused:
            parsed(Record, arguments, "onefold", lambda name: f"no {name}")
        assert str(refused.value) == expected
