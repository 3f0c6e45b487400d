"""A run's configuration: what goes with what, and what is known before any image is read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fl.config import DataConfig, RunConfig
from fl.data.datasets import INFO, NAMES
from fl.data.partition import PartitionConfig
from fl.errors import UserError
from fl.methods.fedavg import FedAvgConfig
from fl.methods.fedmho import FedMHOConfig
from fl.methods.registry import METHODS, register
from fl.training.private import DpConfig
from tests.fl.data.domain_folder import SHADES, tree


def test_the_configuration_names_data_set_and_folder_together(tmp_path: Path) -> None:
    data = DataConfig(folder=str(tree(tmp_path)), side=16)
    config = RunConfig(method="fedavg", dataset="folder", data=data, options=FedAvgConfig())
    assert config.run_spec.image_shape == (3, 16, 16)
    assert config.run_spec.domains == tuple(sorted(SHADES))
    for wrong in ({"dataset": "folder"}, {"data": data}):
        with pytest.raises(UserError, match="need each other"):
            RunConfig(method="fedavg", options=FedAvgConfig(), **wrong)
    with pytest.raises(UserError, match="needs data set folder"):
        RunConfig(
            method="fedavg", options=FedAvgConfig(), partition=PartitionConfig(kind="domains")
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_shape_of_the_task_is_known_without_a_file(name: str) -> None:
    config = RunConfig(dataset=name, seed=7, options=FedMHOConfig())
    spec = config.run_spec
    assert (spec.inputs, spec.num_classes) == (INFO[name].inputs, INFO[name].num_classes)
    assert spec.seed == 7
    assert spec.domains == ()


def test_only_methods_of_many_rounds_take_more_than_one() -> None:
    for name, method in METHODS.items():
        if method.one_shot:
            with pytest.raises(UserError, match=f"^{name} is a one-shot method: rounds must be 1$"):
                RunConfig(method=name, rounds=2, options=method.config())
        else:
            assert RunConfig(method=name, rounds=2, options=method.config()).rounds == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "fedmoh"}, r"^unknown method 'fedmoh'; valid: centralised, co-boosting, "),
        ({"dataset": "minst"}, r"^unknown dataset 'minst'; valid: cifar10, .*folder, mnist"),
        ({"alpha": 0.0}, r"^alpha must be a positive number, got 0.0$"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        RunConfig(options=FedMHOConfig(), **settings)


def test_differential_privacy_is_refused_where_a_client_tells_more_than_one_training() -> None:
    private = {"dp": DpConfig(epsilon=8.0)}
    for name in ("fedmho", "fedmho-sd", "fedavg", "dense"):
        RunConfig(method=name, options=METHODS[name].config(), **private)
    for name in ("moon", "fedmho-open", "fedd2s", "hfldd"):
        with pytest.raises(UserError, match=f"works with .*fedmho.*, not with {name}$"):
            RunConfig(method=name, options=METHODS[name].config(), **private)
    with pytest.raises(UserError, match="has clients that train twice"):
        RunConfig(method="fedmho", options=FedMHOConfig(decoders="all"), **private)


@pytest.mark.parametrize("field", ["supports_dp", "scores_clients"])
def test_a_method_that_answers_without_its_settings_is_refused(field: str) -> None:
    wrong: Any = {field: True}
    with pytest.raises(UserError, match=f"mine: {field} must be a function of the settings"):
        register(replace(METHODS["fedavg"], name="mine", **wrong))
    assert "mine" not in METHODS
