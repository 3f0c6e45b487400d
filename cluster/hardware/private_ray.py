"""A Ray cluster for one run on this machine, or an existing one to join and leave running."""

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory, take_inventory
from cluster.hardware.private_folders import rays_folder, short_root
from cluster.hardware.processes import OF_TERMINALS, ROOT
from cluster.hardware.ray_internals import (
    AUTHENTICATION,
    DEFAULTS,
    TOKEN,
    TOKEN_FILE,
    job_config,
    path_of_workers,
    raylet_process,
    shut_down,
    start_cluster,
    token_at_home,
)
from cluster.scheduling.capacity import Bundle
from fl import PACKAGES
from fl.errors import UserError, reason_of
from fl.whole_files import write_atomically

ANSWER_S = 10.0
"""Seconds that a cluster to be joined may take to accept a connection."""
FIRST_WITH_TOKENS = "2.52"
"""The first Ray whose processes refuse whoever does not send the cluster's token."""
LEAST_STORE_BYTES = 80 * 2**20
"""Ray refuses an object store below 75 MiB."""
MESSAGE = (
    "onefold: Ray's process for this node (raylet, {pid}) died, perhaps for want of memory; "
    "--resume continues the run"
)


@contextlib.contextmanager
def private_ray(whole: Bundle, *, template: Path | None = None) -> Iterator[None]:
    """Starts a cluster that no other process finds by chance, and ends only its own processes.

    Args:
        whole: what it may hand out, with memory for clients and object store together.
        template: what its workers are forked from, see :mod:`cluster.hardware.worker_template`.

    Raises:
        UserError: Ray does not start.
    """
    import_ray()

    def start() -> None:
        # Its processes ignore what a terminal sends to all of a command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINALS)
        try:
            start_cluster(
                whole,
                store_bytes=object_store_bytes(whole.memory_bytes),
                root=rays_folder(root),
                first=first_for_workers(),
                template=template,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    after = (
        "its processes may lack memory or have been killed: try again, or use --runtime inprocess"
    )
    with (
        short_root() as root,
        _in_cluster(start, "Ray did not start", after),
        watched(raylet_process()),
    ):
        yield


@contextlib.contextmanager
def joined_ray(address: str) -> Iterator[None]:
    """Joins the cluster at ``HOST:PORT``, and leaves it running when the context ends.

    Who started it sees to its safety: its token, if it has one, is taken from where Ray looks.

    Raises:
        UserError: nothing answers there, or this machine is no node of that cluster.
    """
    prepare_environment()
    try:  # Ray itself tries for minutes before it gives up
        socket.create_connection(parse_address(address), timeout=ANSWER_S).close()
    except OSError as error:
        raise UserError(f"no Ray cluster answers at {address}: {error}") from None
    if os.environ.keys() & {TOKEN, TOKEN_FILE} or token_at_home().exists():
        os.environ.setdefault(AUTHENTICATION, "token")  # a cluster that needs none accepts it too
    import ray

    def start() -> None:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            job_config=job_config(first_for_workers()),
        )

    after = (
        f"the token of a cluster that asks for one is given by {TOKEN} or {TOKEN_FILE}, or in "
        f"{token_at_home()}"
    )
    with _in_cluster(start, f"cannot join the Ray cluster at {address}", after):
        yield


@contextlib.contextmanager
def _in_cluster(start: Callable[[], None], what: str, after: str) -> Iterator[None]:
    """Has this process in the cluster that ``start`` starts or joins, until the context ends;
    raises `UserError` if that fails: ``what``, why, and what to do ``after``.

    SIGTERM's handler stays: Ray replaces it when it starts, and resets it when it ends.
    """
    import ray

    ours, another = signal.getsignal(signal.SIGTERM), ray.is_initialized()

    def restore() -> None:
        if ours is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)

    try:
        try:
            start()
        except Exception as error:  # ray.init raises a bare one too
            raise UserError(f"{what}: {reason_of(error)[:200].rstrip('.')}; {after}") from error
        restore()
        yield
    finally:
        if not another:  # else ``start`` has failed, and the other cluster is not ours to leave
            shut_down()
        restore()


@contextlib.contextmanager
def announced(published: Path) -> Iterator[None]:
    """Writes ``HOST:PORT`` of this process's cluster to the file, which is gone afterwards."""
    import ray

    address = ray.get_runtime_context().gcs_address
    write_atomically(published, f"{address}\n".encode())
    try:
        yield
    finally:
        published.unlink(missing_ok=True)


@contextlib.contextmanager
def watched(raylet: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """Says that the raylet died, and ends this process, if that happens before the context ends.

    Ray would end it too, but seconds later, from C++ and without a word that means anything to a
    user. The process's files are whole at any moment.
    """
    over = threading.Event()

    def wait(raylet: subprocess.Popen[bytes]) -> None:
        raylet.wait()
        if not over.is_set():
            print(MESSAGE.format(pid=raylet.pid), file=sys.stderr, flush=True)
            os._exit(1)

    if raylet:
        threading.Thread(target=wait, args=(raylet,), name="raylet watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def import_ray() -> None:
    """Imports Ray with the environment in which this process starts clusters of its own.

    Raises:
        UserError: there is no Ray, or it could not start here.
    """
    prepare_environment()
    try:  # Ray itself tries for minutes before it gives up
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=ANSWER_S).close()
    except OSError as error:
        raise UserError(
            f"Ray cannot start: 127.0.0.1 does not answer ({error.strerror or error}); bring the "
            "loopback interface up, or use --runtime inprocess"
        ) from None
    make_token()
    import ray  # noqa: F401


def refuse_other_systems() -> None:
    """Raises `UserError` elsewhere than on Linux, by which clients' memory is capped and
    counted."""
    if sys.platform != "linux":
        raise UserError(
            "clients and trials on Ray need Linux; "
            "on this system use onefold run --runtime inprocess"
        )


def prepare_environment() -> None:
    """Sets environment variables that Ray reads when imported, unless the user has set them.

    Raises:
        UserError: this is no Linux, or no Ray is installed, or one too old to ask for a token.
    """
    refuse_other_systems()
    advice = f"pip install 'ray[tune]>={FIRST_WITH_TOKENS}', or use --runtime inprocess"
    try:
        installed = version("ray")
    except PackageNotFoundError:
        raise UserError(f"Ray is not installed; {advice}") from None
    if Version(installed) < Version(FIRST_WITH_TOKENS):
        raise UserError(f"Ray {installed} lets anybody on the network in; {advice}")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def make_token() -> str:
    """The secret of the clusters that this process starts: who does not send it is refused.

    It is made once per process, as Ray reads it once. Ray's own default is one in the home
    directory, which two first launches at once overwrite for each other.
    """
    os.environ[AUTHENTICATION] = "token"
    return os.environ.setdefault(TOKEN, secrets.token_hex(32))


def object_store_bytes(memory_bytes: int, shared_memory: Path = Path("/dev/shm")) -> int:
    """Three tenths of the memory, or less if less shared memory is free."""
    with contextlib.suppress(OSError):
        free = os.statvfs(shared_memory)
        memory_bytes = min(memory_bytes, free.f_bavail * free.f_frsize * 3)
    return max(LEAST_STORE_BYTES, int(memory_bytes * 0.3))


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of a cluster; raises `UserError` for none: no cluster is searched for, which
    could be another user's."""
    parsed = re.fullmatch(r"(?P<host>[^\s:/]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})", address)
    if not parsed or not 0 < int(parsed["port"]) < 65536:
        raise UserError(f"ray_address must be HOST:PORT, got {address!r}")
    return parsed["host"].strip("[]"), int(parsed["port"])


def joined_inventory(address: str) -> Inventory:
    """The strongest node of the cluster at ``HOST:PORT``; the placement later looks at all nodes.

    Raises:
        UserError: the cluster cannot be joined.
    """
    with joined_ray(address):
        import ray

        nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    best = max(nodes, key=lambda node: [node.get(kind, 0) for kind in ("GPU", "CPU", "memory")])
    count, gpus = int(best.get("GPU", 0)), take_inventory().gpus
    if len(gpus) != count:  # not this machine's, whose memory is known: Ray reports none
        gpus = (Gpu(uuid="", name="GPU", memory_bytes=0),) * count
    return Inventory(
        node=f"the strongest of {len(nodes)} nodes",
        cpus=int(best.get("CPU", 0)),
        memory_bytes=int(best.get("memory", 0)),
        gpus=gpus,
        source=f"Ray cluster {address}",
    )


# Files of the user's with the names of Onefold's packages. Python and Ray look for modules in the
# present folder first, and in the script's: a ``cluster.py`` there would be imported for ours.


def shadows() -> list[Path]:
    """The user's files that Ray's processes would find in place of Onefold's packages."""
    folders = {Path.cwd().resolve(), Path(sys.argv[0]).resolve().parent} - {ROOT}
    return [
        file
        for folder in sorted(folders)
        for name in PACKAGES
        for file in (folder / f"{name}.py", folder / name / "__init__.py")
        if file.is_file()
    ]


def first_for_workers() -> str | None:
    """The folder that is to come first where Ray's workers look for modules; None for no other.

    Installed packages come before the user's files there, so it is given only where it must be.
    """
    return str(ROOT) if shadows() else None


def refuse_shadows() -> None:
    """For a Ray cluster that this process is in already, in which it is settled where workers look:
    raises `UserError` for a file that they would import as one of Onefold's packages."""
    path = path_of_workers()
    if path is None or path[-1:] == [str(ROOT)]:  # none yet, or one of ours
        return
    for file in shadows():
        raise UserError(
            f"{file} has the name of one of Onefold's packages, and processes of the Ray started "
            "here would import it instead: let Onefold start Ray, rename the file, or use "
            "--runtime inprocess"
        )
