"""What is known of a run before its data, and what a method asks for beyond its clients."""

from pathlib import Path

import numpy as np
import pytest

from cluster.run.command_line import parse
from cluster.run.prepare import admit, prepare, refuse_large
from fl.errors import UserError
from fl.federation import RunSpec
from fl.models.registry import build_classifier
from fl.training.classifier import ClassifierConfig
from fl.training.private import PrivateClassifier
from tests.cluster.run.made_up import measure_nothing

SMALL = ["--data.max-train=200", "--num-clients=4", "--runtime=inprocess"]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_nothing(monkeypatch)


@pytest.mark.parametrize(
    ("method", "asked", "ranks"),
    [
        # These two make data between epochs.
        *(("dense", SMALL, 1), ("co-boosting", SMALL, 1)),
        ("dense", [*SMALL[:2], "--fusion-ranks=2"], 2),
        *(("fedavg", SMALL, None), ("fedavg", [*SMALL, "--fusion-ranks=1"], 1)),
        ("fedaf", [*SMALL[:2], "--fusion-ranks=2"], 2),
    ],
)
def test_a_server_has_the_ranks_that_are_asked_for_else_its_methods(
    method: str, asked: list[str], ranks: int | None
) -> None:
    assert prepare(parse([f"--method={method}", *asked])).fusion_ranks == ranks


def test_missing_auxiliary_data_are_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"auxiliary data: mnist: files in .*missing"):
        prepare(parse(["--method=feddf", *SMALL, f"--data-root={tmp_path}"]))


def test_methods_without_auxiliary_data_get_none() -> None:
    assert prepare(parse(["--method=fedavg", *SMALL])).inputs == {}


def indices(parts: tuple[np.ndarray, ...]) -> set[int]:
    return {int(k) for own in parts for k in own}


def test_who_is_scored_on_its_own_samples_has_a_fifth_of_them_held_out() -> None:
    found = prepare(parse(["--method=local", *SMALL])).partition
    for train, test in zip(found.train, found.test, strict=True):
        assert len(test) == round(0.2 * (len(train) + len(test)))
    assert not indices(found.train) & indices(found.test)
    assert not indices(prepare(parse(["--method=fedavg", *SMALL])).partition.test)
    tuned = ["--method=fedavg", "--tested=tuned", *SMALL]
    assert indices(prepare(parse(tuned)).partition.test) == indices(found.test)
    asked = ["--method=fedavg", "--partition.test-fraction=0.5", *SMALL]
    assert len(indices(prepare(parse(asked)).partition.test)) == pytest.approx(100, abs=4)


def test_settings_are_chosen_on_training_samples_of_each_client() -> None:
    """With validation the clients' test samples are neither scored nor trained on."""
    final = prepare(parse(["--method=local", *SMALL])).partition
    found = prepare(parse(["--method=local", "--data.validation=0.25", *SMALL])).partition
    assert indices(found.train) | indices(found.test) == indices(final.train)
    assert not indices(found.train) & indices(found.test)
    for train, held_out in zip(found.train, found.test, strict=True):
        assert len(held_out) == round(0.25 * (len(train) + len(held_out)))
    assert found.digest != final.digest


def test_test_samples_of_classes_that_no_client_trains_on_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    classes = ["--partition.kind=classes", "--partition.classes-per-client=2", "--data.max-test=50"]
    found = prepare(parse(["--method=fedavg", *classes, *SMALL]))
    absent = (found.partition.counts.sum(0)[found.dataset.test.labels] == 0).sum()
    told = f"{absent} of the 50 test samples are of classes that no client trains on"
    assert absent
    assert caplog.messages == [told]
    caplog.clear()
    prepare(parse(["--method=local", *classes, *SMALL]))  # each tested on classes of its own
    prepare(parse(["--method=fedavg", *SMALL]))
    assert not caplog.messages


def test_rounds_that_test_samples_would_end_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    stops = ["--method=fedavg", "--rounds=3", "--stop-after=2", *SMALL]
    prepare(parse(stops))
    assert "stop_after chooses the last round by test samples" in caplog.text
    caplog.clear()
    prepare(parse([*stops, "--data.validation=0.1"]))
    assert not caplog.messages


SPEC = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)


def test_the_size_is_that_of_the_built_model(monkeypatch: pytest.MonkeyPatch) -> None:
    training = ClassifierConfig(model="cnn", width=0.25)
    model = build_classifier("cnn", SPEC.image_shape, 10, width=0.25)
    exactly = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    monkeypatch.setattr("cluster.run.prepare.main_memory", lambda: exactly)
    refuse_large(training, SPEC)
    monkeypatch.setattr("cluster.run.prepare.main_memory", lambda: exactly - 1)
    with pytest.raises(UserError, match=r"cnn with width 0.25 has .* of weights"):
        refuse_large(training, SPEC)


THREE = ["--method=fedavg", "--num-clients=3", "--runtime=inprocess"]


def test_a_run_is_admitted_before_its_data_are_there_and_prepared_as_admitted(
    tmp_path: Path,
) -> None:
    missing = parse([*THREE, "--dataset=mnist", f"--data-root={tmp_path}"])
    assert admit(missing).run_spec.image_shape == (1, 28, 28)
    with pytest.raises(UserError, match=r"mnist: files in .*missing"):
        prepare(missing)
    here = parse([*THREE, "--data.max-train=200"])
    admitted, prepared = admit(here), prepare(here)
    assert [a.training for a in admitted.assignments] == [c.training for c in prepared.members]
    assert admitted.run_spec == prepared.run_spec
    assert admitted.inventory == prepared.inventory


def test_what_configuration_and_machine_rule_out_is_refused() -> None:
    with pytest.raises(UserError, match="at least one classifier client"):
        admit(parse(["--num-clients=1", "--runtime=inprocess"]))
    with pytest.raises(UserError, match="4000 cores"):
        admit(parse([*THREE, "--resources.classifier.cpus=4000"]))


def test_with_a_budget_clients_train_with_differential_privacy() -> None:
    private = admit(parse([*THREE, "--dp.epsilon=8"])).assignments
    assert {type(a.training) for a in private} == {PrivateClassifier}
