"""What a run gives back, now or later from its folder; and its model for other programs."""

import logging
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cluster.run.command_line import load_yaml
from fl.errors import UserError, reason_of
from fl.json_files import JsonObject, read_json
from fl.models.ensemble import Ensemble, unwrapped
from fl.models.registry import MODELS, copied, register_model
from fl.models.saved import load_model as load_file
from fl.models.saved import own_models
from fl.plugins import load_plugin
from fl.seeding import streams_restored

OWN_CODE = "own_model.py"
"""A plugin in a run's folder that registers the model which the run was given from Python."""
MODEL = Path("model") / "global.safetensors"
log = logging.getLogger(__name__)
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
"""The media type of a picture's file by its suffix."""


@dataclass(frozen=True)
class Result:
    """A finished run: its figures, and where its files are."""

    path: Path
    figures: JsonObject
    """What ``result.json`` holds."""
    kept: nn.Module | None = field(default=None, repr=False, compare=False)
    """The global model itself where code of the user's makes it, which another run may replace."""

    @property
    def accuracy(self) -> float:
        """From 0 to 1, after the last round or epoch; see :attr:`metric`."""
        return float(self.figures["accuracy"])

    @property
    def metric(self) -> str:
        """What that is: ``accuracy``, or ``R2`` where the targets are values."""
        return str(self.figures.get("metric", "accuracy"))

    @property
    def model(self) -> nn.Module:
        """The global model, on the CPU, ready to be used.

        Raises:
            UserError: the method has none, or its file cannot be read.
        """
        if self.kept is None:
            return load_model(self.path)
        with plain_torch():
            return copied(self.kept)

    @property
    def clients(self) -> list[JsonObject]:
        """A record for each client: role, model, requests, where and how long it trained."""
        return list(self.figures["placements"])

    @property
    def report(self) -> Path:
        """The report, to open in a browser."""
        return self.path / "report.html"

    @property
    def pictures(self) -> dict[str, Path]:
        """The report's pictures by name: SVG, or PNG where they show images."""
        files = sorted((self.path / "plots").glob("*"))
        return {file.stem: file for file in files if file.suffix in KINDS}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the model, whose code another process may not have."""
        return Result, (self.path, self.figures)

    def __repr__(self) -> str:
        """A few lines: what ran, how it ended, and where its files are."""
        up, down = (self.figures[f"bytes_{way}"] for way in ("up", "down"))
        rounds = self.figures.get("stopped_after", self.figures["rounds"])
        return (
            f"{self._title}\n"
            f"{self.figures['clients']} clients, {rounds} rounds, {up:,} bytes up, "
            f"{down:,} down, {self.figures['seconds']['total']:.1f} s\n"
            f"report: {self.report}"
        )

    @property
    def _title(self) -> str:
        method, data = self.figures["method"], self.figures["dataset"]
        return f"{method} on {data}: {self.metric} {self.accuracy:.4f}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the accuracy, and the pictures."""
        title = self._title
        shown = [
            f'<img alt="{escape(name)}" style="max-width:48%" '
            f'src="data:{KINDS[file.suffix]};base64,{b64encode(file.read_bytes()).decode()}">'
            for name, file in self.pictures.items()
        ]
        return f"<p><b>{escape(title)}</b> ({escape(str(self.path))})</p>{''.join(shown)}"


def load_result(path: Path | str) -> Result:
    """The result of a finished run, by its folder.

    Raises:
        UserError: the folder holds no finished run.
    """
    try:
        return Result(Path(path), read_json(Path(path) / "result.json"))
    except OSError as error:
        raise UserError(f"{path} holds no finished run: {error}") from None


def load_model(path: Path | str, model: Callable[..., nn.Module] | None = None) -> nn.Module:
    """The global model of a run, on the CPU, in evaluation mode; of clients with several
    architectures their ensemble.

    A model of your own needs its class: give it, or register it, as by importing your module; or
    the run's plugin must still be where it was.

    Args:
        path: the run's folder, or a model's file, such as ``model/best.safetensors`` in it.
        model: the class or function by which :func:`onefold.run` was given it.

    Raises:
        UserError: there is none, its file cannot be read, or its class is not known.
    """
    path = Path(path)
    with plain_torch():
        file = path if path.is_file() else path / MODEL
        if not file.is_file():
            needed = "such file" if path.suffix == MODEL.suffix else MODEL
            raise UserError(f"{path} holds no model: no {needed}")
        run = file.parent.parent
        if file != path or (run / "config.yaml").is_file():
            for plugin in load_yaml(run / "config.yaml").get("plugin") or ():
                load_plugin(plugin)
        own = own_models(file)
        if model is not None:
            for name in own:
                register_model(name, model)
        for name in own.keys() - MODELS.keys():
            code = run / OWN_CODE
            kept = f"; its code is kept, to be read before it is trusted: {code}"
            raise UserError(
                f"the model of {path} is your own {name}, which is not registered here: "
                f"onefold.load_model({str(path)!r}, model={name}), or --plugin FILE that registers "
                f"it{kept if code.is_file() else ''}"
            )
        for name, built in own.items():
            known = MODELS[name].code
            # Another Python has other bytecode: there nothing can be said.
            if built and built != known and built[:-64] == known[:-64]:
                line = f"the model of {path} was built by another {name} than the one that is"
                if model is None:
                    raise UserError(
                        f"{line} known here: give its class, "
                        f"onefold.load_model({str(path)!r}, model={name})"
                    )
                log.warning("%s given: its outputs may differ from the run's", line)
        return unwrapped(load_file(file))


def export_model(run: Path, file: Path, *, onnx: bool) -> None:
    """Writes the run's global model as ONNX, else as ``torch.export.load`` reads it; one file.

    It takes any number of images.

    Raises:
        UserError: the run has no model, or one that torch cannot export; or a package is missing.
    """
    for package in ("onnx", "onnxscript") if onnx else ():
        if find_spec(package) is None:
            raise UserError(f"--onnx needs the package {package}: pip install 'onefold[onnx]'")
    model = load_model(run)
    first: Any = model
    while isinstance(first, Ensemble):
        first = first.members[0]
    inputs = first.built_as.inputs
    whole = inputs.example(2)
    samples = inputs.one_by_one(whole) if inputs.parts and first is model else (whole,)
    shapes = tuple({0: torch.export.Dim("batch")} for _ in samples)
    try:
        if onnx:
            torch.onnx.export(
                model,
                samples,
                file,
                dynamo=True,
                dynamic_shapes=shapes,
                external_data=False,
                verbose=False,
            )
        else:
            torch.export.save(torch.export.export(model, samples, dynamic_shapes=shapes), file)
    except Exception as error:  # whatever in the user's own model torch does not follow
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise UserError(f"the model of {run} cannot be exported: {reason}") from None


@contextmanager
def plain_torch() -> Iterator[None]:
    """Inside, torch is as a new process has it: gradients, float32, no autocast, on the CPU.

    A run may be called inside ``torch.no_grad()`` or after ``torch.set_default_dtype``; what it
    trains must not depend on that, as its uploads are kept for other runs.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(streams_restored())
        yield
