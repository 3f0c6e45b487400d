"""The server's ranks as Ray actors: their placement, their start, and which of them failed."""

import fcntl
import os
import secrets
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from cluster.hardware.bundles import Bundles
from cluster.hardware.private_folders import make_folder, remove_folder, temporary_folder
from cluster.server.rank_placement import RankPlacement
from cluster.server.secret_store import SecretStore, StoreServer
from fl.arithmetic import arithmetic
from fl.data.shard import Shard
from fl.federation import RunSpec
from fl.fusion.fit import FitSpec
from fl.fusion.group import Group, PeerLostError, ProcessGroup
from fl.fusion.rank import Rank, Report

# Where ranks find each other.
#
# In a file that no other user can read: on one host in its temporary folder, over several in a
# folder that all of them reach. Where they reach none, at a store that the first rank keeps, which
# answers only who knows the group's secret.

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


WITNESS_S = 5.0
"""How long to wait, once a rank lost its peers, for Ray to report which of them died."""


class RankActor:
    """A rank's process. Columns are passed as arrays, which Ray's object store shares uncopied."""

    def __init__(self, threads: int, gpu: str | None) -> None:
        if gpu is not None:  # before anything has looked for GPUs
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        torch.set_num_threads(threads)
        self._address = ray.util.get_node_ip_address()
        use_interface_of(self._address)
        self._server: StoreServer | None = None
        self._stack = ExitStack()  # what stays set for the life of the process

    def identity(self) -> str:
        """Process and node, for people."""
        return f"process {os.getpid()} on {socket.gethostname()}"

    def reaches(self, file: Path) -> bool:
        """See :func:`cluster.server.rank_group.reaches`."""
        return reaches(file)

    def open_store(self, secret: bytes) -> Meeting:
        """Opens the store where ranks on several hosts find each other; says where it is."""
        self._server = StoreServer(self._address, secret)
        return self._server.address

    def join(
        self,
        run_spec: RunSpec,
        test: Shard,
        number: int,
        size: int,
        meeting: Meeting | None,
        secret: bytes,
        timeout_s: float,
    ) -> None:
        """Becomes rank ``number``, once all ranks have joined; a rank alone meets nobody."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._stack.enter_context(arithmetic(device, tf32=run_spec.tf32))
        group = Group()
        if meeting is not None:
            store = find_store(meeting, size, secret)
            group = ProcessGroup(store, number, size, device, secret, timeout_s)
        if self._server:
            self._server.close()  # all have joined
        self._rank = Rank(run_spec, test, device, group)

    def call(self, method: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        """Calls a method of the rank; returns its results, and None to signal that it is done."""
        result = method(self._rank, *map(as_tensor, arguments))
        results = result if isinstance(result, tuple) else (result,)
        return *map(as_array, results), None

    def fit(self, spec: FitSpec) -> Iterator[Report]:
        """See :meth:`fl.fusion.rank.Rank.fit`; the model and the columns' blocks are references."""
        references: Mapping[str, Sequence[Any]] = spec.columns
        blocks = {n: [as_tensor(b) for b in ray.get(list(r))] for n, r in references.items()}
        model: Any = spec.model
        yield from self._rank.fit(replace(spec, model=ray.get(model), columns=blocks))


def as_array(value: Any) -> Any:
    """A tensor as an array on the host; anything else as it is."""
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def as_tensor(value: Any) -> Any:
    """An array as a tensor over the same memory, not to be written to; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no read-only tensors
        return torch.from_numpy(value)


class RankFailed(Exception):
    """A rank raised, died or stayed silent."""

    def __init__(self, rank: int, identity: str, reason: str, error: Exception | None) -> None:
        super().__init__(f"rank {rank} of the server ({identity}) {reason}")
        self.rank = rank
        self.reason = reason
        self.error = error
        """What its own code raised; None if its process died or was silent: a retry may help."""


class RankGroup:
    """The ranks of a server, which are started, and after a failure replaced, together."""

    def __init__(
        self,
        bundles: Bundles,
        where: Sequence[RankPlacement],
        run_spec: RunSpec,
        test: Shard,
        timeout_s: float,
        shared: Path | None = None,
    ) -> None:
        """``shared``: a folder that all nodes may reach, for ranks on several to meet in."""
        self._identities = ["starting"] * len(where)
        self._timeout_s, self._shared = timeout_s, shared
        here = ray.get_runtime_context().get_node_id()
        self._together = all(bundles.nodes.get(placement.bundle) == here for placement in where)
        self._file: Path | None = None
        self.actors: list[Any] = [
            ray.remote(RankActor)
            .options(
                # Ranks reserve nothing from Ray: while they work no client does.
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=bundles.strategy(placement.bundle),
            )
            .remote(placement.threads, placement.gpu)
            for placement in where
        ]
        try:
            self._identities = self.get([actor.identity.remote() for actor in self.actors])
            self._meet(run_spec, test)
        except BaseException:
            self.dismiss()
            raise

    def _meet(self, run_spec: RunSpec, test: Shard) -> None:
        size, timeout_s = len(self.actors), self._timeout_s
        secret = secrets.token_bytes(32)
        meeting = self._meeting(secret) if size > 1 else None
        joining = (
            actor.join.remote(run_spec, part(test, k, size), k, size, meeting, secret, timeout_s)
            for k, actor in enumerate(self.actors)
        )
        self.get(list(joining))

    def _meeting(self, secret: bytes) -> Meeting:
        """A file that all ranks reach, else a store that the first one keeps."""
        if self._together or self._shared:
            self._file = make_file(None if self._together else self._shared)
            if self._together or self._all_reach(self._file):
                return self._file
        (store,) = self.get([self.actors[0].open_store.remote(secret)])
        return store

    def _all_reach(self, file: Path) -> bool:
        return all(self.get([actor.reaches.remote(file) for actor in self.actors]))

    def get(self, references: Sequence[Any]) -> list[Any]:
        """One result of each rank.

        Raises:
            RankFailed: the first that failed.
        """
        waiting = {reference: rank for rank, reference in enumerate(references)}
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            rank = waiting.pop(ready)
            try:
                ray.get(ready)
            except RayError as error:
                raise self._failure({rank: error}, list(waiting.items())) from None
        return ray.get(list(references))

    def fit(self, spec: FitSpec) -> Iterator[Report]:
        """All ranks' :meth:`RankActor.fit` together; yields the first rank's reports.

        Raises:
            RankFailed: for the rank that failed, not one that noticed it.
        """
        streams: dict[Any, int] = {
            actor.fit.options(num_returns="streaming").remote(spec): rank
            for rank, actor in enumerate(self.actors)
        }
        while streams:
            ready, _ = ray.wait(list(streams), num_returns=1)
            stream: Any = ready[0]
            try:
                report = ray.get(next(stream))
            except StopIteration:
                del streams[stream]
                continue
            except RayError as error:
                rank = streams.pop(stream)
                raise self._failure({rank: error}, list(streams.items())) from None
            if streams[stream] == 0:
                yield report

    def dismiss(self) -> None:
        """Ends all processes."""
        for actor in self.actors:
            ray.kill(actor)
        if self._file:
            remove_folder(self._file.parent)
            self._file = None

    def _failure(self, errors: dict[int, RayError], others: list[tuple[Any, int]]) -> RankFailed:
        """The rank that failed: one that raised or died, else one that the others wait for."""
        deadline = time.monotonic() + WITNESS_S
        waiting = dict(others)
        while waiting and all(_lost_peers(e) for e in errors.values()):
            ready, _ = ray.wait(list(waiting), timeout=max(0, deadline - time.monotonic()))
            if not ready:
                break
            answer: Any = ready[0]
            rank = waiting[answer]
            try:
                ray.get(next(answer) if hasattr(answer, "__next__") else answer)
            except StopIteration:
                del waiting[answer]
            except RayError as error:
                del waiting[answer]
                errors[rank] = error
        for rank, found in errors.items():
            if not _lost_peers(found):
                return self._blame(rank, found)
        silent, waited = min(waiting.values(), default=min(errors)), min(errors)
        reason = f"was silent: {getattr(errors[waited], 'cause', None)}"
        return RankFailed(silent, self._identities[silent], reason, None)

    def _blame(self, rank: int, error: RayError) -> RankFailed:
        if isinstance(error, RayTaskError):
            reason = f"raised {type(error.cause).__name__}: {error.cause}"
            return RankFailed(rank, self._identities[rank], reason, error)
        return RankFailed(rank, self._identities[rank], f"died ({type(error).__name__})", None)


def part(test: Shard, number: int, size: int) -> Shard:
    """A rank's share of the test split."""
    return Shard(
        samples=test.images[number::size],
        labels=test.labels[number::size],
        num_classes=test.num_classes,
        domains=None if test.domains is None else test.domains[number::size],
        targets=None if test.targets is None else test.targets[number::size],
    )


def _lost_peers(error: RayError) -> bool:
    return isinstance(error, RayTaskError) and isinstance(error.cause, PeerLostError)
