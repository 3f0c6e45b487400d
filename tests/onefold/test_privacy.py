"""onefold privacy: a run from its folder to privacy.json and the report."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import onefold
from fl.data.partition_file import read_lists
from fl.errors import UserError
from fl.training import classifier
from onefold.privacy import attack_run, command
from tests.undrawn import WRITE_REPORT, draw_nothing


def small(folder: Path, drawn: bool = False, **more: object) -> Path:
    with nullcontext() if drawn else mock.patch(WRITE_REPORT, draw_nothing):
        return run(folder, **more)


def run(folder: Path, **more: object) -> Path:
    done = onefold.run(
        method="fedavg",
        runtime="inprocess",
        progress=False,
        output_dir=str(folder),
        num_clients=3,
        num_large=3,
        **{
            "classifier": {"model": "cnn", "width": 0.2, "epochs": 1},
            **{"data.max_train": 300, "data.max_test": 100, **more},
        },
    )
    return done.path


def test_a_run_is_attacked_and_its_report_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(tmp_path)
    command((run,))
    found = json.loads((run / "privacy.json").read_text())
    assert len(found["uploads"]) == 3
    assert found["global"]["attacks"].keys() == {"loss", "ratio"}
    assert (run / "plots" / "privacy.svg").exists()
    assert "privacy.json" in (run / "report.html").read_text()
    assert max(map(len, capsys.readouterr().out.splitlines()[1:-1])) <= 80


def test_who_was_held_out_of_a_clients_training_is_no_member(tmp_path: Path) -> None:
    with mock.patch.object(classifier, "rows_held_out", wraps=classifier.rows_held_out) as held_out:
        own = {"model": "cnn", "width": 0.2, "epochs": 1, "validation": 0.5}
        run = small(tmp_path, classifier=own, per_client=["1.validation=0.9"])
    sizes = {call.args[3]: call.args[0] for call in held_out.call_args_list}
    with mock.patch("onefold.privacy.measure") as attacked:
        attack_run(run, Path("data"))
    (subject,) = attacked.call_args.args
    lists, _ = read_lists(run / "partition.npz", 3, 300, subject.dataset.train.taken)
    for k, share in enumerate((0.5, 0.9, 0.5)):
        assert len(lists[k]) == sizes[k]
        trained = classifier.rows_held_out(sizes[k], share, 0, k)[1]
        np.testing.assert_array_equal(subject.lists[k], lists[k][trained.numpy()])


@pytest.mark.parametrize(("method", "clients"), [("local", []), ("fedper", []), ("pfedsd", [0, 1])])
def test_a_model_that_stayed_with_its_client_is_no_upload(
    tmp_path: Path, method: str, clients: list[int]
) -> None:
    with mock.patch(WRITE_REPORT, draw_nothing):
        done = onefold.run(
            method=method,
            runtime="inprocess",
            progress=False,
            output_dir=str(tmp_path),
            num_clients=2,
            classifier={"width": 0.2, "epochs": 1},
            **{"data.max_train": 100, "data.max_test": 50},
        )
    found = attack_run(done.path, Path("data"))
    assert [row["client"] for row in found["uploads"]] == clients
    assert bool(found["global"]) == bool(clients)


def test_a_private_run_says_what_was_spent(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    run = small(tmp_path, drawn=True, dp={"epsilon": 8})
    spent = json.loads((run / "result.json").read_text())["dp"]
    assert 7.9 < spent["spent"] <= 8
    assert spent["noise_from_seed"] is False
    report = (run / "report.html").read_text()
    assert "differentially private" in report
    assert "who knows the seed" not in report
    # Later runs take the same release, which tells nothing new; other noise is another training.
    again = small(tmp_path, dp={"epsilon": 8})
    weights = [(path / "model" / "global.safetensors").read_bytes() for path in (run, again)]
    assert weights[0] == weights[1]
    seeded = small(tmp_path, drawn=True, dp={"epsilon": 8, "noise_from_seed": True})
    assert json.loads((seeded / "result.json").read_text())["dp"]["noise_from_seed"] is True
    assert "not towards who knows the seed" in (seeded / "report.html").read_text()
    assert (seeded / "model" / "global.safetensors").read_bytes() != weights[0]


def test_a_method_whose_clients_tell_more_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    with pytest.raises(UserError, match=r"dp\.epsilon works with .*fedavg.*, not with fedgen"):
        onefold.run(method="fedgen", progress=False, output_dir=str(tmp_path), dp={"epsilon": 8})


def test_other_data_of_the_same_name_and_size_is_refused(tmp_path: Path) -> None:
    """No client has trained on it: all attacks would fail, and the run would look private."""
    draws, file = np.random.default_rng(0), tmp_path / "own.npz"
    labels = np.arange(90) % 3
    np.savez(file, x=draws.random((90, 4)), y=labels)
    more: dict[str, Any] = {"dataset": str(file), "classifier": {"model": "mlp", "epochs": 1}}
    path = small(tmp_path, **more)
    attack_run(path, tmp_path)
    np.savez(file, x=draws.random((90, 4)), y=labels)
    with pytest.raises(UserError, match=r"own\.npz is not the data that the run used"):
        attack_run(path, tmp_path)


def test_what_is_no_finished_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished run"):
        command((tmp_path,))
    with pytest.raises(UserError, match="name one run directory"):
        command(())
