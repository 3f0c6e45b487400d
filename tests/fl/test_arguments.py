"""A command line's errors are raised."""

import pytest

from fl.command import Parser
from fl.errors import UserError


def test_what_is_wrong_is_raised_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UserError, match="unrecognized arguments: --no"):
        Parser().parse_args(["--no"])
    assert capsys.readouterr() == ("", "")
