"""The command that prints the scripts for completion."""

import pytest

from onefold.completion import main


def test_help_and_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert 'eval "$(onefold completion bash)"' in capsys.readouterr().out
    assert main(["bsh"]) == 2
    said = capsys.readouterr().err
    assert said == "onefold: unknown shell 'bsh'; valid: bash, fish, zsh; did you mean bash?\n"
