"""The launch command's help on one screen."""

import pytest

from cluster.run.command_line import parse
from fl.methods.registry import METHODS


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
