"""Which GPUs a process may use: the driver's answer, CUDA_VISIBLE_DEVICES, the Slurm job."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster.hardware import gpus
from cluster.hardware.gpus import DriverWarning, Gpu, driver_version, find_gpus, select
from tests.cluster import fake_nvml
from tests.cluster.fake_driver import (
    BIG,
    CARDS,
    IN_MIG_MODE,
    MIB,
    SMALL,
    A,
    B,
    C,
    card,
    mig,
    pretend,
)


def gpu(uuid: str) -> Gpu:
    return Gpu(uuid=uuid, name="x", memory_bytes=1)


PLAIN = {uuid: (gpu(uuid),) for uuid in (A, B, C)}
MIXED = {A: (gpu(BIG), gpu(SMALL)), B: (gpu(B),), C: ()}


def chosen(wanted: str) -> list[str]:
    return [g.uuid for g in select(PLAIN, wanted)]


def found(**environ: str) -> list[str]:
    return [g.uuid for g in find_gpus(environ)]


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2", [B, C]),
        ("0,3,1", [A]),
        ("01,+0", [B, A]),
        ("0,2,-1,1", [A, C]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("all", []),
        ("0,1,0", []),
        (C, [C]),
        (f"{B}, GPU-b", [B, C]),
        ("GPU-aaaa3", [B]),
        (f"{C},GPU-aaaa,{A}", [C]),  # ambiguous
        ("GPU-", []),
        (f"0,{A}", []),
    ],
)
def test_cuda_visible_devices_as_cuda_reads_it(wanted: str, uuids: list[str]) -> None:
    assert chosen(wanted) == uuids


def test_mig_devices_by_uuid_and_by_their_gpu() -> None:
    for wanted, uuids in (
        (BIG, [BIG]),
        ("MIG-cb", [SMALL]),
        ("MIG-c", []),
        ("1,0", [B, BIG, SMALL]),
        (A, [BIG, SMALL]),
        (f"0,{SMALL}", []),  # twice
        ("1,2,0", [B]),  # in MIG mode, without a device
    ):
        assert [g.uuid for g in select(MIXED, wanted)] == uuids


@given(st.text(alphabet="0123+-GPUMIabc,: \x00é", max_size=40))
def test_any_text_selects_distinct_devices_that_exist(wanted: str) -> None:
    for cards in (PLAIN, MIXED, {}):
        uuids = [g.uuid for g in select(cards, wanted)]
        assert len(uuids) == len(set(uuids))
        assert set(uuids) <= {A, B, C, BIG, SMALL}


def test_the_drivers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, *CARDS)
    initialised = torch.cuda.is_initialized()
    gpus = find_gpus({})
    assert torch.cuda.is_initialized() == initialised
    assert [g.uuid for g in gpus] == [A, B, C]
    assert gpus[0] == Gpu(uuid=A, name="NVIDIA H200", memory_bytes=143771 * MIB)


def test_each_call_gives_the_driver_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_nvml, "calls", [])
    pretend(monkeypatch, *CARDS)
    find_gpus({})
    pretend(monkeypatch, card(A, memory="NVMLError_NotSupported"))
    with pytest.warns(DriverWarning):
        find_gpus({})
    assert fake_nvml.calls == ["init", "shutdown"] * 2


def test_mig_devices_stand_in_for_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, IN_MIG_MODE, card(B))
    gpus = find_gpus({})
    assert [g.uuid for g in gpus] == [BIG, SMALL, B]
    assert [g.memory_bytes for g in gpus[:2]] == [71040 * MIB, 16384 * MIB]
    assert gpus[1].name == "NVIDIA H200 MIG 1g.18gb+me"


def test_slices_of_one_mig_instance_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, card(A, mig=[mig(f"MIG-{A}/1/0", "1c.3g.72gb", 72 * 10**9, (1, 3))]))
    (device,) = find_gpus({})
    assert (device.uuid, device.memory_bytes) == (f"MIG-{A}/1/0", 24 * 10**9)


def test_in_mig_mode_the_devices_count_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, card(A, mig=[]), card(B))
    assert found() == [B]
    assert found(CUDA_VISIBLE_DEVICES="1") == [B]
    one = mig(SMALL, "1g.18gb", 10**9, (1, 1))
    pretend(monkeypatch, card(A, mig=["NVMLError_NotFound", "NVMLError_NoPermission", one]))
    assert found() == [SMALL]


@pytest.mark.filterwarnings("error")
def test_gpus_that_this_process_may_not_open_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job that is confined to its own: the driver may count the others all the same."""
    pretend(monkeypatch, "NVMLError_NoPermission", card(B), card(C))
    assert found() == [B, C]
    assert found(CUDA_VISIBLE_DEVICES="0") == [B]
    assert found(SLURM_JOB_ID="7", SLURM_JOB_GPUS="1,2") == [B, C]


def test_cuda_visible_devices_beats_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, *CARDS)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}
    assert found(**job, CUDA_VISIBLE_DEVICES="2") == [C]
    assert found(**job) == [A, B]
    assert found(**job, SLURM_STEP_GPUS="1") == [B]
    assert found(SLURM_JOB_GPUS="0") == [A, B, C], "of a job elsewhere"
    assert found(SLURM_JOB_ID="7", SLURM_JOB_GPUS="5,6,7") == [A, B, C], "counted on the whole node"


def test_a_job_without_gpus_takes_none_of_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, *CARDS)
    with pytest.warns(UserWarning, match="gave this job none of the machine's 3 GPUs") as caught:
        assert found(SLURM_JOB_ID="7") == []
    assert not issubclass(caught[0].category, DriverWarning)


@pytest.mark.filterwarnings("error")
def test_a_driver_without_gpus_is_no_reason_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert found() == []
    assert driver_version() == "550.54"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_who_hides_all_gpus_is_spared_a_broken_driver(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, fails="NVMLError_DriverNotLoaded")
    assert found(CUDA_VISIBLE_DEVICES=hidden) == []
    assert driver_version() is None


@pytest.mark.parametrize(
    ("broken", "more"),
    [
        (card(A, memory="NVMLError_NotSupported"), {}),
        (card("NVMLError_NotSupported"), {}),
        ("NVMLError_NotSupported", {}),  # no handle
        (card(A, mig=[mig(BIG, "3g.71gb", "NVMLError_NotSupported", (3, 3))]), {}),
        (card(A, mig=[mig(BIG, "3g.71gb", 1, "NVMLError_NotSupported")]), {}),  # type: ignore[arg-type]
        (card(A), {"fails": "NVMLError_NotSupported"}),
    ],
)
def test_an_unusable_answer_means_no_gpus_and_a_warning(
    monkeypatch: pytest.MonkeyPatch, broken: Any, more: dict[str, str]
) -> None:
    pretend(monkeypatch, card(B), broken, **more)
    with pytest.warns(DriverWarning, match="without GPUs: the NVIDIA driver says: NotSupported"):
        assert found() == []


def test_a_driver_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    pretend(monkeypatch, hangs=over.wait)
    monkeypatch.setattr(gpus, "TIMEOUT", 0.2)
    with pytest.warns(UserWarning, match=r"driver gave no answer within 0\.2 s"):
        assert find_gpus({}) == ()
    assert driver_version() is None
    over.set()


@pytest.mark.parametrize("missing", ["module", "library"])
def test_pytorch_is_asked_where_the_driver_cannot_be(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "module":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        pretend(monkeypatch, fails="NVMLError_LibraryNotFound")
    names = ["AMD MI300X", "NVIDIA H200 MIG 1g.18gb"]
    shown = [SimpleNamespace(name=n, uuid="12-34", total_memory=5) for n in names]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", shown.__getitem__)
    # What CUDA shows, it has already selected.
    gpus = find_gpus({"CUDA_VISIBLE_DEVICES": "6,7"})
    assert [g.uuid for g in gpus] == ["GPU-12-34", "MIG-12-34"]
    assert gpus[0].memory_bytes == 5
    assert driver_version() is None


def test_cuda_that_will_not_start_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> None:
        raise RuntimeError("The NVIDIA driver on your system\nis too old")

    pretend(monkeypatch, fails="NVMLError_LibraryNotFound")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    with pytest.warns(UserWarning, match="PyTorch cannot use CUDA: The NVIDIA driver"):
        assert find_gpus({}) == ()


@pytest.mark.parametrize("name", [n for n in dir(fake_nvml) if n.startswith(("nvml", "NVML"))])
def test_what_the_fake_offers_the_real_module_has(name: str) -> None:
    assert hasattr(pytest.importorskip("pynvml"), name)
