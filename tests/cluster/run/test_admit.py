"""What is known of a run before any data is read."""

from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.run.prepare import admit, prepare
from fl.errors import UserError
from fl.training.private import PrivateClassifier

SMALL = ["--method=fedavg", "--num-clients=3", "--runtime=inprocess"]


def test_a_run_is_admitted_before_its_data_are_there_and_prepared_as_admitted(
    tmp_path: Path,
) -> None:
    missing = parse([*SMALL, "--dataset=mnist", f"--data-root={tmp_path}"])
    assert admit(missing).run_spec.image_shape == (1, 28, 28)
    with pytest.raises(UserError, match="mnist: missing"):
        prepare(missing)
    here = parse([*SMALL, "--data.max-train=200"])
    admitted, prepared = admit(here), prepare(here)
    assert [a.training for a in admitted.assignments] == [c.training for c in prepared.members]
    assert admitted.run_spec == prepared.run_spec
    assert admitted.inventory == prepared.inventory


def test_what_configuration_and_machine_rule_out_is_refused() -> None:
    with pytest.raises(UserError, match="at least one classifier client"):
        admit(parse(["--num-clients=1", "--runtime=inprocess"]))
    with pytest.raises(UserError, match="cpus"):
        admit(parse([*SMALL, "--resources.classifier.cpus=4000"]))


def test_with_a_budget_clients_train_with_differential_privacy() -> None:
    private = admit(parse([*SMALL, "--dp.epsilon=8"])).assignments
    assert {type(a.training) for a in private} == {PrivateClassifier}
