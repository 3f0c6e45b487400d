"""The launch command's help on one screen."""

from collections.abc import Callable, Sequence

import pytest

from cluster.run.command_line import parse
from cluster.studies.suite_options import parse_suite
from fl.methods.registry import METHODS
from tune.options import parse_sweep


@pytest.mark.parametrize("method", ["fedmho-sd", "fedd2s"])
def test_help_is_one_screen_of_80_columns_with_methods_examples_and_groups(
    capsys: pytest.CaptureFixture[str], method: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--method", method, "--help"])
    assert not stop.value.code
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    words = " ".join(lines).replace(",", " ").split()
    assert METHODS.keys() <= set(words)
    assert {"--alpha", "classifier.*", "--help-all"} <= set(words)
    assert ("dropping.*" in words) == (method == "fedd2s")


@pytest.mark.parametrize(
    ("read", "word"), [(parse_suite, "--help"), (parse_sweep, "--help"), (parse, "--help-all")]
)
def test_all_settings_are_told_within_80_columns(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Sequence[str]], object],
    word: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        read([word])
    assert not stop.value.code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= 80
