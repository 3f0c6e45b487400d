"""A file of settings that changed after it was written is still read, and named."""

from pathlib import Path

import pytest
import yaml

from fl.yaml_checksum import warn_if_changed, with_checksum

PATH = Path("runs/mine/config.yaml")


def test_what_is_as_it_was_written_is_read_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    content = with_checksum("method: fedavg\nname: ä\n")
    assert yaml.safe_load(content) == {"method": "fedavg", "name": "ä"}
    warn_if_changed(PATH, content)
    warn_if_changed(PATH, b"method: fedavg\n")
    assert not caplog.messages


def test_each_flipped_bit_of_a_setting_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    content = with_checksum("seed: 0\n")
    for bit in range(8 * len("seed: 0\n")):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        caplog.clear()
        warn_if_changed(PATH, bytes(damaged))
        (message,) = caplog.messages
        assert message == f"{PATH} is not what was written: it was edited, or is damaged"
