"""YAML files within limits; those of settings, which people write, are well within."""

from pathlib import Path

import pytest

from cluster.run.yaml_files import DEEPEST, MOST_BYTES, read_yaml


def test_settings_are_read_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: {b: [1, x]}\nc: 0.5\n")
    assert read_yaml(tmp_path / "c.yaml") == {"a": {"b": [1, "x"]}, "c": 0.5}


def test_a_byte_order_mark_as_windows_writes_it_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("seed: 3\n", encoding="utf-8-sig")
    assert read_yaml(tmp_path / "c.yaml") == {"seed": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested more"),
        ("a: &x 1\nb: *x", "aliases"),
        ("#" * (MOST_BYTES + 1), "larger than"),
        ("seed: 1\nalpha: 2\nseed: 3", "'seed' stands 2 times"),
        ("a: [{lr: 1, lr: 1}]", "'lr' stands 2 times"),
    ],
)
def test_what_is_beyond_the_limits_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_yaml(tmp_path / "c.yaml")
