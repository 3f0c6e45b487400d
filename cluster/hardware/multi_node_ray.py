"""A Ray cluster over the nodes of an allocation, gathered through a directory that they share.

The first node starts the head and writes its address; every other node waits for that file,
whichever starts first, and joins. Each node offers what the allocation has on it and no more. Every
process is a child of the process that started it and ends with it.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.hardware.inventory import Inventory
from cluster.hardware.private_folders import private_folder, rays_folder, short_root
from cluster.hardware.private_ray import (
    joined_ray,
    make_token,
    object_store_bytes,
    parse_address,
    prepare_environment,
)
from cluster.hardware.processes import end_descendants, start
from cluster.hardware.ray_internals import (
    AUTHENTICATION,
    TOKEN,
    on_loopback,
    published_address,
    start_command,
)
from fl.whole_files import replacing

HEAD_S = 120.0
"""Seconds that the head may take to start."""
JOIN_S = 300.0
"""Seconds that the other nodes may take to join once the head is there."""
LOOK_S = 0.5
"""Seconds between looks at the shared directory."""
LOOKS_PER_CALL = 20
"""Looks between two checks whether the head still answers."""
LINES = 15
"""Last lines of a log that are shown."""


class GatheringError(RuntimeError):
    """The cluster did not come up; the message has the missing nodes' last log lines."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """Where the head is, and what the others need to join it."""

    address: str
    host: str
    root: str
    token: str


@contextlib.contextmanager
def gather(
    meeting: Path, *, nodes: int, inventory: Inventory, ignoring: Sequence[signal.Signals] = ()
) -> Iterator[str]:
    """On the first node: starts the head; gives the cluster's ``HOST:PORT`` once all nodes joined.

    When the context ends, so does the whole cluster. A cluster of one node keeps to 127.0.0.1.

    Args:
        meeting: the shared directory, which belongs to this start of this job alone.
        nodes: how many, this one included.
        inventory: what this node offers.
        ignoring: signals that Ray's processes ignore.

    Raises:
        GatheringError: the head does not start, or a node never joins.
        UserError: the directory is not this user's alone.
    """
    prepare_environment()
    token = make_token()
    private_folder(meeting)
    log, published = meeting / "node-0.log", meeting / "head.json"
    with short_root() as root, on_loopback() if nodes == 1 else contextlib.nullcontext():
        folder = rays_folder(root)
        options = ["--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}"]
        try:
            raylet = _start_raylet(options, 0, inventory, log, ignoring)
            address = _address(folder, raylet, log)
            head = Head(address=address, host=socket.gethostname(), root=str(root), token=token)
            with replacing(published) as new:
                new.touch(mode=0o600)
                new.write_text(json.dumps(asdict(head)))
            _await_nodes(meeting, address, nodes)
            yield address
        finally:
            (meeting / "over").touch()
            published.unlink(missing_ok=True)
            end_descendants()


def attend(
    meeting: Path, *, node: int, inventory: Inventory, ignoring: Sequence[signal.Signals] = ()
) -> None:
    """On every other node: joins the head, and stays until the first node ends the cluster.

    If a node's raylet ends early, the node is lost to the run, which goes on without it.

    Raises:
        GatheringError: the head is gone, but did not end the cluster.
        UserError: the directory, or Ray's on this node, is not this user's alone.
    """
    prepare_environment()
    private_folder(meeting)
    log = meeting / f"node-{node}.log"
    _say(log, f"{socket.gethostname()}: waiting for the head")
    head = _await_head(meeting)
    if head is None:
        return
    os.environ |= {TOKEN: head.token, AUTHENTICATION: "token"}
    private_folder(Path(head.root))  # Ray has the same paths on all nodes
    try:
        raylet = _start_raylet([f"--address={head.address}"], node, inventory, log, ignoring)
        for look in itertools.count():
            if (meeting / "over").exists():
                break
            if raylet.poll() is not None:
                (meeting / f"node-{node}.gone").touch()
            # Ray itself would wait a minute for a head that is gone.
            if look % LOOKS_PER_CALL == 0 and not _answers(head.address):
                raise GatheringError(f"the head at {head.address} is gone")
            time.sleep(LOOK_S)
    finally:
        end_descendants()
        # On its own host the head removes its folder, but a Ray that starts while the head ends
        # makes the folder again.
        if socket.gethostname() != head.host or (meeting / "over").exists():
            shutil.rmtree(head.root, ignore_errors=True)


def tail(log: Path) -> str:
    """The last lines of a log, or that there is none."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LINES:]
    except OSError:
        return f"it wrote nothing: is {log.parent} shared with it?"
    return "\n".join(lines)


def _start_raylet(
    options: Sequence[str],
    node: int,
    inventory: Inventory,
    log: Path,
    ignoring: Sequence[signal.Signals],
) -> subprocess.Popen[bytes]:
    store_bytes = object_store_bytes(inventory.memory_bytes)
    command = [
        *start_command(name=f"node-{node}", memory_bytes=inventory.memory_bytes - store_bytes),
        *("--block", *options),
        f"--num-cpus={inventory.cpus}",
        f"--num-gpus={len(inventory.gpus)}",
        f"--object-store-memory={store_bytes}",
        # No fixed ports, since two raylets may share a host.
        *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        "--disable-usage-stats",
    ]
    _say(log, f"{socket.gethostname()}: {inventory.bundle}")
    with log.open("ab") as output:
        return start(command, output, ignoring)


def _address(root: Path, raylet: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + HEAD_S
    while (address := published_address(root)) is None:
        if raylet.poll() is not None or time.monotonic() > deadline:
            raise GatheringError(f"the head's Ray did not start; its log ends:\n{tail(log)}")
        time.sleep(0.1)
    return address


def _await_head(meeting: Path) -> Head | None:
    """The head's record; None if the first node has ended the cluster already."""
    while not (meeting / "over").exists():
        try:
            return Head(**json.loads((meeting / "head.json").read_text()))
        except FileNotFoundError:
            time.sleep(LOOK_S)
    return None


def _await_nodes(meeting: Path, address: str, nodes: int) -> None:
    expected = {f"node-{node}" for node in range(nodes)}
    deadline = time.monotonic() + JOIN_S
    with joined_ray(address):
        import ray

        while missing := expected - {n["NodeName"] for n in ray.nodes() if n["Alive"]}:
            gone = any((meeting / f"{name}.gone").exists() for name in missing)
            if gone or time.monotonic() > deadline:
                logs = "\n".join(f"{n}: {tail(meeting / f'{n}.log')}" for n in sorted(missing))
                raise GatheringError(
                    f"{len(missing)} of {nodes} nodes did not join the Ray cluster at {address}; "
                    f"their last lines:\n{logs}"
                )
            time.sleep(LOOK_S)


def _answers(address: str) -> bool:
    """Whether something listens there; a busy host may need more than one attempt."""
    for _ in range(3):
        with contextlib.suppress(OSError):
            socket.create_connection(parse_address(address), timeout=5).close()
            return True
        time.sleep(1)
    return False


def _say(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{time.strftime('%H:%M:%S')} {line}\n")
