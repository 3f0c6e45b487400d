"""Figures in words, at the edges where the unit changes."""

import doctest

import pytest

from fl.report import words


def test_the_examples_in_the_documentation() -> None:
    assert doctest.testmod(words).failed == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (3600, "1 h 00 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3.2e9, "3.2 GB"), (5e15, "5000.0 TB")],
)
def test_sizes(count: float, text: str) -> None:
    assert words.size(count) == text


def test_a_loss_has_a_true_minus_sign() -> None:
    assert words.points(-0.031) == "\N{MINUS SIGN}3.1"
