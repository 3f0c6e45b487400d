"""What a run gives back, now or later from its folder."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from torch import nn

from cluster.run.command_line import load_yaml
from fl.errors import UserError
from fl.json_files import JsonObject, read_json
from fl.models.registry import MODELS, register_model
from fl.models.saved import load_model as load_file
from fl.models.saved import own_models
from fl.plugins import load_plugin
from onefold.callers import plain_torch

OWN_CODE = "own_model.py"
"""A plugin in a run's folder that registers the model which the run was given from Python."""
MODEL = Path("model") / "global.safetensors"
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
"""The media type of a picture's file by its suffix."""


@dataclass(frozen=True)
class Result:
    """A finished run: its figures, and where its files are."""

    path: Path
    figures: JsonObject
    """What ``result.json`` holds."""

    @property
    def accuracy(self) -> float:
        """From 0 to 1, after the last round or epoch."""
        return float(self.figures["accuracy"])

    @property
    def model(self) -> nn.Module:
        """The global model, on the CPU, ready to be used.

        Raises:
            UserError: the method has none, or its file cannot be read.
        """
        return load_model(self.path)

    @property
    def clients(self) -> list[JsonObject]:
        """A record for each client: role, model, samples, bytes, where and how long it trained."""
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

    def _repr_html_(self) -> str:
        """What a notebook shows: the accuracy, and the pictures."""
        title = (
            f"{self.figures['method']} on {self.figures['dataset']}: accuracy {self.accuracy:.4f}"
        )
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
    """The global model of a run, on the CPU, in evaluation mode.

    A model of your own needs its class: give it, or register it, as by importing your module; or
    the run's plugin must still be where it was.

    Args:
        path: the run's folder, or a model's file.
        model: the class or function by which :func:`onefold.run` was given it.

    Raises:
        UserError: there is none, its file cannot be read, or its class is not known.
    """
    path = Path(path)
    with plain_torch():
        file = path if path.is_file() else path / MODEL
        if not file.is_file():
            raise UserError(f"{path} holds no model: no {MODEL}")
        if file != path:
            for plugin in load_yaml(path / "config.yaml").get("plugin") or ():
                load_plugin(plugin)
        own = own_models(file)
        if model is not None:
            for name in own:
                register_model(name, model)
        for name in own - MODELS.keys():
            raise UserError(
                f"the model of {path} is built by your own {name}, which is not known here: "
                f"onefold.load_model({str(path)!r}, model={name}), or --plugin FILE that registers "
                f"it{_kept(path)}"
            )
        return load_file(file)


def _kept(path: Path) -> str:
    """Where its code is kept, as the end of a line."""
    kept = path / OWN_CODE
    return f"; its code is kept, to be read before it is trusted: {kept}" if kept.is_file() else ""
