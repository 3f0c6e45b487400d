"""A run's folder as a result, and its model; methods of the user's own."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import onefold
from fl.errors import UserError
from fl.federation import RunSpec
from fl.methods.registry import METHODS
from fl.models.registry import build_classifier
from fl.models.saved import save_model
from fl.training.classifier import ClassifierConfig
from onefold.methods import OneClassifier
from onefold.result import Result, load_model, load_result


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


def test_a_result_says_how_many_rounds_were_played(tmp_path: Path) -> None:
    figures = {"accuracy": 0.25, "method": "m", "dataset": "d", "clients": 4, "rounds": 9}
    figures |= {"bytes_up": 1, "bytes_down": 1, "seconds": {"total": 1.0}}
    assert "4 clients, 9 rounds" in repr(Result(tmp_path, figures))
    assert "4 clients, 2 rounds" in repr(Result(tmp_path, {**figures, "stopped_after": 2}))


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


SPEC = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
pytestmark = pytest.mark.usefixtures("elsewhere")
TOO_SMALL = RunSpec.of_images((1, 8, 8), num_classes=10, seed=0)


@dataclass(frozen=True, kw_only=True)
class Settings(OneClassifier):
    """One more setting."""

    share: float = 0.5


def test_a_decorated_function_is_a_method_whose_clients_train_one_classifier() -> None:
    @onefold.method("mine", config=Settings, over_rounds=False)
    def mine(clients, server, config):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    assert METHODS["mine"] is mine
    assert mine.one_shot
    config = Settings(classifier=ClassifierConfig(model="cnn"))
    assigned = mine.assign(config, 3, SPEC)
    assert [(a.role, a.training) for a in assigned] == [("classifier", config.classifier)] * 3
    with pytest.raises(UserError, match="lenet5 does not take images of shape"):
        mine.assign(Settings(classifier=ClassifierConfig(model="lenet5")), 3, TOO_SMALL)


def test_a_name_of_onefolds_is_refused() -> None:
    with pytest.raises(UserError, match="method fedavg comes with Onefold"):
        onefold.method("fedavg")(lambda clients, server, config, rounds: None)  # type: ignore
    with pytest.raises(UserError, match="expected a Method, got str"):
        onefold.register_method("mine")  # type: ignore[arg-type]
