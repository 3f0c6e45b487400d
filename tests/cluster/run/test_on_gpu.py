"""A whole run in this process, on a GPU: the same files as on the CPU."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from cluster.profiling import Subject, measure
from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.run.run_dir import claim
from cluster.run.runner import execute
from fl import sample_quality
from fl.events import Epoch, Event
from fl.exchange import Tensors
from fl.federation import TaskOutput
from fl.training import slots
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.recipe import Recipe
from tests.cluster.commands import SMALL
from tests.fl.devices import Where, assert_same, on_both
from tests.fl.toy import PROBLEM
from tests.pretended_gpu import pretended_gpus
from tests.undrawn import WRITE_REPORT, draw_nothing

pytestmark = pytest.mark.gpu


def test_a_run_leaves_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its distances need a data set, a model and what is generated to be in one place."""
    monkeypatch.setattr(sample_quality, "STEPS", 3)

    def work(where: Where) -> tuple[Tensors, Tensors, float]:
        root = tmp_path / where.device.type
        tiny = ["--num-clients=2", "--data.max-train=40", "--data.max-test=40", "--num-samples=20"]
        tiny += ["--generator.epochs=1", "--fusion.epochs=1"]
        arguments = [*SMALL, *tiny, "--runtime=inprocess", "--fid"]
        launch = parse([*arguments, f"--output-dir={root}", "--name=run"])
        folder = claim(launch)
        arithmetic: set[str] = set()

        def heard(event: Event) -> None:
            if isinstance(event, Epoch):  # of the server's fit
                arithmetic.add(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]

        drawn = where.device.type != "cpu"
        with nullcontext() if drawn else mock.patch(WRITE_REPORT, draw_nothing):
            result = execute(launch, prepare(launch), folder, Console(quiet=True), heard)
        assert (folder / "report.html").exists() == drawn
        assert result["precision"] == "fp32"
        (uuid,) = {placement["device_uuid"] for placement in result["placements"]}
        if where.device.type == "cpu":
            assert (uuid, result["device"][:3]) == (None, "cpu")
        else:
            assert arithmetic == {"ieee"}
            assert uuid.startswith("GPU-")
            assert result["device"] == torch.cuda.get_device_name()
        said = result["oracle"]
        shares = [said["accuracy"], said["agreement"], *said["teacher"].values()]
        assert all(0 <= share <= 1 for share in shares)
        pictures = load_file(folder / "synthetic" / "samples.safetensors")
        return load_file(folder / "model" / "global.safetensors"), pictures, result["accuracy"]

    assert_same(*on_both(work))


@pytest.mark.parametrize("shared", [False, True])
def test_a_step_is_measured_on_a_gpu_of_light_clients_a_wave(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []

    def counted(recipes: Sequence[Recipe], count: int) -> list[TaskOutput]:
        trained.append(len(recipes))
        return in_slots(recipes, count)

    in_slots = slots.train
    monkeypatch.setattr(slots, "train", counted)
    monkeypatch.setattr(slots, "suits", lambda device: device.type == "cuda")
    monkeypatch.setattr(slots, "SLOTS", 3)
    with pretended_gpus():
        step = measure(Subject(GeneratorConfig(width=0.1, latent=4), PROBLEM, 1, shared))
    assert step.peak_bytes == 0  # of a GPU that takes no memory
    assert step.seconds_per_sample > 0
    assert step.in_slots is shared
    assert trained == ([1, 3, 3] if shared else [1, 1, 1])


def test_light_clients_that_do_not_fit_into_slots_are_measured_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "suits", lambda device: device.type == "cuda")
    normed = ClassifierConfig(model="resnet18", width=0.03, batch_size=2)
    with pretended_gpus():
        assert not measure(Subject(normed, PROBLEM, 1, shared=True)).in_slots
