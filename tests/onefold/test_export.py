"""An exported model answers as the run's own does, on the test split."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fl.data.datasets import load
from fl.errors import UserError
from fl.models.ensemble import Ensemble
from fl.models.registry import build_classifier
from fl.models.saved import save_model
from onefold.result import export_model, load_model
from onefold.runs import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose global model is two classifiers."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text("method: fedavg\n")
    members = [
        build_classifier(name, (1, 28, 28), 10, width=width)
        for name, width in (("cnn", 1.0), ("vgg9", 0.05))
    ]
    save_model(Ensemble(members), folder / "model" / "global.safetensors")
    return folder


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """The digits' test split, in [0, 1]."""
    return torch.from_numpy(load("digits", Path()).test.images).float() / 255


def test_an_exported_program_gives_the_models_answers(run: Path, images: torch.Tensor) -> None:
    assert (
        main(["export", "--output-dir", str(run.parent), "--torch-export", f"{run}.pt2", "mine"])
        == 0
    )
    program = torch.export.load(f"{run}.pt2").module()
    torch.testing.assert_close(program(images), load_model(run)(images))


def test_onnx_gives_the_models_answers(run: Path, images: torch.Tensor) -> None:
    runtime = pytest.importorskip("onnxruntime")
    export_model(run, run / "model.onnx", onnx=True)
    session = runtime.InferenceSession(str(run / "model.onnx"))
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(logits), load_model(run)(images), rtol=1e-4, atol=1e-5
    )


class Odd(nn.Module):
    """Does what torch.export cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.layer(images.flatten(1))
        return found if float(found.sum()) > 0 else -found


def test_what_cannot_be_exported_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Odd()
    odd.built_as = build_classifier("cnn", (1, 28, 28), 10).built_as  # type: ignore[assignment]
    monkeypatch.setattr("onefold.result.load_model", lambda path: odd)
    with pytest.raises(UserError, match="cannot be exported") as caught:
        export_model(run, tmp_path / "odd.pt2", onnx=False)
    assert "\n" not in str(caught.value)


def test_one_run_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--output-dir", str(run.parent), "--onnx", "x.onnx"]) == 2
    assert "name the run whose model" in capsys.readouterr().err
