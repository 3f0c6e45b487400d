"""What a step needs is measured for real, and once."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from cluster import profiling
from cluster.profiling import Step, Subject, cache_file, measure_steps
from fl.errors import UserError
from fl.federation import RunSpec
from fl.inputs import Inputs
from fl.models.registry import register_model
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.registries import registries_restored

PROBLEM = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
SMALL = Subject(ClassifierConfig(model="cnn", width=0.5, batch_size=16), PROBLEM, 1)
LARGE = replace(SMALL, training=ClassifierConfig(model="vgg9", width=0.5, batch_size=16))
LIGHT = replace(SMALL, training=GeneratorConfig(width=0.1))
MIB = 2**20


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> list[Subject]:
    """Instead of measuring: a list of what was asked for."""
    asked: list[Subject] = []

    def pretend(subjects: list[Subject]) -> list[Step]:
        asked.extend(subjects)
        return [Step(peak_bytes=7, seconds_per_sample=0.5)] * len(subjects)

    monkeypatch.setattr(profiling, "_in_child", pretend)
    return asked


class Printing(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        print("forward")
        os.write(1, b"from C\n")
        return super().forward(images)


@pytest.mark.process
@pytest.mark.slow
def test_a_larger_model_needs_more_memory_and_time_whatever_was_measured_before() -> None:
    """What a user's model prints meanwhile is no measurement."""
    with registries_restored():
        register_model(
            "prints", lambda num_classes: Printing(nn.Flatten(), nn.Linear(784, num_classes))
        )
        printing = replace(SMALL, training=ClassifierConfig(model="prints"))
        measured = measure_steps([printing, LARGE, SMALL, LIGHT], "cpu")
    assert measured[printing].seconds_per_sample > 0
    # Half-width VGG-9 has 4.3 million weights: with gradients and momentum, 50 MB at least.
    assert 50e6 < measured[LARGE].peak_bytes < 1e9
    assert measured[SMALL].peak_bytes < measured[LARGE].peak_bytes / 3
    assert measured[LIGHT].peak_bytes < measured[LARGE].peak_bytes / 3
    took = measured[LIGHT].seconds_per_sample
    for _ in range(3):
        if took >= measured[LARGE].seconds_per_sample:  # the machine may have been busy with others
            took = measure_steps([LIGHT], "cpu", anew=True)[LIGHT].seconds_per_sample
    assert measured[LARGE].seconds_per_sample > took > 0


def test_a_second_run_measures_only_what_is_new(child: list[Subject]) -> None:
    measure_steps([SMALL], "cpu")
    found = measure_steps([SMALL, LARGE], "cpu")
    assert child == [SMALL, LARGE]
    assert found[SMALL] == Step(peak_bytes=7, seconds_per_sample=0.5)


def test_epochs_and_seed_do_not_matter_but_batch_model_threads_and_device_do(
    child: list[Subject],
) -> None:
    measure_steps([SMALL], "cpu")
    same = [
        replace(SMALL, training=replace(SMALL.training, epochs=99)),
        replace(SMALL, run_spec=replace(PROBLEM, seed=9)),
    ]
    measure_steps(same, "cpu")
    assert child == [SMALL]
    others = [
        replace(SMALL, training=replace(SMALL.training, batch_size=17)),
        replace(SMALL, training=replace(SMALL.training, width=0.6)),
        replace(SMALL, run_spec=replace(PROBLEM, inputs=Inputs((3, 32, 32)))),
        replace(SMALL, threads=2),
    ]
    measure_steps(others, "cpu")
    measure_steps([SMALL], "another device")
    assert child == [SMALL, *others, SMALL]


def test_a_spoilt_cache_is_measured_anew(child: list[Subject]) -> None:
    cache_file().parent.mkdir()
    cache_file().write_text("{")
    assert measure_steps([SMALL], "cpu") == measure_steps([SMALL], "cpu")
    assert child == [SMALL]


def test_a_cache_that_cannot_be_written_does_no_harm(
    child: list[Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert measure_steps([SMALL], "cpu")[SMALL].peak_bytes == 7


@pytest.mark.process
def test_a_step_that_fails_is_one_line_that_names_the_model() -> None:
    wrong = replace(SMALL, run_spec=replace(PROBLEM, inputs=Inputs((1, 2, 2))))
    with pytest.raises(UserError, match=r"^one step of cnn on 16 samples failed: \S") as caught:
        measure_steps([wrong], "cpu")
    assert "\n" not in str(caught.value)


def test_a_step_that_hangs_or_ends_without_a_word_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiling, "MEASURE", ["sleep", "600"])
    with monkeypatch.context() as patch:
        patch.setattr(profiling, "TIMEOUT_S", 0.01)
        with pytest.raises(UserError, match="no answer within"):
            measure_steps([SMALL], "cpu")
    monkeypatch.setattr(profiling, "MEASURE", ["true"])
    with pytest.raises(UserError, match=r"^one step of cnn on 16 samples failed: it was killed"):
        measure_steps([SMALL], "cpu")
