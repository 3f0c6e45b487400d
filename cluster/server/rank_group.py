"""The server's ranks as Ray actors: their start, where they meet, and which of them failed."""

import os
import secrets
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from cluster.clients.extensions import add_models, packed_models, send_methods_by_value
from cluster.hardware.bundles import Bundles
from cluster.hardware.private_folders import own_folder
from cluster.scheduling.capacity import RankPlacement
from fl.data.shard import Shard
from fl.federation import RunSpec
from fl.fusion.fit import FitSpec
from fl.fusion.group import Group, PeerLostError, ProcessGroup
from fl.fusion.rank import Rank, Report
from fl.process import arithmetic


def use_interface_of(address: str) -> None:
    """Makes gloo and NCCL talk over the network that this node's address belongs to.

    By themselves they resolve the host name, which on many machines is a loopback address that
    other nodes cannot reach. What the user has set is not changed.
    """
    for name, own in psutil.net_if_addrs().items():
        if address in [each.address for each in own]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


WITNESS_S = 5.0
"""How long to wait, once a rank lost its peers, for Ray to report which of them died."""


class RankActor:
    """A rank's process. Columns are passed as arrays, which Ray's object store shares uncopied."""

    def __init__(self, threads: int, gpu: str | None, models: bytes | None) -> None:
        """``models``: the user's own, see :mod:`cluster.clients.extensions`."""
        if gpu is not None:  # before anything has looked for GPUs
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        torch.set_num_threads(threads)
        self._address = ray.util.get_node_ip_address()
        use_interface_of(self._address)
        add_models(models)
        self._stack = ExitStack()  # what stays set for the life of the process

    def identity(self) -> str:
        """Process and node, for people."""
        return f"process {os.getpid()} on {socket.gethostname()}"

    def join(
        self,
        run_spec: RunSpec,
        test: Shard,
        number: int,
        size: int,
        meeting: Any,
        secret: bytes,
        timeout_s: float,
    ) -> None:
        """Becomes rank ``number``, once all ranks have joined.

        ``meeting``: a file of this host, or the handle of a :class:`Keeper`; None for a rank alone.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._stack.enter_context(arithmetic(device, tf32=run_spec.tf32))
        group = Group()
        if meeting is not None:
            on_host = isinstance(meeting, Path)
            store = dist.FileStore(str(meeting), size) if on_host else RankStore(meeting)
            group = ProcessGroup(store, number, size, device, secret, timeout_s)
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
    ) -> None:
        self._identities = ["starting"] * len(where)
        self._timeout_s = timeout_s
        self._stack = ExitStack()  # of where the ranks meet
        send_methods_by_value()
        models = packed_models()
        self.actors: list[Any] = [
            ray.remote(RankActor)
            .options(
                # Ranks reserve nothing from Ray: while they work no client does.
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=bundles.strategy(placement.bundle),
            )
            .remote(placement.threads, placement.gpu, models)
            for placement in where
        ]
        try:
            self._identities = self.get([actor.identity.remote() for actor in self.actors])
            meeting = self._meeting(bundles, where) if len(where) > 1 else None
            self._join(run_spec, test, meeting)
        except BaseException:
            self.dismiss()
            raise

    def _meeting(self, bundles: Bundles, where: Sequence[RankPlacement]) -> Any:
        """A file that no other user can read, if all ranks are on this host; else a process beside
        the first rank."""
        here = ray.get_runtime_context().get_node_id()
        if all(bundles.nodes.get(placement.bundle) == here for placement in where):
            return self._stack.enter_context(own_folder("onefold-ranks-")) / "store"
        strategy = bundles.strategy(where[0].bundle)
        options: Any = ray.remote(Keeper).options(num_cpus=0, scheduling_strategy=strategy)
        keeper = options.remote()
        self._stack.callback(ray.kill, keeper)
        return keeper

    def _join(self, run_spec: RunSpec, test: Shard, meeting: Any) -> None:
        size, secret = len(self.actors), secrets.token_bytes(32)
        joining = (
            actor.join.remote(
                run_spec, part(test, k, size), k, size, meeting, secret, self._timeout_s
            )
            for k, actor in enumerate(self.actors)
        )
        self.get(list(joining))

    def get(self, references: Sequence[Any]) -> list[Any]:
        """One result of each rank.

        Raises:
            RankFailed: for the rank that failed, not one that noticed it.
        """
        results = dict(self._results(references))
        return [results[rank] for rank in range(len(references))]

    def fit(self, spec: FitSpec) -> Iterator[Report]:
        """All ranks' :meth:`RankActor.fit` together; yields the first rank's reports.

        Raises:
            RankFailed: as by :meth:`get`.
        """
        fits = [actor.fit.options(num_returns="streaming").remote(spec) for actor in self.actors]
        yield from (report for rank, report in self._results(fits) if rank == 0)

    def _results(self, answers: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The results as they come, each with its rank: of a call one, of a stream all."""
        waiting = {answer: rank for rank, answer in enumerate(answers)}
        while waiting:
            (answer,), _ = ray.wait(list(waiting), num_returns=1)
            rank = waiting.pop(answer)
            try:
                result = _next(answer)
            except StopIteration:
                continue
            except RayError as error:
                raise self._failure({rank: error}, waiting) from None
            if _streams(answer):
                waiting[answer] = rank
            yield rank, result

    def dismiss(self) -> None:
        """Ends all processes."""
        for actor in self.actors:
            ray.kill(actor)
        self._stack.close()

    def _failure(self, errors: dict[int, RayError], waiting: dict[Any, int]) -> RankFailed:
        """The rank that failed: one that raised or died, else one that the others wait for."""
        deadline = time.monotonic() + WITNESS_S
        while waiting and all(_lost_peers(e) for e in errors.values()):
            ready, _ = ray.wait(list(waiting), timeout=max(0, deadline - time.monotonic()))
            if not ready:
                break
            try:
                _next(ready[0])
            except StopIteration:
                del waiting[ready[0]]
            except RayError as error:
                errors[waiting.pop(ready[0])] = error
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
    read = replace(test, samples=test.images, augment=None)
    return read.take(torch.arange(number, len(test), size))


def _streams(answer: Any) -> bool:
    return hasattr(answer, "__next__")


def _next(answer: Any) -> Any:
    """The result of a call; of a stream the next one, or StopIteration."""
    return ray.get(next(answer) if _streams(answer) else answer)


def _lost_peers(error: RayError) -> bool:
    return isinstance(error, RayTaskError) and isinstance(error.cause, PeerLostError)


# Where ranks on several nodes find each other: values that an actor of Ray keeps for the group.
#
# It is reached over Ray's own connections, which answer only who has the cluster's token.

KEY_S = 300.0
"""Seconds to wait for a key where no other time is said; torch's own default."""
LOOK_S = 0.01
"""Seconds between two looks whether it is there."""


class Keeper:
    """The values, in a process of their own."""

    def __init__(self) -> None:
        self._values = dist.HashStore()

    def ask(self, verb: str, *arguments: Any) -> Any:
        """What torch's store of a single process answers to set, get, add or check."""
        return getattr(self._values, verb)(*arguments)


class RankStore(dist.Store):
    """Torch's store of a group: what a rank asks, the :class:`Keeper` answers."""

    def __init__(self, keeper: Any) -> None:
        """``keeper``: the handle of its actor."""
        super().__init__()
        self._keeper = keeper

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value."""
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        """A value, once somebody has set it."""
        self.wait([key])
        return self._ask("get", key)

    def add(self, key: str, number: int) -> int:
        """Adds to a number, which begins at 0; returns the sum."""
        return self._ask("add", key, number)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these are set."""
        return self._ask("check", list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all of these are set.

        Raises:
            PeerLostError: they were not within the timeout.
        """
        seconds = timeout.total_seconds() if timeout else KEY_S
        deadline = time.monotonic() + seconds
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise PeerLostError(f"no rank has set {', '.join(keys)} within {seconds:g} s")
            time.sleep(LOOK_S)

    def _ask(self, verb: str, *arguments: Any) -> Any:
        try:
            return ray.get(self._keeper.ask.remote(verb, *arguments))
        except RayError:
            raise PeerLostError("the process that keeps the ranks' store is gone") from None
