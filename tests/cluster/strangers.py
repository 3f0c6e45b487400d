"""What a process that is not ours finds of a run: its ports, and what those answer."""

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc
import psutil

NOBODY = 65534
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
)
"""One of each of Ray's servers; all take an empty request."""


@dataclass(frozen=True)
class Door:
    """A port that is listened on: for TCP connections, or for UDP datagrams."""

    process: str
    host: str
    port: int
    tcp: bool

    @property
    def local(self) -> bool:
        """Whether only processes of this host reach it."""
        address = ip_address(self.host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def family(pid: int) -> list[psutil.Process]:
    here = psutil.Process(pid)
    return [here, *here.children(recursive=True)]


def named(processes: Iterable[psutil.Process], start: str) -> list[psutil.Process]:
    """Those whose names begin so, of those that have not ended."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found += [process] * process.name().startswith(start)
    return found


def doors(processes: Iterable[psutil.Process]) -> set[Door]:
    found = set()
    for process in processes:
        try:
            name, connections = process.name(), process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        for one in connections:
            if one.laddr and one.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                tcp = one.status == psutil.CONN_LISTEN
                found.add(Door(name, one.laddr.ip, one.laddr.port, tcp))
    return found


def answers(port: int, token: str | None = None, within_s: float = 3) -> set[str]:
    """What the methods of Ray's servers answer there, by the names of gRPC's status codes."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    found = set()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in METHODS:
            call = channel.unary_unary(method)
            try:
                call(b"", timeout=within_s, metadata=metadata)
                found.add("OK")
            except grpc.RpcError as error:
                found.add(error.code().name)
            if found & {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:  # it speaks another language
                break
    return found


def nobody_can(*command: str) -> bool:
    """Whether another user of this host succeeds with a command; only root can try that."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    done = subprocess.run([*user, *command], capture_output=True, check=False)
    return done.returncode == 0


def environ(process: psutil.Process, name: str) -> str | None:
    """A variable of the process's environment, which only its own user can read."""
    content = Path(f"/proc/{process.pid}/environ").read_bytes().decode()
    variables = dict(line.partition("=")[::2] for line in content.split("\0") if line)
    return variables.get(name)
