"""Where a figure comes from, as far as the machine tells."""

import subprocess

import pytest

from cluster.studies import provenance
from cluster.studies.provenance import here_and_now


def test_the_commit_says_whether_code_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"rev-parse": "0123abc", "status": ""}
    monkeypatch.setattr(provenance, "_git", lambda command, *more: said[command])
    assert here_and_now().commit == "0123abc"
    said["status"] = " M fl/server.py"
    assert here_and_now().commit == "0123abc with changes"


def test_a_machine_without_git_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*args: object, **more: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert provenance._commit() == "unknown"


def test_the_machine_is_told_with_its_cores_and_torch() -> None:
    assert " core" in here_and_now().machine
    assert ", torch " in here_and_now().machine
