"""A private cluster disturbs nobody, and a joined one is left as it was."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.hardware import private_ray
from cluster.hardware.private_ray import (
    LEAST_STORE_BYTES,
    MESSAGE,
    make_token,
    object_store_bytes,
    parse_address,
    prepare_environment,
    watched,
)
from cluster.hardware.ray_internals import AUTHENTICATION, TOKEN
from cluster.launch import main
from cluster.scheduling.capacity import Bundle
from fl.errors import UserError
from tests.cluster.commands import SMALL, command, environment, fingerprint, here, launch, result
from tests.cluster.living import alive, await_end, wait_for
from tests.held import THERE, held
from tests.undrawn import undrawn
from tests.waiting import wait_until

NEIGHBOUR = """
import sys, time, ray
ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0)
class Counter:
    def __init__(self): self.count = 0
    def up(self):
        self.count += 1
        return self.count

counter = Counter.remote()
print(ray.get_runtime_context().gcs_address, flush=True)
for line in sys.stdin:
    print(ray.get(counter.up.remote()), len(ray.nodes()), flush=True)
"""


class Neighbour:
    """Another program with a Ray cluster of its own, on this host."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.family = set(psutil.Process(self.process.pid).children(recursive=True))

    def count(self) -> str:
        """Lets its actor count, which only an undisturbed cluster can."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate()


# A classifier and a decoder: each client's process takes seconds to import.
FEW = ("--name=run", "--num-clients=2")
# The neighbour's GPU is a logical one, whose memory nobody knows.
SHARES = ("--resources.classifier.gpus=0.5", "--resources.generator.gpus=0.25")


@pytest.fixture(scope="module")
def neighbour() -> Iterator[Neighbour]:
    there = Neighbour()
    yield there
    there.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    done = launch(root, *FEW, "--runtime=inprocess")
    assert done.returncode == 0, done.stderr
    return root / "run"


def start(output_dir: Path, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        undrawn(command(output_dir, *FEW)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | environ,
    )


@pytest.mark.ray
@pytest.mark.slow
def test_two_launches_beside_a_neighbour_all_finish(
    neighbour: Neighbour, undisturbed: Path, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 200)
    long.mkdir()
    before = int(neighbour.count().split()[0])
    # RAY_ADDRESS is how a neighbour's cluster would be found by chance.
    runs = {
        name: start(tmp_path / name, TMPDIR=str(long), RAY_ADDRESS=neighbour.address)
        for name in ("one", "two")
    }
    published = {name: tmp_path / name / "run" / "ray-address" for name in runs}
    seen: dict[str, str] = {}
    families: dict[str, list[psutil.Process]] = {}

    def look() -> bool:
        """At whoever has a cluster by now: the one's may be gone when the other's comes."""
        for name, file in published.items():
            with contextlib.suppress(FileNotFoundError):
                seen[name] = file.read_text().strip()
                there = psutil.Process(runs[name].pid).children(recursive=True)
                families[name] = there or families.get(name, [])  # it may just have ended
            assert name in seen or runs[name].poll() is None, runs[name].communicate()[1]
        return len(seen) == len(runs)

    wait_until(look)
    assert len({neighbour.address, *seen.values()}) == 3
    for name, run in runs.items():
        _, stderr = run.communicate()
        assert run.returncode == 0, stderr
        assert fingerprint(tmp_path / name / "run") == fingerprint(undisturbed)
    assert all(families.values())
    await_end([p for family in families.values() for p in family])
    assert not any(file.exists() for file in published.values())
    assert not any("ray" in path.name for path in long.iterdir())
    assert neighbour.count() == f"{before + 1} 1"
    assert all(process.is_running() for process in neighbour.family)


@pytest.mark.ray
@pytest.mark.slow
def test_a_joined_cluster_is_used_and_left_running_also_by_an_interrupted_guest(
    neighbour: Neighbour, undisturbed: Path, tmp_path: Path
) -> None:
    before = int(neighbour.count().split()[0])
    joining = (*FEW, *SHARES, f"--ray-address={neighbour.address}")
    process = subprocess.Popen(
        command(tmp_path, *joining),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment() | held(tmp_path / "held", '"event": "client_end"'),
    )
    wait_for(process, (tmp_path / "held" / THERE).exists)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert neighbour.count() == f"{before + 1} 1"
    done = launch(tmp_path, *joining, "--resume")
    assert done.returncode == 0, done.stderr
    # Its rank fuses with all of a node's cores, so only the uploads are the same to the bit.
    assert fingerprint(tmp_path / "run")[2] == fingerprint(undisturbed)[2]
    placed = [p["assigned"] for p in result(tmp_path / "run")["placements"]]
    (trained,) = filter(None, placed)  # the first client's upload was there
    assert trained["GPU"]  # only the neighbour's cluster has one
    assert neighbour.count() == f"{before + 2} 1"


def test_where_no_cluster_answers_one_line_says_so(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        done = here(main, [*SMALL, f"--output-dir={tmp_path / 'runs'}", f"--ray-address={address}"])
    assert done.returncode == 2
    assert done.stderr.startswith(f"onefold: no Ray cluster answers at {address}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.ray
def test_a_loopback_that_is_down_is_one_line_at_once() -> None:
    code = (
        "import sys; from cluster.hardware.private_ray import Bundle, private_ray\n"
        "from fl.errors import UserError\n"
        "whole = Bundle(name='here', cpus=1, gpus=0, memory_bytes=2**32)\n"
        "try:\n    private_ray(whole).__enter__()\n"
        "except UserError as error:\n    print(error)"
    )
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stderr.startswith("unshare"):
        pytest.skip("this machine lets nobody have a network of their own")
    (line,) = done.stdout.splitlines()
    assert line.startswith("Ray cannot start: 127.0.0.1 does not answer")
    assert "--runtime inprocess" in line


SIGNALLED = """
import os, signal
import psutil, ray
from cluster.hardware.private_ray import Bundle, private_ray

def ours(signum, frame):
    print("ours", flush=True)

signal.signal(signal.SIGTERM, ours)
with private_ray(Bundle(name="here", cpus=1, gpus=0, memory_bytes=2**30)):
    os.kill(os.getpid(), signal.SIGTERM)
    ray.get(ray.remote(num_cpus=1)(lambda: 1).remote())
    root = ray._private.worker._global_node.get_session_dir_path()
    pids = [p.pid for p in psutil.Process().children(recursive=True)]
os.kill(os.getpid(), signal.SIGTERM)
print(root, *pids)
"""


@pytest.mark.ray
def test_sigterm_stays_with_the_program_and_nothing_is_left_of_its_own_cluster() -> None:
    command = [sys.executable, "-c", SIGNALLED]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *said, left = done.stdout.splitlines()
    assert said == ["ours", "ours"]
    root, *pids = left.split()
    assert len(root) < 80
    assert not Path(root).parent.exists()
    assert len(pids) >= 3
    # Ray's workers end by themselves once their raylet has, a moment later on a busy machine.
    wait_until(lambda: not any(alive(int(pid)) for pid in pids), within=20)


def test_only_an_explicit_address_of_either_family_is_joined() -> None:
    for address in ("auto", "local", "ray://a:1", "host", "host:0", "host:66666"):
        with pytest.raises(UserError, match="HOST:PORT"):
            parse_address(address)
    assert parse_address("192.0.2.2:6379") == ("192.0.2.2", 6379)
    assert parse_address("[::1]:6379") == ("::1", 6379)


def test_the_object_store_keeps_within_memory_and_shared_memory() -> None:
    free = os.statvfs("/dev/shm")
    assert object_store_bytes(2**30) <= 0.3 * 2**30
    assert object_store_bytes(2**60) <= free.f_bavail * free.f_frsize
    assert object_store_bytes(1) == LEAST_STORE_BYTES
    assert object_store_bytes(2**30, Path("/nowhere")) == int(0.3 * 2**30)


def test_a_ray_that_asks_for_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_ray, "version", {"ray": "2.51.2"}.__getitem__)
    with pytest.raises(
        UserError, match=r"Ray 2\.51\.2 lets anybody .*'ray\[tune\]>=2\.52'"
    ) as refused:
        prepare_environment()
    assert "\n" not in str(refused.value)
    monkeypatch.setattr(private_ray, "version", {"ray": "2.100.0"}.__getitem__)
    prepare_environment()


def test_a_process_has_one_token_whatever_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setenv(AUTHENTICATION, "disabled")
    token = make_token()
    assert len(token) == 64
    assert make_token() == token == os.environ[TOKEN]
    assert os.environ[AUTHENTICATION] == "token"


def test_what_ray_raises_when_it_starts_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Exception("The current node timed out during startup.\nSee /tmp/ray/logs.")

    monkeypatch.setattr(private_ray, "start_cluster", killed)
    starting = private_ray.private_ray(Bundle(name="here", cpus=1, gpus=0, memory_bytes=2**30))
    with pytest.raises(UserError, match=r"Ray did not start: .*inprocess") as refusal, starting:
        pass
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("dies", [True, False])
def test_a_process_whose_raylet_dies_says_so_and_one_that_ends_its_ray_says_nothing(
    dies: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    raylet, others = subprocess.Popen(["sleep", "600"]), {*threading.enumerate()}
    with watched(raylet):
        (watch,) = {*threading.enumerate()} - others
        if dies:
            raylet.kill()
            watch.join()
    raylet.kill()
    watch.join()
    said = MESSAGE.format(pid=raylet.pid) + "\n"
    assert (exits, capsys.readouterr().err) == (([1], said) if dies else ([], ""))
