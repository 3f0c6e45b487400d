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

from fl.errors import UserError, reason_of
from fl.inputs import Inputs
from fl.json_files import JsonObject
from fl.models.common import Built, digest_of, load_whole, without_sharing
from fl.models.ensemble import COMBINERS, Ensemble
from fl.models.registry import MODELS, OURS, build_classifier
from fl.whole_files import no_pipe, replacing

KEY = "onefold"
"""Of the file's metadata, under which the model's description is, as JSON."""
CHECKSUM = "checksum"
"""Of the description and the weights, within the former; files of others have none."""


def save_model(model: nn.Module, path: Path) -> None:
    """Writes weights and description, with which :func:`load_model` makes the module again."""
    state = without_sharing(model.state_dict())
    about = describe(model)
    if about is not None:
        about[CHECKSUM] = _checksum(about, state)
    save_tensors(state, path, {KEY: json.dumps(about)} if about else None)


def load_model(path: Path) -> nn.Module:
    """The module that :func:`save_model` wrote, on the CPU, in evaluation mode.

    Raises:
        UserError: there is no such file, it is damaged, or it does not say what it is built of.
    """
    try:
        with safe_open(no_pipe(path), "pt") as file:
            metadata = file.metadata() or {}
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read model {path}: {reason_of(error)}") from None
    if KEY not in metadata:
        raise UserError(f"{path} does not name its model's architecture")
    try:
        about = json.loads(metadata[KEY])
        if CHECKSUM in about and about.pop(CHECKSUM) != _checksum(about, state):
            raise UserError(f"{path} is damaged: its checksum does not match")
        model = _build(about)
        load_whole(model, state)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{path} does not fit its model: {reason_of(error)}") from None
    return model.eval()


def own_models(path: Path) -> dict[str, str | None]:
    """The user's own models that the model in a file is built of: by name, the digest of its code.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with safe_open(no_pipe(path), "pt") as file:
            about = json.loads((file.metadata() or {}).get(KEY, "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"cannot read model {path}: {reason_of(error)}") from None
    members = about.get("ensemble", [about]) if isinstance(about, dict) else []
    found = {str(m.get("model")): m.get("code") for m in members if isinstance(m, dict) and m}
    return {name: code for name, code in found.items() if name not in OURS}


def _checksum(about: JsonObject, state: Mapping[str, Tensor]) -> str:
    """Of the description, and the weights' names, types, shapes and values."""
    return digest_of(dict(sorted(state.items())), json.dumps(about, sort_keys=True))


def describe(model: nn.Module) -> dict[str, Any] | None:
    """What the module is built of, as JSON values; None where that is not known."""
    if isinstance(model, Ensemble):
        members, combine = [describe(member) for member in model.members], model.combine
        how = {} if combine is None else {"combine": [type(combine).__name__, combine.about]}
        return {"ensemble": members, **how} if all(members) else None
    built = getattr(model, "built_as", None)
    if not isinstance(built, Built):
        return None
    info = MODELS.get(built.model)
    return {**asdict(built), **({"code": info.code} if info and info.code else {})}


def _build(about: Mapping[str, Any]) -> nn.Module:
    if "ensemble" in about:
        kind, arguments = about.get("combine", (None, {}))
        combine = COMBINERS[kind](**arguments) if kind else None
        return Ensemble((_build(member) for member in about["ensemble"]), combine)
    if "image_shape" in about:  # files of Onefold 0.1 before samples could be anything
        inputs = Inputs(tuple(about["image_shape"]))
    else:
        inputs = _inputs(about["inputs"])
    return build_classifier(about["model"], inputs, about["num_classes"], width=about["width"])


def save_tensors(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Writes tensors for others to read too: safetensors alone would make the file private."""
    mask = os.umask(0)
    os.umask(mask)
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
        temporary.chmod(0o666 & ~mask)


def _inputs(about: Mapping[str, Any]) -> Inputs:
    parts = tuple(_inputs(part) for part in about.get("parts", ()))
    return Inputs(**{**about, "shape": tuple(about["shape"]), "parts": parts})
