"""What users bring, as a digest of its code: nothing of other code may be taken for its."""

import hashlib
import logging
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from copyreg import dispatch_table
from dis import get_instructions
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from inspect import ismethod
from itertools import chain
from pathlib import Path
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
import torch

from fl import PACKAGES

GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
"""Instructions that read a name that is no local one."""
OUTSIDE = {
    *("environ", "getenv", "argv", "globals", "eval", "exec", "import_module", "getattr"),
    *("open", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "imread", "load_file"),
    *("read_text", "read_bytes", "read_csv", "read_parquet", "read_json", "read_pickle"),
    *("load_model", "load_checkpoint", "from_pretrained", "safe_open", "loadmat", "read_image"),
}
"""By these code reads what the code itself does not say."""
OF_PYTHON = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__"),
    *("__static_attributes__", "__classdictcell__", "__slotnames__", "_abc_impl"),
    *("__annotations__", "__annotations_cache__", "__annotate__", "__annotate_func__"),
}
"""Attributes of a class that Python makes: where it stands, its types, caches."""
CACHES = ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary
SIMPLE = int | float | complex | str | bytes | None

log = logging.getLogger(__name__)


class Code(NamedTuple):
    """What a user's function, class or object is."""

    digest: str
    """Of its code and of all that it names: see :func:`code_of`."""
    unknown: tuple[str, ...] = ()
    """What among these cannot be read: types of values, such as a lock, and names by which code
    reads files or the environment."""


def code_of(thing: object) -> Code:
    """The code of what users bring: its own, and all that it refers to.

    These are the values in its closure, its defaults, the arguments of a partial, the state of an
    object, and the globals that it names; with functions and classes among them likewise. Other
    lines of its file do not count. What Onefold or an installed package has is known by its name.
    """
    reader = _Reader()
    try:
        return Code(reader.of(thing).hex(), tuple(reader.unknown))
    except Exception:  # lists in lists in lists, or what a class of the user's raises
        return Code(type(thing).__qualname__, (type(thing).__qualname__,))


def key_of(things: Iterable[object], what: str) -> str:
    """A digest of their code, by which uploads are looked up.

    Where they refer to a value that cannot be read, it is another each time, and one line says that
    ``what`` is not reused: what cannot be known to be the same is not.
    """
    code = code_of(tuple(things))
    if not code.unknown:
        return code.digest
    _warn(what, ", ".join(sorted({*code.unknown})))
    return secrets.token_hex(32)


@cache  # a method may make a new function of the same code in every round
def _warn(what: str, unknown: str) -> None:
    log.warning(
        "%s are not reused by later runs: what they depend on is unknown (%s)", what, unknown
    )


def defined(thing: Any) -> Any:
    """What a definition gives: the function behind a partial or a method, or an object's class."""
    while isinstance(thing, partial):
        thing = thing.func
    thing = thing.__func__ if ismethod(thing) else thing
    return thing if isinstance(thing, FunctionType | type) else type(thing)


def home(thing: FunctionType | type) -> str:
    """The module that a function or class is written in. What a decorator of an installed package
    gives, such as torch's ``no_grad``, is at home where the function that it decorates is."""
    name, inner = _written_in(thing), getattr(thing, "__wrapped__", None)
    packaged = not is_users(name) and name.partition(".")[0] not in PACKAGES
    return home(inner) if packaged and isinstance(inner, FunctionType) else name


def _written_in(thing: FunctionType | type) -> str:
    """The module of its own code; `functools.wraps` names another."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    return str(thing.__module__)


def is_users(name: str) -> bool:
    """Whether neither Onefold, nor Python, nor an installed package has a module of this name."""
    top = name.partition(".")[0]
    if top in PACKAGES or top in sys.stdlib_module_names:
        return False
    module = sys.modules.get(top) or _spec(top)
    file = getattr(module, "__file__", None) or getattr(module, "origin", None)
    places = [file] if file else getattr(module, "__path__", ())
    return top == "__main__" or not any(_is_installed(Path(place)) for place in places)


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except (ImportError, ValueError):
        return None


def _is_installed(path: Path) -> bool:
    packages = {"site-packages", "dist-packages"}
    return bool(packages & {*path.parts}) or path.is_relative_to(sys.base_prefix)


class _Reader:
    """Reads values into digests."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._known: dict[int, bytes] = {}
        self._kept: list[object] = []
        """So that no two values have one address."""

    def of(self, value: object) -> bytes:
        """The digest of a value, with all that it refers to."""
        if isinstance(value, SIMPLE):
            return _joined([type(value).__qualname__.encode(), repr(value).encode()])
        if id(value) not in self._known:
            self._kept.append(value)
            self._known[id(value)] = b"a cycle"
            own = b"a class" if isinstance(value, type) else self.of(type(value))
            self._known[id(value)] = _joined(chain([own], self._parts(value)))
        return self._known[id(value)]

    def _parts(self, value: Any) -> Iterator[bytes]:
        match value:
            case CodeType():
                yield from (value.co_code, value.co_exceptiontable)
                names = (value.co_names, value.co_varnames, value.co_freevars)
                form = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
                yield from map(self.of, (*names, *form, value.co_flags, *value.co_consts))
            case FunctionType() | type() if not is_users(_written_in(value)):
                yield f"{value.__module__}.{value.__qualname__}".encode()
                yield from map(self.of, _held(value))
            case FunctionType():
                yield from self._function(value)
            case type():
                yield from map(self.of, value.__bases__)
                yield from self._items({k: v for k, v in vars(value).items() if _counts(k, v)})
            case ModuleType() | np.dtype():
                yield str(getattr(value, "__name__", value)).encode()
            case staticmethod() | classmethod():
                yield self.of(value.__func__)
            case property():
                yield from map(self.of, (value.fget, value.fset, value.fdel))
            case CellType():
                yield from map(self.of, _contents(value))
            case tuple() | list():
                yield from map(self.of, value)
            case set() | frozenset():
                yield from sorted(map(self.of, value))
            case dict() | MappingProxyType():
                yield from self._items(value)
            case torch.Tensor() | np.ndarray() if value.dtype != object:
                yield from self._array(value)
            case torch.autocast():  # once entered, it keeps what was set before
                settings = {k: v for k, v in vars(value).items() if not k.startswith("prev")}
                yield from self._items(settings)
            case _ if hasattr(value, "__wrapped__"):
                yield self.of(value.__wrapped__)
                yield self.of(getattr(value, "__dict__", None))
            case _:
                yield from self._object(value)

    def _function(self, function: FunctionType) -> Iterator[bytes]:
        own = function.__code__, function.__defaults__, function.__kwdefaults__, vars(function)
        yield from map(self.of, own)
        yield from map(self.of, function.__closure__ or ())
        codes = [*_codes(function.__code__)]
        steps = [step for code in codes for step in get_instructions(code)]
        names = {step.argval for step in steps if step.opname in GLOBALS}
        attributes = {name for code in codes for name in code.co_names}
        yield from self._named(function.__globals__, names, attributes)
        for name in sorted({step.argval for step in steps if step.opname == "IMPORT_NAME"}):
            if is_users(name):  # what it imports in turn is not followed
                self.unknown.append(f"import of {name}")
        self.unknown += sorted(OUTSIDE & attributes)

    def _named(
        self, namespace: Mapping[str, object], names: set[str], attributes: set[str]
    ) -> Iterator[bytes]:
        """Values of a namespace by name; of a user's module among them those of ``attributes``."""
        for name in sorted(names & namespace.keys()):
            value = namespace[name]
            yield from (name.encode(), self.of(value))
            if isinstance(value, ModuleType) and is_users(value.__name__):
                yield from self._named(vars(value), attributes, attributes - {name})

    def _items(self, mapping: Mapping[Any, object]) -> Iterator[bytes]:
        for key, value in mapping.items():
            yield from (self.of(key), self.of(value))

    def _array(self, value: Any) -> Iterator[bytes]:
        trains = getattr(value, "requires_grad", False)
        yield f"{value.dtype} {tuple(value.shape)} {trains}".encode()
        try:
            if isinstance(value, torch.Tensor):
                value = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            yield value.tobytes()
        except RuntimeError:  # a sparse one
            self.unknown.append(type(value).__qualname__)

    def _object(self, value: Any) -> Iterator[bytes]:
        """By how it is pickled: what makes it, from which arguments, and its state."""
        try:
            own = dispatch_table.get(type(value))
            reduced = own(value) if own else value.__reduce_ex__(2)
            further = [reduced] if isinstance(reduced, str) else [*reduced[:3]]
            further += [[*items] for items in reduced[3:5] if items is not None]
        except Exception:  # a lock, an open file
            self.unknown.append(type(value).__qualname__)
        else:
            yield self.of(further)


def _contents(cell: CellType) -> list[object]:
    return [cell.cell_contents] if cell != CellType() else []


def _held(function: object) -> list[object]:
    """What a function of an installed package was given: by a decorator's closure, or as default
    or attribute. Caches, which hold weak references, are none of it."""
    if not isinstance(function, FunctionType):
        return []
    cells = chain.from_iterable(map(_contents, function.__closure__ or ()))
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    every = (*cells, *defaults, *vars(function).values())
    return [own for own in every if not isinstance(getattr(own, "__self__", own), CACHES)]


def _joined(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} ".encode())
        digest.update(part)
    return digest.digest()


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _counts(name: str, value: object) -> bool:
    """Whether an attribute of a class is part of what it does: not what Python itself gives it."""
    written = isinstance(value, FunctionType | staticmethod | classmethod | property)
    return written or name not in OF_PYTHON
