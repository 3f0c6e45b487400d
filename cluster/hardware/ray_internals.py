"""Internals of Ray that we use, which may change with any release.

- ``_memory`` and ``_temp_dir`` of ``ray.init``: no public argument sets how much memory a cluster
  hands out, or the directory of its sockets, which needs a short path.
- ``GPU_group_...``, the resource that stands for the GPUs in a placement group: Ray reports nowhere
  else how many of them are taken.
- The file in which a head that chose its own port writes its address: `ray start` only prints it.
- The methods of Ray's node that start its dashboard, its autoscaler, its server for Ray clients and
  the process that copies workers' output to the driver: no public argument leaves them out.
- The question by which Ray looks whether its node has started, and the node's processes: nothing
  public says how long it asks, which is 30 seconds.
- The path of the script that starts a worker, its arguments, and Ray's own script beside the
  worker's: nothing public has workers forked.
- The constant by which Ray on Windows keeps to the loopback interface: elsewhere Ray replaces
  127.0.0.1 by the node's address, and then listens on all interfaces.
- Reading the environment again, as Ray does when it is imported, and whether it asks for tokens.
- That the function behind the command ``ray`` can be called from Python, and two options of
  ``ray start`` that its help hides.
- The attribute by which references to objects find the driver's part of Ray: letting go of one just
  after that part has ended would end the process.
- Where workers look for modules: Ray adds the driver's folders to a list of the job's
  configuration, and each worker puts them in front of its own path one by one.
- Names of environment variables: Ray documents only some, and a name that it no longer reads
  is no error.
"""

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.hardware import fork_worker
from cluster.hardware.processes import python, variable
from cluster.hardware.worker_template import can_fork, worker_template

if TYPE_CHECKING:
    from cluster.scheduling.capacity import Bundle  # it imports torch, which no node needs

TESTED_WITH = "2.60.0"
"""The version that tests/cluster/hardware/test_ray_internals.py last checked this file with."""

TOKEN, TOKEN_FILE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Environment variables: a cluster's secret, or the file that holds it."""
AUTHENTICATION = "RAY_AUTH_MODE"
"""Environment variable: ``token`` makes a process send its token, and refuse other tokens."""
DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A process that asks for no GPU sees none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    # Torch asks for GPUs without loading CUDA's driver, which reads only once which are visible.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Ray would wait half a minute for clients that are to be ended with it.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # What nobody refers to leaves the object store after this, and not after a second, in which
    # small clients upload a hundred megabytes.
    "RAY_free_objects_period_milliseconds": "100",
    # Ray's own 15 leaves clients and ranks a thirtieth of what another busy process gets.
    "RAY_worker_niceness": "0",
}
"""Environment of every process that imports Ray, where the user has not set it."""


NOT_NEEDED = ("start_monitor", "start_log_monitor", "start_api_server", "start_ray_client_server")
"""Methods of Ray's node that start the autoscaler, the copier of workers' output, the dashboard,
and the server for Ray clients, which listens on a fixed port."""

START_S = 120
"""Seconds that a node may take to start."""
PORT_S = "RAY_gcs_server_port_wait_time_s"
"""Environment variable: seconds until a head's port is known, and how often who joins tries."""

OTHER_HOSTS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable: with ``0`` a node's address is 127.0.0.1, on which all of Ray listens."""


def start_cluster(
    whole: "Bundle",
    *,
    store_bytes: int,
    root: Path,
    first: str | None,
    template: Path | None = None,
) -> None:
    """Starts a cluster in this process, which is its driver; its sockets and logs lie in ``root``.

    It hands out the ``whole``, but for the memory of its object store. ``first``: see
    :func:`job_config`; ``template``: see :mod:`cluster.hardware.worker_template`.
    """
    import ray

    require_token()
    with _only_what_runs_clients(), forked_workers(template), time_to_start(), on_loopback():
        ray.init(
            address="local",
            num_cpus=whole.cpus,  # type: ignore[arg-type]
            num_gpus=whole.gpus,
            object_store_memory=store_bytes,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            job_config=job_config(first),
            _memory=whole.memory_bytes - store_bytes,
            _temp_dir=str(root),
        )


def require_token() -> None:
    """Has this process and all that it starts send the cluster's token, and refuse any other."""
    os.environ[AUTHENTICATION] = "token"
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")  # Ray may have been imported before
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN:
        raise RuntimeError(f"Ray does not ask for a token in spite of {AUTHENTICATION}=token")


def shut_down() -> None:
    """``ray.shutdown``, beside other threads, which may let go of objects at any moment.

    Here references lose the driver's part of Ray before it ends. In Ray it is the other way round,
    and a thread that lets go of an object in between ends the whole process.
    """
    import ray
    from ray._private.worker import global_worker

    if core := vars(global_worker).pop("core_worker", None):
        core.shutdown_driver()
    ray.shutdown()


@contextlib.contextmanager
def _replaced(owner: Any, **attributes: object) -> Iterator[None]:
    """Sets attributes of one of Ray's objects, until the context ends."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Has a cluster that is started here, and processes that join it, keep to 127.0.0.1."""
    from ray._private import ray_constants

    with _replaced(ray_constants, ENABLE_RAY_CLUSTER=False), variable(OTHER_HOSTS, "0"):
        yield


class _Folders(list[str]):
    """Those that workers put in front of their path one by one: the last is looked in first."""

    def __init__(self, first: str) -> None:
        self.first = first
        super().__init__()

    def extend(self, folders: Iterable[str]) -> None:
        super().extend([*folders, self.first])


def job_config(first: str | None) -> Any:
    """The job's configuration, for ``ray.init``: workers look for modules first in the folder
    ``first``; without it in the present one."""
    from ray.job_config import JobConfig

    config = JobConfig()
    if first is not None:
        config._py_driver_sys_path = _Folders(first)
    return config


def has_ray() -> bool:
    """Whether this process is part of a Ray cluster already."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def path_of_workers() -> list[str] | None:
    """The folders that workers of this process's job put in front of their path, the last one in
    front of all; None where this process is in no cluster."""
    if not has_ray():
        return None
    worker = sys.modules["ray"]._private.worker.global_worker.core_worker
    return list(worker.get_job_config().py_driver_sys_path)


def _only_what_runs_clients() -> contextlib.AbstractContextManager[None]:
    """Leaves out processes that a cluster of one run never asks: 2 s and 250 MB of memory."""
    from ray._private.node import Node

    # A release that names them otherwise starts them, and works as well.
    there = [name for name in NOT_NEEDED if hasattr(Node, name)]
    return _replaced(Node, **dict.fromkeys(there, lambda *_, **__: None))


@contextlib.contextmanager
def forked_workers(template: Path | None) -> Iterator[None]:
    """Has the node's workers end with it, and forked by the template at that socket."""
    from ray._private.node import Node

    start = Node.start_raylet

    def start_with(node: Any, *arguments: Any, **options: Any) -> Any:
        node._ray_params.setup_worker_path = fork_worker.__file__
        return start(node, *arguments, **options)

    address = variable(fork_worker.TEMPLATE, str(template)) if template else None
    with _replaced(Node, start_raylet=start_with), address or contextlib.nullcontext():
        yield  # the node's process hands the address on


@contextlib.contextmanager
def time_to_start() -> Iterator[None]:
    """Waits for a head that starts here, and for its node as long as that lives, for
    :data:`START_S` at most: on a busy machine Ray's own 30 seconds are too short."""
    from ray._private import services
    from ray._private.node import Node

    ask, start = services.get_node, Node.start_raylet
    nodes = list[Any]()

    def start_with(node: Any, *arguments: Any, **options: Any) -> Any:
        nodes.append(node)
        return start(node, *arguments, **options)

    def get_node(*arguments: Any) -> Any:
        end = time.monotonic() + START_S
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:  # it is not there yet
                started = nodes[-1].all_processes.get("raylet") if nodes else None
                lives = started and started[0].process.poll() is None
                if not lives or time.monotonic() > end:
                    raise
            time.sleep(0.1)

    seconds = os.environ.get(PORT_S, f"{START_S}")  # the user's, where it is set
    with (
        variable(PORT_S, seconds),
        _replaced(services, get_node=get_node),
        _replaced(Node, start_raylet=start_with),
    ):
        yield


def raylet_process() -> subprocess.Popen[bytes] | None:
    """The process of this process's own cluster that runs its node; None where Ray does not say."""
    from ray._private.worker import global_worker

    found = getattr(global_worker.node, "all_processes", {}).get("raylet")
    return found[0].process if found else None


def gpus_of_group(group: Any) -> str:
    """The resource in Ray's figures that stands for all GPUs of a placement group."""
    return f"GPU_group_{group.id.hex()}"


def start_command(*, name: str, memory_bytes: int) -> list[str]:
    """``ray start``, with this Python, for a node of that name that hands out so much memory."""
    own = [f"--node-name={name}", f"--memory={memory_bytes}"]
    return [*python("cluster.hardware.ray_internals"), "start", *own]


def published_address(root: Path) -> str | None:
    """Address of the head started with ``--temp-dir=root``; None until it has written it."""
    try:
        return (root / "ray_current_cluster").read_text().strip() or None
    except FileNotFoundError:
        return None


def token_at_home() -> Path:
    """The file of the token that Ray uses where no environment variable names one."""
    return Path.home() / ".ray" / "auth_token"


OF_A_WORKER = ("torch", "fl.executor", "fl.methods.registry")
"""What most of a worker's imports are; none of them imports Ray."""


def main() -> None:
    """The command ``ray`` with this process's arguments, as a node of a cluster.

    It does without the servers that nobody asks in a run: that for Ray clients would listen on a
    fixed port, and end the node where that is taken. Workers are forked from a template.
    """
    (entry,) = distribution("ray").entry_points.select(group="console_scripts", name="ray")
    with (
        worker_template(OF_A_WORKER) if can_fork() else contextlib.nullcontext() as template,
        _only_what_runs_clients(),
        forked_workers(template),
        time_to_start(),
    ):
        entry.load()()


if __name__ == "__main__":
    main()
