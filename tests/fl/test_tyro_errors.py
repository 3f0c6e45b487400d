"""Tyro's error boxes are read to one line, whatever the terminal makes of them."""

import contextlib
import io
from dataclasses import dataclass, field
from typing import Literal

import pytest
import tyro

from fl.tyro_errors import TESTED_WITH, one_line
from tests.contracts import contract


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


def box(arguments: list[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit):
        tyro.cli(Record, prog="onefold", args=arguments)
    return said.getvalue()


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
        assert one_line(box(arguments), lambda name: f"no {name}") == expected
