"""Fetching data sets: only what is missing or damaged, and one line where that fails."""

import contextlib
import io
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock
from urllib.error import URLError

import pytest
from torchvision.datasets import mnist

from fl.data.__main__ import prepare
from fl.data.datasets import load
from fl.errors import UserError
from tests.fl.data.fake_files import write_idx_family

TRAIN_IMAGES = "MNIST/raw/train-images-idx3-ubyte"


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A network that delivers small MNIST files; returns the names that were fetched."""
    source = tmp_path / "network"
    write_idx_family(source, "mnist")
    fetched: list[str] = []

    def deliver(url: str, download_root: str, filename: str, md5: str) -> None:
        fetched.append(filename)
        file = filename.removesuffix(".gz")
        (Path(download_root) / file).write_bytes((source / "MNIST/raw" / file).read_bytes())

    monkeypatch.setattr(mnist, "download_and_extract_archive", deliver)
    return fetched


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise URLError("no route\nto host")

    monkeypatch.setattr(mnist, "download_and_extract_archive", fail)


def test_digits_need_nothing(tmp_path: Path) -> None:
    assert prepare("digits", tmp_path) == "digits: comes with Onefold, nothing to fetch"


def test_missing_files_are_fetched(tmp_path: Path, network: list[str]) -> None:
    assert prepare("mnist", tmp_path) == f"mnist: fetched into {tmp_path}"
    assert len(network) == 4
    assert len(load("mnist", tmp_path).train.labels) == 60


def test_whole_files_are_left_alone(tmp_path: Path, network: list[str]) -> None:
    write_idx_family(tmp_path, "mnist")
    assert prepare("mnist", tmp_path) == f"mnist: already whole in {tmp_path}, nothing to fetch"
    assert network == []


def test_damaged_files_are_replaced(tmp_path: Path, network: list[str]) -> None:
    write_idx_family(tmp_path, "mnist")
    (tmp_path / TRAIN_IMAGES).write_bytes(b"half a file")
    prepare("mnist", tmp_path)
    assert load("mnist", tmp_path).train.images.shape == (60, 1, 28, 28)


@pytest.mark.usefixtures("no_network")
def test_no_network_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mnist: cannot fetch it into \S+: .*no route") as caught:
        prepare("mnist", tmp_path)
    assert "\n" not in str(caught.value)


def run_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the module as ``python -m`` does, but in this process: torchvision takes seconds."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["fl.data", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        before = socket.getdefaulttimeout()
        sys.modules.pop("fl.data.__main__", None)  # else runpy warns of it
        try:
            runpy.run_module("fl.data", run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        finally:
            socket.setdefaulttimeout(before)
    return subprocess.CompletedProcess([], status, out.getvalue(), err.getvalue())


def test_command_line_reports_each_data_set(tmp_path: Path) -> None:
    write_idx_family(tmp_path, "mnist")
    result = run_cli("prepare", "digits", "mnist", "--data-root", tmp_path)
    assert result.returncode == 0
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["digits", "mnist"]
    assert result.stderr == ""


def test_command_line_error_is_one_line_and_status_2(tmp_path: Path) -> None:
    result = run_cli("prepare", "minst", "--data-root", tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "minst" in result.stderr


def test_command_line_wants_a_name() -> None:
    result = run_cli("prepare")
    assert result.returncode == 2
    assert "no data set named" in result.stderr


def test_command_line_help_lists_the_data_sets() -> None:
    result = run_cli("--help")
    assert result.returncode == 0
    assert "cifar100" in result.stdout
    assert "--data-root" in result.stdout
