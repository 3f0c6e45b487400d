"""The source of what users bring, hashed: uploads of other code must not be taken for its."""

import hashlib
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any


def source_hash(thing: Callable[..., Any] | type) -> str:
    """Hash of the file that defines it; in a notebook, which has none, of its own source."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(thing))
        if file and Path(file).is_file():
            return _sha(Path(file).read_bytes())
        return _sha(inspect.getsource(thing).encode())
    except (OSError, TypeError):  # typed at a prompt: the compiled code is all that there is
        return _sha(_compiled(thing))


def _compiled(thing: Any) -> bytes:
    """What tells one definition from another without its source."""
    if isinstance(thing, type):
        return b"".join(_compiled(own) for own in vars(thing).values() if inspect.isfunction(own))
    code = getattr(thing, "__code__", None)
    if code is None:
        return repr(type(thing)).encode()
    constants = pickle.dumps([c for c in code.co_consts if isinstance(c, int | float | str)])
    return bytes(code.co_code) + constants


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
