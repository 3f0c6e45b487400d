"""A machine that keeps its own books: runs a placement and refuses to be overbooked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st

from cluster.scheduling.capacity import Bundle, Slot
from cluster.scheduling.placement import Placement
from fl.federation import Request

MEMORY = 100
examples = settings(derandomize=True)


@dataclass(frozen=True)
class Work:
    """One client: what it asks for, what it is thought to take, and what it takes."""

    request: Request
    expected: float
    seconds: float


@dataclass
class Stay:
    """When and where a client ran."""

    slot: Slot
    start: float
    end: float


@dataclass
class Machine:
    """Runs clients in simulated time, asking the placement whom to start."""

    bundles: Sequence[Bundle]
    clients: Mapping[int, Work]
    placement: Placement
    now: float = 0.0
    stays: dict[int, Stay] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    def run(self) -> float:
        """Runs everyone to the end; returns the makespan in seconds."""
        for _ in self.steps():
            pass
        return max(stay.end for stay in self.stays.values())

    def steps(self) -> Iterator[tuple[int, int | None]]:
        """Yields who was first in line at each call of start(), and who started."""
        while True:
            while waiting := self.placement.queue():
                started = self.placement.start()
                if started is None:
                    yield waiting[0].client, None
                    break
                client, slot = started
                assert client not in self.stays, "started twice"
                end = self.now + self.clients[client].seconds
                self.stays[client] = Stay(slot, self.now, end)
                self.check_capacity()
                yield waiting[0].client, client
            if not self.running:
                return
            done = min(self.running, key=lambda c: (self.stays[c].end, c))
            self.now = self.stays[done].end
            self.placement.finish(done, self.clients[done].seconds)
            self.finished.add(done)

    @property
    def running(self) -> list[int]:
        """Who has started and not been reported as finished."""
        return [client for client in self.stays if client not in self.finished]

    def check_capacity(self) -> None:
        """Adds up what those at work take, bundle by bundle and GPU by GPU."""
        for bundle in self.bundles:
            here = [c for c in self.running if self.stays[c].slot.bundle == bundle.name]
            asked = [self.clients[c].request for c in here]
            assert sum(Fraction(str(r.cpus)) for r in asked) <= bundle.cpus
            assert sum(r.memory_bytes for r in asked) <= bundle.memory_bytes
            for gpu in range(bundle.gpus):
                on = [self.clients[c].request for c in here if self.stays[c].slot.gpu == gpu]
                assert sum(Fraction(str(r.gpus)) for r in on) <= 1
            for client, request in zip(here, asked, strict=True):
                gpu = self.stays[client].slot.gpu
                assert (gpu in range(bundle.gpus)) if request.gpus else (gpu is None)


def machine(
    bundles: Sequence[Bundle], clients: Mapping[int, Work], *, most: int | None = None
) -> Machine:
    """A machine whose placement knows every client, all of one model."""
    placement = Placement(bundles, most=most, rates={"m": 1.0})
    for client, work in clients.items():
        placement.add(client, work.request, "m", work.expected)
    return Machine(bundles, clients, placement)


def bundle(name: str = "a", cpus: float = 4, gpus: int = 0) -> Bundle:
    """A bundle with MEMORY bytes."""
    return Bundle(name=name, cpus=cpus, gpus=gpus, memory_bytes=MEMORY)


def ask(cpus: float = 1, gpus: float = 0, memory_bytes: int = 0) -> Request:
    """A request, of one core unless more is said."""
    return Request(cpus=cpus, gpus=gpus, memory_bytes=memory_bytes)


def started(placement: Placement) -> list[int]:
    """Everyone who starts now, in order."""
    clients = []
    while cohort := placement.start():
        clients.append(cohort[0])
    return clients


def cores(*widths_and_seconds: tuple[float, float]) -> dict[int, Work]:
    """Clients that want so many cores, and take as long as is thought."""
    return {c: Work(ask(w), s, s) for c, (w, s) in enumerate(widths_and_seconds)}


seconds = st.one_of(st.sampled_from([1.0, 2.0, 4.0, 8.0]), st.floats(0.1, 10))
noise = st.sampled_from([0.25, 0.8, 1.0, 1.0, 1.2, 4.0])


@st.composite
def bundles_and_clients(draw: st.DrawFn) -> tuple[list[Bundle], dict[int, Work]]:
    """One to three bundles, with GPUs or not, and clients that each fit one of them."""
    sizes = st.tuples(st.sampled_from([1, 4, 16]), st.integers(0, 3))
    drawn = draw(st.lists(sizes, min_size=1, max_size=3))
    bundles = [bundle(str(index), cpus, gpus) for index, (cpus, gpus) in enumerate(drawn)]
    clients = {}
    for client in range(draw(st.integers(1, 14))):
        where = draw(st.sampled_from(bundles))
        request = Request(
            cpus=where.cpus * draw(st.sampled_from([0.1, 0.25, 0.5, 0.7, 1.0])),
            gpus=draw(st.sampled_from([0, 0.1, 0.3, 0.35, 0.6, 1.0])) if where.gpus else 0,
            memory_bytes=draw(st.sampled_from([0, 0, 10, 34, MEMORY])),
        )
        expected = draw(seconds)
        clients[client] = Work(request, expected, expected * draw(noise))
    return bundles, clients
