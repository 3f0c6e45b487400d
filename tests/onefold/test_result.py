"""A run's folder as a result, and its model."""

from pathlib import Path

import pytest
import torch

from fl.errors import UserError
from fl.models import build_classifier
from fl.models.saved import save_model
from onefold.result import load_model, load_result


def test_a_folder_that_is_no_finished_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished run"):
        load_result(tmp_path)
    with pytest.raises(UserError, match="holds no model"):
        load_model(tmp_path)


def test_a_model_is_loaded_by_its_runs_folder_or_its_file(tmp_path: Path) -> None:
    model = build_classifier("cnn", (1, 28, 28), 10)
    (tmp_path / "model").mkdir()
    (tmp_path / "config.yaml").write_text("plugin: []\n")
    file = tmp_path / "model" / "global.safetensors"
    save_model(model, file)
    images = torch.rand(2, 1, 28, 28)
    for path in (tmp_path, file):
        assert torch.equal(load_model(path)(images), model.eval()(images))


def test_figures_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(
        '{"accuracy": 0.25, "method": "a<b", "dataset": "mine", "placements": [{"client": 0}]}'
    )
    result = load_result(tmp_path)
    assert (result.accuracy, result.clients, result.pictures) == (0.25, [{"client": 0}], {})
    assert "a&lt;b on mine: accuracy 0.2500" in result._repr_html_()


def test_a_notebook_shows_each_picture_by_its_own_kind(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"accuracy": 0.25, "method": "m", "dataset": "d"}')
    (tmp_path / "plots").mkdir()
    for name in ("samples.png", "time.svg", "notes.txt"):
        (tmp_path / "plots" / name).write_bytes(b"x")
    result = load_result(tmp_path)
    assert {name: file.name for name, file in result.pictures.items()} == {
        "samples": "samples.png",
        "time": "time.svg",
    }
    page = result._repr_html_()
    assert 'alt="samples"' in page
    assert page.count("data:image/svg+xml;base64,eA==") == 1
    assert page.count("data:image/png;base64,eA==") == 1
