"""Where ranks find each other: a store on a free port of the first rank's node."""

import fcntl
import os
import socket
import struct

import torch.distributed as dist

SIOCGIFADDR = 0x8915


def open_store(host: str) -> dist.TCPStore:
    """Opens the store in this process, on a port that the system chooses (``.port``)."""
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)


def find_store(host: str, port: int) -> dist.TCPStore:
    """The store that another rank opened."""
    return dist.TCPStore(host, port, is_master=False)


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
