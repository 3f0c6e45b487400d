"""Launch settings: measured once, kept on the node, never trusted blindly."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from kernels import triton_groups as tuning
from kernels.triton_groups import CANDIDATES, Config, Shape, cache_file, tuned

SHAPE = Shape("Some GPU", torch.float32, 784, large=True)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Config]]:
    """An empty cache, and a clock by which the third candidate is fastest; what it timed."""
    launched: list[Config] = []

    def do_bench(launch: object, **options: object) -> float:
        launch()  # type: ignore[operator]
        return 1.0 if launched[-1] == CANDIDATES[2] else 2.0

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("triton.testing.do_bench", do_bench)
    tuning.forget()
    yield launched
    tuning.forget()


def test_the_fastest_is_measured_once_and_remembered(measured: list[Config]) -> None:
    assert tuned("sums", SHAPE, measured.append) == CANDIDATES[2]
    assert measured == list(CANDIDATES)
    assert tuned("sums", SHAPE, measured.append) == CANDIDATES[2]
    tuning.forget()  # as another process on this node
    assert tuned("sums", SHAPE, measured.append) == CANDIDATES[2]
    assert len(measured) == len(CANDIDATES)


@pytest.mark.parametrize(
    ("kernel", "other"),
    [
        ("distances", SHAPE),
        ("sums", Shape("Another GPU", torch.float32, 784, large=True)),
        ("sums", Shape("Some GPU", torch.float16, 784, large=True)),
        ("sums", Shape("Some GPU", torch.float32, 785, large=True)),
    ],
)
def test_what_differs_is_measured_again(measured: list[Config], kernel: str, other: Shape) -> None:
    tuned("sums", SHAPE, measured.append)
    tuned(kernel, other, measured.append)
    assert len(measured) == 2 * len(CANDIDATES)
    assert len(tuning._read()) == 2


def test_small_samples_measure_nothing(measured: list[Config]) -> None:
    shape = Shape("Some GPU", torch.float32, 784, large=False)
    assert tuned("sums", shape, measured.append) == tuning.DEFAULT
    assert not measured


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_known_cards_measure_nothing(measured: list[Config], name: str) -> None:
    shape = Shape(name, torch.float32, 784, large=True)
    assert tuned("sums", shape, measured.append) == tuning.DEFAULT
    assert not measured


def test_a_flipped_bit_is_named_and_measured_anew(
    measured: list[Config], caplog: pytest.LogCaptureFixture
) -> None:
    tuned("sums", SHAPE, measured.append)
    content = bytearray(cache_file().read_bytes())
    content[-20] ^= 1
    cache_file().write_bytes(content)
    tuning.forget()
    assert tuned("sums", SHAPE, measured.append) == CANDIDATES[2]
    assert len(measured) == 2 * len(CANDIDATES)
    assert "is damaged: it is ignored" in caplog.text


@pytest.mark.parametrize(
    "content",
    ["", "no json", "[]", "{}", '{"KEY": {"rows": 3, "features": 1, "warps": 99}}', '{"KEY": 1}'],
)
def test_a_spoilt_cache_is_measured_anew(measured: list[Config], content: str) -> None:
    cache_file().parent.mkdir()
    cache_file().write_text(content.replace("KEY", tuning.cache_key("sums", SHAPE)))
    assert tuned("sums", SHAPE, measured.append) == CANDIDATES[2]
    assert len(measured) == len(CANDIDATES)


def test_a_cache_that_cannot_be_written_does_no_harm(
    measured: list[Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert tuned("sums", SHAPE, measured.append) == CANDIDATES[2]


def test_the_interpreter_measures_nothing(measured: list[Config]) -> None:
    shape = Shape.of(torch.zeros(3, 5))
    assert shape.device is None
    assert tuned("sums", shape, measured.append) == tuning.INTERPRETED
    assert not measured


def test_without_a_cache_of_tritons_it_lies_in_the_nodes_own_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert not cache_file().is_relative_to(Path.home())
    assert str(os.getuid()) in str(cache_file())


def test_every_candidate_can_be_launched() -> None:
    from kernels.triton_groups import PIECE

    for config in (*CANDIDATES, tuning.DEFAULT, tuning.INTERPRETED):
        assert PIECE % config.rows == 0
        assert all(n & (n - 1) == 0 for n in (config.rows, config.features, config.warps))
