"""What we use of Ray's internals is still there, in clusters that are started for it."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch

from cluster.hardware.private_folders import own_folder
from cluster.hardware.private_ray import LEAST_STORE_BYTES
from cluster.hardware.ray_internals import (
    AUTHENTICATION,
    DEFAULTS,
    NOT_NEEDED,
    OTHER_HOSTS,
    PORT_S,
    TESTED_WITH,
    TOKEN,
    TOKEN_FILE,
    on_loopback,
    require_token,
    start_command,
    time_to_start,
    token_at_home,
)
from tests.contracts import contract

MEMORY = 300 * 2**20
CLUSTER = """
import contextlib, json, os, psutil, sys, time
from pathlib import Path
from cluster.hardware.worker_template import worker_template
from cluster.hardware.ray_internals import gpus_of_group, path_of_workers, raylet_process
from cluster.hardware.ray_internals import shut_down, start_cluster
from cluster.scheduling.capacity import Bundle
root, memory, store = Path(sys.argv[1]), *map(int, sys.argv[2:])
held = contextlib.ExitStack()
template = held.enter_context(worker_template())
forked = psutil.Process().children()[0].pid
start_cluster(
    Bundle(name="here", cpus=1, gpus=2, memory_bytes=memory + store), store_bytes=store,
    root=root, first="/first", template=template,
)
import ray
import torch
from ray._private.worker import global_worker
group = ray.util.placement_group([{"CPU": 1, "GPU": 2}])
assert group.wait(200)
name = gpus_of_group(group)

@ray.remote(num_gpus=0.5)
class Holder:
    def hold(self): return sys.path, os.getppid(), os.nice(0)

def free():
    return ray.available_resources().get(name)

where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
holder = Holder.options(num_cpus=0, scheduling_strategy=where).remote()
looked_in, parent, niceness = ray.get(holder.hold.remote())
deadline = time.monotonic() + 200  # Ray counts a little later
while free() != 1.5 and time.monotonic() < deadline:
    time.sleep(0.1)
processes = [" ".join(p.cmdline()) for p in psutil.Process().children(recursive=True)]

print(json.dumps({
    "first for workers": [looked_in[0], path_of_workers()[-1]],
    "forked": parent == forked,
    "niceness": niceness - os.nice(0),
    "memory": ray.cluster_resources()["memory"],
    "gpus": ray.cluster_resources().get(name),
    "free": free(),
    "sockets": [p.name for p in root.glob("session_*/sockets/*")],
    "node": " ".join(psutil.Process(raylet_process().pid).cmdline()),
    "processes": processes,
}))

class Between:
    def __init__(self, core):
        self.core = core
    def shutdown_driver(self):
        self.core.shutdown_driver()
        kept.clear()  # as another thread may

kept = [ray.put("an object")]
global_worker.core_worker = Between(global_worker.core_worker)
shut_down()
assert not kept
held.close()
"""


def installed(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, in this environment but for Ray's own variables."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.run(
        command,
        env=plain | DEFAULTS | environment,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.ray
def test_a_cluster_has_the_memory_and_the_directory_that_ray_init_was_told() -> None:
    with own_folder() as root:
        arguments = [str(root), str(MEMORY), str(LEAST_STORE_BYTES)]
        with contract("ray", "ray.init", TESTED_WITH):
            done = installed([sys.executable, "-c", CLUSTER, *arguments])
            found = json.loads(done.stdout.splitlines()[-1])
        with contract("ray", "ray.init(_memory=...)", TESTED_WITH):
            assert found["memory"] == MEMORY
        with contract("ray", "ray.init(_temp_dir=...)", TESTED_WITH):
            assert "raylet" in found["sockets"]
        with contract("ray", "the resource GPU_group_...", TESTED_WITH):
            assert (found["gpus"], found["free"]) == (2, 1.5)
        with contract("ray", "the methods start_monitor, ... of its node", TESTED_WITH):
            assert any("raylet" in command for command in found["processes"])
            assert "raylet" in found["node"]
            left_out = ("monitor.py", "log_monitor.py", "dashboard/dashboard.py")
            assert not any(name in command for command in found["processes"] for name in left_out)
        with contract("ray", "the script that starts a worker, and its arguments", TESTED_WITH):
            assert found["forked"]
        with contract("ray", "RAY_worker_niceness", TESTED_WITH):
            assert found["niceness"] == 0
        with contract("ray", "a job's _py_driver_sys_path", TESTED_WITH):
            assert found["first for workers"] == ["/first", "/first"]


def test_environment_variables_are_still_read() -> None:
    folder = Path(ray.__file__).parent
    files = [
        folder / "_raylet.so",
        *folder.glob("_private/**/*.py"),
        *folder.glob("_common/**/*.py"),
        Path(torch.cuda.__file__),
    ]
    read = b"".join(file.read_bytes() for file in files)
    for name in (*DEFAULTS, TOKEN, TOKEN_FILE, AUTHENTICATION, OTHER_HOSTS, PORT_S):
        with contract("ray", f"environment variable {name}", TESTED_WITH):
            assert read.find(name.encode()) >= 0


def test_what_is_left_out_still_has_its_name() -> None:
    with contract("ray", "the methods start_ray_client_server, ... of its node", TESTED_WITH):
        assert all(hasattr(ray._private.node.Node, name) for name in NOT_NEEDED)


@pytest.mark.parametrize(("status", "asked"), [(None, 3), (1, 1)], ids=["alive", "dead"])
def test_a_node_that_starts_is_waited_for_while_its_process_lives(
    status: int | None, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def ask(address: str) -> str:
        calls.append(address)
        if len(calls) < 3:
            raise RuntimeError("it has not registered")
        return "there"

    process = SimpleNamespace(process=SimpleNamespace(poll=lambda: status))
    node = SimpleNamespace(all_processes={"raylet": [process]})
    with contract("ray", "services.get_node and Node.start_raylet", TESTED_WITH):
        monkeypatch.setattr(ray._private.services, "get_node", ask)
        monkeypatch.setattr(ray._private.node.Node, "start_raylet", lambda self: None)
    monkeypatch.delenv(PORT_S, raising=False)
    with time_to_start():
        assert os.environ[PORT_S] == "120"
        ray._private.node.Node.start_raylet(node)
        with nullcontext() if status is None else pytest.raises(RuntimeError):
            assert ray._private.services.get_node("address") == "there"
    assert len(calls) == asked
    assert ray._private.services.get_node is ask
    assert PORT_S not in os.environ  # who joins would try so often


def test_on_loopback_a_node_has_its_address_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OTHER_HOSTS, raising=False)
    address = ray._private.services.resolve_ip_for_localhost
    before = address("127.0.0.1")
    with contract("ray", "the constant ENABLE_RAY_CLUSTER", TESTED_WITH), on_loopback():
        assert address("127.0.0.1") == "127.0.0.1"
        assert os.environ[OTHER_HOSTS] == "0"
    assert address("127.0.0.1") == before
    assert OTHER_HOSTS not in os.environ


def test_a_token_is_asked_for_though_ray_was_imported_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks = ray._private.authentication.authentication_utils.is_token_auth_enabled
    monkeypatch.setenv(AUTHENTICATION, "disabled")
    ray._raylet.Config.initialize("")
    assert not asks()
    with contract("ray", "reading the environment again", TESTED_WITH):
        require_token()
        assert asks()


@pytest.mark.process
def test_a_token_lies_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token_at_home().parent.mkdir()
    token_at_home().write_text("b" * 64)
    command = start_command(name="", memory_bytes=0)[:4]
    with contract("ray", "the file of a token that no variable names", TESTED_WITH):
        said = installed([*command, "get-auth-token"], HOME=str(tmp_path))
        assert said.stdout.splitlines()[-1] == "b" * 64
