"""Ctrl-C is Ctrl-C, also when something fails because of it."""

from pathlib import Path

import pytest

from cluster.run.runner import interrupt_first
from fl.whole_files import Sealing
from tests.cluster.commands import launch


def test_a_run_that_is_interrupted_amid_a_file_of_torchs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own error takes the interrupt's place there."""
    asked = ("--name=run", "--runtime=inprocess", "--fusion-checkpoint=1")
    write = Sealing.write

    def stopped(self: Sealing, content: bytes) -> int:
        if len(content) < 1000:
            return write(self, content)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Sealing, "write", stopped)
        done = launch(tmp_path, *asked)
    assert (done.returncode, done.stderr.count("\n")) == (130, 1)
    assert done.stderr.startswith("interrupted; ")
    assert launch(tmp_path, *asked, "--resume").returncode == 0


def fails_twice() -> None:
    try:
        raise OSError("another")
    except OSError:
        raise ValueError("own")  # noqa: B904


def test_what_no_interrupt_has_to_do_with_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="own"), interrupt_first():
        fails_twice()
