"""JSON files that are read again: written whole, and refused by name if they are damaged."""

import json
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl.errors import UserError
from fl.whole_files import no_pipe, write_atomically

# Types of values whose keys and types are known only when a file is read.

JsonObject = dict[str, Any]
"""An object of a JSON file."""
SettingValues = Mapping[str, Any]
"""Values of settings, by dotted name or nested, as YAML and a sweep have them."""


def flatten(values: SettingValues, prefix: str = "") -> JsonObject:
    """Nested settings by dotted name: ``{"fusion": {"lr": 1}}`` to ``{"fusion.lr": 1}``."""
    flat: JsonObject = {}
    for key, value in values.items():
        name = f"{prefix}{key}".replace("-", "_")
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


WHOLE_NUMBERS = re.compile(r"\[\n\s+-?\d+(?:,\n\s+-?\d+)*\n\s+\]")
"""Such a list as JSON with indents has it; within a string there is no newline."""

log = logging.getLogger(__name__)


def write_json(path: Path, value: object) -> None:
    """Writes JSON atomically; a list of whole numbers takes one line.

    NaN and infinities, which JSON has not, become null.
    """
    text = json.dumps(_finite(value), indent=2, allow_nan=False)
    text = WHOLE_NUMBERS.sub(lambda found: _one_line(found[0]), text)
    write_atomically(path, f"{text}\n".encode())


def read_json(path: Path) -> JsonObject:
    """The object in a file.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it is damaged, holds no object, or cannot be read.
    """
    try:
        found = json.loads(no_pipe(path).read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not valid JSON") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it does not hold a mapping")
    found.pop("checksum", None)  # files of older versions have one
    return found


def read_json_if_whole(path: Path) -> JsonObject | None:
    """The object in a file; None where there is no such file, or a damaged one, which is named."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except UserError as error:
        log.warning("%s; it is ignored", error)
        return None


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _one_line(numbers: str) -> str:
    return f"[{' '.join(numbers[1:-1].split())}]"
