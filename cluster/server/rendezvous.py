"""Where ranks find each other.

In a file that no other user can read: on one host in its temporary folder, over several in a folder
that all of them reach. Where they reach none, at a store that the first rank keeps, which answers
only who knows the group's secret.
"""

import fcntl
import os
import socket
import struct
from pathlib import Path

import torch.distributed as dist

from cluster.hardware.private_folders import make_folder, temporary_folder
from cluster.server.secret_store import SecretStore

SIOCGIFADDR = 0x8915

Meeting = Path | tuple[str, int]
"""The file, or the host and port of :class:`cluster.server.secret_store.StoreServer`."""


def make_file(folder: Path | None = None) -> Path:
    """The path of a file for a group, in a folder for :func:`remove_folder`.

    ``folder``: what to make it in; by itself one of this host, for ranks that are all on it.
    """
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    there = folder.resolve() if folder else temporary_folder()
    return make_folder(there, "onefold-ranks-") / "store"


def reaches(file: Path) -> bool:
    """Whether this process could meet others in the file: sees its folder, and may lock in it."""
    try:
        with (file.parent / "lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def find_store(meeting: Meeting, size: int, secret: bytes) -> dist.Store:
    """The store of a group of ``size`` ranks: the file, or what the first rank keeps."""
    if isinstance(meeting, Path):
        return dist.FileStore(str(meeting), size)
    return SecretStore(meeting, secret)


def use_interface_of(address: str) -> None:
    """Makes gloo and NCCL talk over the network that this node's address belongs to.

    By themselves they resolve the host name, which on many machines is a loopback address that
    other nodes cannot reach. What the user has set is not changed.
    """
    name = _interface_of(address)
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _interface_of(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(found) == address:
                return name
    return None
