"""A run's model for other programs: as ONNX, or as an exported program of torch's."""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.ensemble import Ensemble
from fl.models.shapes import Built
from onefold.result import load_model

BATCH = torch.export.Dim("batch")
"""The models take any number of images."""


def export_torch(run: Path, file: Path) -> None:
    """Writes the run's global model as ``torch.export`` has it, to load with ``torch.export.load``.

    Raises:
        UserError: the run has no model, or one that torch cannot export.
    """
    model = load_model(run)
    example = _example(model)
    try:
        program = torch.export.export(model, (example,), dynamic_shapes=({0: BATCH},))
    except Exception as error:  # whatever in the user's own model torch does not follow
        raise _not_exported(run, error) from None
    torch.export.save(program, file)


def export_onnx(run: Path, file: Path) -> None:
    """Writes the run's global model as ONNX, one file.

    Raises:
        UserError: as above, or the packages for it are not installed.
    """
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--onnx needs the package {package}: pip install 'onefold[onnx]'")
    model = load_model(run)
    try:
        torch.onnx.export(
            model,
            (_example(model),),
            file,
            dynamo=True,
            dynamic_shapes=({0: BATCH},),
            external_data=False,
            verbose=False,
        )
    except Exception as error:
        raise _not_exported(run, error) from None


def _example(model: nn.Module) -> Tensor:
    """Two images of the shape that the model was built for."""
    while isinstance(model, Ensemble):
        model = model.members[0]
    built = getattr(model, "built_as", None)
    assert isinstance(built, Built), "load_model builds by it"
    return torch.zeros(2, *built.image_shape)


def _not_exported(run: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:300]
    return UserError(f"the model of {run} cannot be exported: {type(error).__name__}: {reason}")
