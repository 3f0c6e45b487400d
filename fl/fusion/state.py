"""A fit's state, put aside while the fit goes on: a GPU's travels to the host meanwhile."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fl.json_files import JsonObject


class State:
    """Values as they were when they were put aside: tensors on the host, in dicts and lists.

    Pickled it waits for them, and is these values.
    """

    def __init__(
        self,
        values: JsonObject,
        arrived: torch.cuda.Event | None = None,
        sent: JsonObject | None = None,
    ) -> None:
        """
        Args:
            values: on the host, or on their way there.
            arrived: when they are there.
            sent: what is copied from a GPU: its memory must not be used again before it arrived.
        """
        self._values, self._arrived, self._sent = values, arrived, sent

    @property
    def values(self) -> JsonObject:
        """The values; waits until they are here."""
        arrived = self._arrived  # another thread, which writes them, may ask meanwhile
        if arrived is not None:
            arrived.synchronize()
            self._arrived, self._sent = None, None
        return self._values

    def on(self, device: torch.device) -> JsonObject:
        """The values on a device; on the host these tensors themselves."""
        return _each(self.values, lambda tensor: tensor.to(device))

    def __reduce__(self) -> tuple[type["State"], tuple[JsonObject]]:
        return State, (self.values,)


def put_aside(values: JsonObject, device: torch.device) -> State:
    """A state of these values. The host does not wait for ``device``, where the tensors are: they
    are copied there at once, and by a stream of their own to pinned memory."""
    copies = _each(values, lambda tensor: tensor.detach().clone())
    if device.type != "cuda":
        return State(copies)
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        values = _each(copies, _to_pinned)
        return State(values, aside.record_event(), copies)


def _to_pinned(tensor: Tensor) -> Tensor:
    there = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return there.copy_(tensor, non_blocking=True)


def _each(values: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The values with the function of each tensor in its place."""
    if isinstance(values, dict):
        return {name: _each(value, function) for name, value in values.items()}
    if isinstance(values, list):
        return [_each(value, function) for value in values]
    return function(values) if isinstance(values, Tensor) else values
