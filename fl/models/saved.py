"""Models as files: weights as safetensors, and beside them what the module is built of."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.ensemble import Ensemble
from fl.models.info import Built
from fl.models.registry import build_classifier
from fl.whole_files import replacing

KEY = "onefold"
"""Of the file's metadata, under which the model's description is, as JSON."""


def save_model(model: nn.Module, path: Path) -> None:
    """Writes weights and description, with which :func:`load_model` makes the module again."""
    state = {n: t.cpu().contiguous() for n, t in model.state_dict().items()}
    about = describe(model)
    save_tensors(state, path, {KEY: json.dumps(about)} if about else None)


def load_model(path: Path) -> nn.Module:
    """The module that :func:`save_model` wrote, on the CPU, in evaluation mode.

    Raises:
        UserError: there is no such file, it is damaged, or it does not say what it is built of.
    """
    try:
        with safe_open(path, "pt") as file:
            about = (file.metadata() or {}).get(KEY)
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read model {path}: {' '.join(str(error).split())}") from None
    if about is None:
        raise UserError(f"{path} does not say what its model is built of")
    model = _build(json.loads(about))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit its model: {' '.join(str(error).split())}") from None
    return model.eval()


def describe(model: nn.Module) -> dict[str, Any] | None:
    """What the module is built of, as JSON values; None where that is not known."""
    if isinstance(model, Ensemble):
        members = [describe(member) for member in model.members]
        return {"ensemble": members} if all(members) else None
    built = getattr(model, "built_as", None)
    return asdict(built) if isinstance(built, Built) else None


def _build(about: Mapping[str, Any]) -> nn.Module:
    if "ensemble" in about:
        return Ensemble(_build(member) for member in about["ensemble"])
    shape = tuple(about["image_shape"])
    return build_classifier(about["model"], shape, about["num_classes"], width=about["width"])


def save_tensors(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Writes tensors for others to read too: safetensors alone would make the file private."""
    mask = os.umask(0)
    os.umask(mask)
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
        temporary.chmod(0o666 & ~mask)
