"""Which GPUs a process may use: the driver's answer, CUDA_VISIBLE_DEVICES, the Slurm job."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster.hardware.gpus import DriverWarning, Gpu, driver_version, find_gpus, select
from tests.cluster.fake_driver import MIG_LIST, MIG_ROWS, ROWS, A, B, C, command, nvidia_smi

BIG, SMALL = "MIG-c6d4f1ef-42", "MIG-cba663e8-9b"


def gpu(uuid: str, *, mig: bool = False) -> Gpu:
    return Gpu(uuid=uuid, name="x", memory_bytes=1, mig=mig)


PLAIN = {uuid: (gpu(uuid),) for uuid in (A, B, C)}
MIXED = {A: (gpu(BIG, mig=True), gpu(SMALL, mig=True)), B: (gpu(B),), C: ()}


def chosen(wanted: str) -> list[str]:
    return [g.uuid for g in select(PLAIN, wanted)]


def found(environ: dict[str, str], **more: str) -> list[str]:
    return [g.uuid for g in find_gpus({**environ, **more})]


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , +02", [B, C]),
        ("1st,2nd", [B, C]),
        ("0,3,1", [A]),
        ("0,2,-1,1", [A, C]),
        ("0,,1", [A]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("all", []),
        ("9" * 5000, []),
        ("\N{ARABIC-INDIC DIGIT ONE}", []),  # a digit, but not one of CUDA's
        ("0,1,0", []),
        (C, [C]),
        (f"{B}, GPU-b", [B, C]),
        ("GPU-aaaa3", [B]),
        (f"{C},GPU-aaaa,{A}", [C]),  # ambiguous
        ("GPU-", []),
        ("gpu-b", []),
        ("bbbb", []),
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


@given(st.permutations([("0", A), ("1", B), (C, C)]), st.integers(0, 3), st.text(max_size=9))
def test_order_is_kept_and_nothing_invalid_adds_a_device(
    entries: list[tuple[str, str]], length: int, rest: str
) -> None:
    wanted, uuids = [e for e, _ in entries[:length]], [u for _, u in entries[:length]]
    assert chosen(",".join([*wanted, "x", rest])) == uuids


def test_the_drivers_answer(tmp_path: Path) -> None:
    gpus = find_gpus(nvidia_smi(tmp_path, ROWS))
    assert [g.uuid for g in gpus] == [A, B, C]
    assert gpus[0] == Gpu(uuid=A, name="NVIDIA H200", memory_bytes=143771 * 2**20)


def test_mig_devices_stand_in_for_their_gpu(tmp_path: Path) -> None:
    gpus = find_gpus(nvidia_smi(tmp_path, MIG_ROWS, MIG_LIST))
    assert [g.uuid for g in gpus] == [BIG, SMALL, B]
    assert [g.mig for g in gpus] == [True, True, False]
    assert [g.memory_bytes for g in gpus[:2]] == [71 * 10**9, 18 * 10**9]
    assert gpus[1].name == "NVIDIA H200 MIG 1g.18gb+me"


def test_slices_of_one_mig_instance_share_its_memory(tmp_path: Path) -> None:
    listing = f"GPU 0: NVIDIA H200 (UUID: {A})\n  MIG 1c.3g.72gb Device 0: (UUID: MIG-{A}/1/0)\n"
    rows = f"{A}, NVIDIA H200, [Insufficient Permissions], Enabled\n"
    (device,) = find_gpus(nvidia_smi(tmp_path, rows, listing))
    assert (device.uuid, device.memory_bytes) == (f"MIG-{A}/1/0", 24 * 10**9)


def test_a_gpu_in_mig_mode_without_devices_is_none(tmp_path: Path) -> None:
    listing = f"GPU 0: NVIDIA H200 (UUID: {A})\nGPU 1: NVIDIA H200 (UUID: {B})\n"
    assert found(nvidia_smi(tmp_path, MIG_ROWS, listing)) == [B]


def test_cuda_visible_devices_beats_slurm(tmp_path: Path) -> None:
    environ = nvidia_smi(tmp_path, ROWS) | {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}
    assert found(environ, CUDA_VISIBLE_DEVICES="2") == [C]
    assert found(environ) == [A, B]
    assert found(environ, SLURM_STEP_GPUS="1") == [B]


def test_slurm_counts_gpus_that_a_constrained_job_does_not_see(tmp_path: Path) -> None:
    environ = nvidia_smi(tmp_path, ROWS)
    assert found(environ, SLURM_JOB_ID="7", SLURM_JOB_GPUS="5,6,7") == [A, B, C]


def test_a_job_without_gpus_takes_none_of_its_neighbours(tmp_path: Path) -> None:
    environ = nvidia_smi(tmp_path, ROWS)
    with pytest.warns(UserWarning, match="gave this job none of the machine's 3 GPUs"):
        assert found(environ, SLURM_JOB_ID="7") == []


def test_gpus_of_a_job_elsewhere_mean_nothing_outside_one(tmp_path: Path) -> None:
    assert found(nvidia_smi(tmp_path, ROWS), SLURM_JOB_GPUS="0") == [A, B, C]


@pytest.mark.filterwarnings("error")
def test_a_driver_without_gpus_is_no_reason_to_warn(tmp_path: Path) -> None:
    assert found(nvidia_smi(tmp_path, "No devices were found\n", status=6)) == []
    assert found(nvidia_smi(tmp_path, "")) == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_who_hides_all_gpus_is_spared_a_broken_driver(tmp_path: Path, hidden: str) -> None:
    assert found(nvidia_smi(tmp_path, "", status=9), CUDA_VISIBLE_DEVICES=hidden) == []


@pytest.mark.filterwarnings("error")
def test_noise_beside_the_answer_is_not_the_answer(tmp_path: Path) -> None:
    script = f"echo 'ld.so: object libx.so cannot be preloaded' >&2; printf %s '{ROWS}'"
    assert found(command(tmp_path, script)) == [A, B, C]


@pytest.mark.parametrize(
    ("rows", "listing"),
    [
        ("GPU-1, NVIDIA H200, [N/A], Disabled\n", ""),
        ("GPU-1, NVIDIA H200, -5, Disabled\n", ""),
        (f"GPU-1, NVIDIA H200, {'9' * 5000}, Disabled\n", ""),
        ("GPU-1, NVIDIA H200\n", ""),
        ("0, NVIDIA H200, 100, Disabled\n", ""),
        ("<html>\n", ""),
        (f"{ROWS}\x00\x7fgarbage\n", ""),
        (MIG_ROWS, MIG_LIST.replace("3g.71gb", "huge")),
        (MIG_ROWS, MIG_LIST.replace("3g.71gb", "0g.71gb")),
        (MIG_ROWS, MIG_LIST.replace("(UUID: MIG-", "(")),
        (MIG_ROWS, MIG_LIST.replace(f"(UUID: {A})", "")),
        (MIG_ROWS, MIG_LIST.partition("\n")[2]),
    ],
)
def test_an_unreadable_answer_means_no_gpus_and_a_warning(
    tmp_path: Path, rows: str, listing: str
) -> None:
    with pytest.warns(UserWarning, match="running without GPUs: cannot read") as caught:
        assert found(nvidia_smi(tmp_path, rows, listing)) == []
    assert "\n" not in str(caught[0].message)


def test_a_failing_driver_is_quoted(tmp_path: Path) -> None:
    says = "NVIDIA-SMI has failed because it couldn't\ncommunicate with the driver.\n"
    with pytest.warns(UserWarning, match="status 9: NVIDIA-SMI has failed .* with the driver"):
        assert found(nvidia_smi(tmp_path, says, status=9)) == []


def test_a_driver_that_hangs_is_left_alone(tmp_path: Path) -> None:
    environ = command(tmp_path, "exec sleep 60")
    start = time.monotonic()
    with pytest.warns(UserWarning, match=r"no answer within 0\.2 seconds"):
        assert find_gpus(environ, timeout=0.2) == ()
    assert time.monotonic() - start < 10


def test_a_command_that_cannot_run(tmp_path: Path) -> None:
    environ = command(tmp_path, "")
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF nonsense")
    with pytest.warns(UserWarning, match="cannot run nvidia-smi"):
        assert found(environ) == []


def test_pytorch_is_asked_where_there_is_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["AMD MI300X", "NVIDIA H200 MIG 1g.18gb"]
    shown = [SimpleNamespace(name=n, uuid="12-34", total_memory=5) for n in names]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", shown.__getitem__)
    # What CUDA shows, it has already selected.
    gpus = find_gpus({"CUDA_VISIBLE_DEVICES": "6,7"})
    assert [(g.uuid, g.mig) for g in gpus] == [("GPU-12-34", False), ("MIG-12-34", True)]
    assert gpus[0].memory_bytes == 5


def test_cuda_that_will_not_start_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> None:
        raise RuntimeError("The NVIDIA driver on your system\nis too old")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    with pytest.warns(UserWarning, match="PyTorch cannot use CUDA: The NVIDIA driver"):
        assert find_gpus({}) == ()


def test_asking_does_not_initialise_cuda(tmp_path: Path) -> None:
    was = torch.cuda.is_initialized()
    find_gpus(nvidia_smi(tmp_path, ROWS))
    assert torch.cuda.is_initialized() == was


def test_the_driver_says_its_version(tmp_path: Path) -> None:
    assert driver_version(command(tmp_path, "echo 550.54; echo 550.54")) == "550.54"
    assert driver_version(command(tmp_path, "echo No devices were found; exit 6")) is None
    assert driver_version(command(tmp_path, "exit 9")) is None
    assert driver_version({"PATH": ""}) is None


def test_a_driver_that_fails_is_told_apart_from_other_warnings(tmp_path: Path) -> None:
    with pytest.warns(DriverWarning, match="status 9"):
        assert not found(nvidia_smi(tmp_path, "", status=9))
    with pytest.warns(UserWarning, match="none of the machine") as caught:
        assert not found(nvidia_smi(tmp_path, ROWS), SLURM_JOB_ID="1")
    assert not issubclass(caught[0].category, DriverWarning)
