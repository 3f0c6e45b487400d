"""What a client sends about its samples is refused by its name where it cannot be of them."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from fl.errors import ClientFailed
from fl.federation import TaskInput, TaskOutput
from fl.fusion.fit import FitConfig
from fl.methods.registry import get_method
from fl.rounds import Rounds
from tests.fl.methods.personal_runs import SPEC, federation, settings

PUBLIC = {"auxiliary": torch.rand(8, *SPEC.image_shape)}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedd2s": ("send_knowledge", {}),
    "fedict": ("send_features", {}),
    "fedmd": ("send_public_logits", {"own_epochs": 1}),
    "fedproto": ("send_prototypes", {}),
    "hfldd": ("send_soft_labels", {"groups": 2}),
    "centralised": ("send_samples", {"fit": FitConfig(epochs=1)}),
}
"""The task that sends, and settings."""


def shorter(told: Tensor) -> Tensor:
    return told[1:]


def narrower(told: Tensor) -> Tensor:
    return told[:, 1:]


def larger(told: Tensor) -> Tensor:
    return told + 10


@pytest.mark.parametrize(
    ("method", "name", "change"),
    [
        *(("fedd2s", name, shorter) for name in ("first", "deep", "labels")),
        *(("fedd2s", name, narrower) for name in ("first", "deep")),
        *(("fedict", name, shorter) for name in ("features", "logits", "labels")),
        *(
            (method, "labels", change)
            for method in ("fedd2s", "fedict", "centralised")
            for change in (larger, Tensor.float)
        ),
        *(("fedict", name, Tensor.double) for name in ("features", "logits")),
        *(("fedmd", "logits", change) for change in (narrower, Tensor.double)),
        *(("fedproto", "prototypes", change) for change in (narrower, Tensor.double)),
        *(("hfldd", "soft_labels", change) for change in (shorter, Tensor.double, larger)),
        *(("centralised", "images", change) for change in (shorter, Tensor.long)),
        ("centralised", "images", lambda told: told.float() + 2),
        ("centralised", "labels", Tensor.long),
    ],
)
def test_what_cannot_be_of_its_samples_is_refused(
    method: str, name: str, change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, changes = TASKS[method]
    module = import_module(f"fl.methods.{method}")
    honest = getattr(module, task)

    def lying(inputs: TaskInput) -> TaskOutput:
        told = honest(inputs)
        if inputs.client.id == 1:
            told = replace(told, tensors=told.tensors | {name: change(told.tensors[name])})
        return told  # type: ignore[no-any-return]

    monkeypatch.setattr(module, task, lying)
    config, entry = settings(method, epochs=1, **changes), get_method(method)
    clients, server = federation(method, config)
    inputs: dict[str, Any] = {} if entry.one_shot else {"rounds": Rounds(1)}
    with pytest.raises(ClientFailed, match=r"^client 1 .*failed: .*(sent|send) "):
        entry.run(clients, server, config, **inputs, **(PUBLIC if entry.auxiliary else {}))
