"""A named pipe in place of a run's file is refused: who opens one waits for ever."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.clients.locks import Locks
from cluster.run.command_line import load_yaml
from cluster.run.run_dir import is_run
from cluster.run.runner import JsonLines
from cluster.studies.comparison import loss_curve
from fl.data.catalogue import read_path
from fl.data.partition_file import read_lists
from fl.errors import UserError
from fl.exchange import Upload
from fl.json_files import read_json
from fl.models.saved import load_model
from fl.plugins import load_plugin
from fl.report.read import read_events
from slurm.array import read_runs
from slurm.status import read_progress
from slurm.submit import Tail
from tune.outcome import last_scores

METRICS = "metrics.jsonl"
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "result": ("result.json", read_json),
    "model": ("global.safetensors", load_model),
    "events": (METRICS, read_events),
    "record": (METRICS, JsonLines),
    "losses": (METRICS, lambda file: loss_curve(file.parent)),
    "trial": (METRICS, lambda file: last_scores(file.parent)),
    "job": (METRICS, lambda file: read_progress(file.parent)),
    "settings": ("settings.yaml", load_yaml),
    "data": ("data.npz", lambda file: read_path(str(file))),
    "lists": ("lists.json", lambda file: read_lists(file, 2, 10)),
    "packed lists": ("lists.npz", lambda file: read_lists(file, 2, 10)),
    "runs of an array": ("runs.txt", lambda file: read_runs(file, [])),
    "upload": ("client.safetensors", Upload.in_file),
    "lock": (".lock", Locks),
    "followed job": (METRICS, lambda file: list(Tail(file).read())),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_named_pipe_is_refused(reader: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    os.mkfifo(tmp_path / name)
    with pytest.raises((OSError, UserError), match=r"named pipe|no plain file"):
        read(tmp_path / name)


def test_a_plugin_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plugin.py")
    with pytest.raises(UserError, match="no regular file"):
        load_plugin(str(tmp_path / "plugin.py"))


def test_a_folder_with_a_pipe_for_a_configuration_is_no_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    assert not is_run(tmp_path)
