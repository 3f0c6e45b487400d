"""An NVIDIA driver that has the GPUs that a test gives it."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fake_nvml

A, B, C = "GPU-aaaa1111-22", "GPU-aaaa3333-44", "GPU-bbbb5555-66"
BIG, SMALL = "MIG-c6d4f1ef-42", "MIG-cba663e8-9b"
MIB = 2**20


def card(uuid: str, **more: Any) -> dict[str, Any]:
    """A GPU as :mod:`tests.cluster.fake_nvml` describes it."""
    return {"uuid": uuid, "name": "NVIDIA H200", "memory": 143771 * MIB, **more}


def mig(uuid: str, profile: str, memory: Any, slices: tuple[int, int]) -> dict[str, Any]:
    """A MIG device: the memory of its GPU instance, and its compute slices of that instance's."""
    name = f"NVIDIA H200 MIG {profile}"
    return {"uuid": uuid, "name": name, "memory": memory, "slices": slices}


CARDS = (card(A), card(B, mig=None), card(C))
"""Without MIG, with MIG that is off, and without."""
IN_MIG_MODE = card(
    A,
    memory="NVMLError_NoPermission",
    mig=[mig(BIG, "3g.71gb", 71040 * MIB, (3, 3)), mig(SMALL, "1g.18gb+me", 16384 * MIB, (1, 1))],
)


def pretend(monkeypatch: pytest.MonkeyPatch, *cards: dict[str, Any] | str, **more: Any) -> None:
    """Has this process find that driver."""
    monkeypatch.setattr(fake_nvml, "DRIVER", {"cards": cards, **more})
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)


def pretended(folder: Path, *cards: dict[str, Any] | str) -> dict[str, str]:
    """The environment in which other processes find it; ``folder`` gets a file."""
    shutil.copy(fake_nvml.__file__, folder / "pynvml.py")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "FAKE_DRIVER": json.dumps({"cards": cards})}
