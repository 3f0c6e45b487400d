"""What torch, asked for CUDA itself, says of pretended GPUs."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import torch

from tests.pretended_gpu.tags import CPU
from tests.pretended_gpu.torch_internals import EXCHANGE, START, device_index

NAME = "Pretended GPU"
MEMORY = 8 * 2**30
"""Bytes of a GPU."""


class Stream:
    """All work is done when it is asked for."""

    def wait_stream(self, other: "Stream") -> None: ...

    def record_event(self) -> "Stream":
        return self

    def synchronize(self) -> None: ...


class Gpus:
    """The GPUs of a process. Each thread has a current one of its own, at first number 0."""

    def __init__(self, count: int, free_bytes: int) -> None:
        self.count, self.free_bytes = count, free_bytes
        self.started = False
        """Whether CUDA was started: it is by the first that needs a GPU, and then takes memory."""
        self._threads = threading.local()

    @property
    def current(self) -> int:
        """The number of this thread's current GPU."""
        return getattr(self._threads, "current", 0)

    def resolve(self, named: Any) -> torch.device:
        """The device of that name, with its number if it is a GPU.

        Raises:
            RuntimeError: there is no such GPU.
        """
        device = torch.device("cuda", named) if isinstance(named, int) else torch.device(named)
        if device.type != "cuda":
            return device
        self.start()
        return torch.device("cuda", self.index(device))

    def index(self, device: Any, *, optional: bool = True) -> int:
        """The number of a GPU; None and an unnumbered one are the current one if ``optional``."""
        index = device_index(device, optional=optional)
        if not 0 <= index < self.count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return index

    def set_device(self, device: Any) -> None:
        self._threads.current = self.index(device, optional=False)

    def exchange(self, index: int) -> int:
        """Makes a GPU the current one; returns the one before. A negative index changes nothing."""
        before = self.current
        if index >= 0:
            self.set_device(index)
        return before

    def properties(self, device: Any = None) -> SimpleNamespace:
        self.start()
        uuid = UUID(int=self.index(device))
        return SimpleNamespace(
            name=NAME, total_memory=MEMORY, uuid=uuid, major=8, minor=0, multi_processor_count=1
        )

    def reset_peak(self, device: Any = None) -> None:
        """Unlike others it does not start CUDA."""
        index = self.index(device)
        if not self.started:
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")

    def start(self) -> None:
        self.started = True

    def current_device(self) -> int:
        self.start()
        return self.current

    def answers(self) -> dict[str, Callable[..., Any]]:
        """The functions of ``torch.cuda`` to replace, and by what."""

        def of_device(answer: Any) -> Callable[..., Any]:
            def asked(device: Any = None) -> Any:
                self.start()
                self.index(device)
                return answer

            return asked

        used = ("memory_allocated", "memory_reserved", "max_memory_allocated")
        return {
            **{name: of_device(0) for name in (*used, "max_memory_reserved")},
            "reset_peak_memory_stats": self.reset_peak,
            "synchronize": of_device(None),
            "is_available": lambda: True,
            "is_initialized": lambda: self.started,
            "is_bf16_supported": lambda *_, **__: True,
            "init": self.start,
            START: self.start,
            "device_count": lambda: self.count,
            "current_device": self.current_device,
            "set_device": self.set_device,
            **dict.fromkeys(EXCHANGE, self.exchange),
            "get_device_properties": self.properties,
            "get_device_name": lambda device=None: self.properties(device).name,
            "get_device_capability": of_device((8, 0)),
            "mem_get_info": of_device((self.free_bytes, MEMORY)),
            "is_current_stream_capturing": lambda: False,
            "empty_cache": lambda: None,
            "Stream": lambda device=None: Stream(),
            "current_stream": of_device(Stream()),
            "stream": lambda stream: nullcontext(),
            "set_per_process_memory_fraction": lambda fraction, device=None: self.index(device),
            # All devices draw from the CPU's one global stream.
            "get_rng_state": lambda device="cuda": self._stream(device).get_state(),
            "set_rng_state": lambda state, device="cuda": self._stream(device).set_state(state),
            "manual_seed": lambda seed: self._stream().manual_seed(seed),
            "manual_seed_all": lambda seed: None,  # called by torch.manual_seed, which seeds it
        }

    def _stream(self, device: Any = "cuda") -> torch.Generator:
        self.resolve(device)
        return torch.default_generator


def generator_class(resolve: Callable[[Any], torch.device]) -> type[torch.Generator]:
    """``torch.Generator``, of which some say that they are on a GPU."""

    class Generator(torch.Generator):
        def __new__(cls, device: Any = CPU) -> "Generator":
            return super().__new__(cls)

        def __init__(self, device: Any = CPU) -> None:
            self._device = resolve(device)

        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return self._device

    return Generator
