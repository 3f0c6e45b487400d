"""The digest of what users write tells another version from the same one."""

import copy
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fl.sources import code_of, defined, home, is_users, key_of

SCRIPT = """
import functools, types
import numpy as np, torch
from dataclasses import dataclass

LR, LIMITS = 0.1, {'b', 'a', 'c'}
TABLE, WEIGHT = np.arange(6.0), torch.ones(2, dtype=torch.bfloat16)
OPTIONS = types.SimpleNamespace(drop=0.5)
UNUSED = 3

class Bag(list):
    def pick(self):
        return self[0]

BAG = Bag([7])

def helper(x):
    return BAG.pick() * LR if x not in LIMITS else around(x)

def around(x, depth=2):
    return helper(x) if depth else [OPTIONS.drop for _ in TABLE] + [WEIGHT]

def make(factor):
    return lambda x: factor * x

class Base:
    scale = 1.0

class Task(Base):
    def __init__(self, factor):
        self.factor = factor

    @staticmethod
    def add(x):
        return x + 1

    def __call__(self, given):
        return self.add(helper(given)) * self.factor

thing = (functools.partial(helper, x=1), make(2), Task(3), Task(4).__call__, Task)
"""


def digest(source: str) -> str:
    """Of what the source defines as ``thing``."""
    names: dict[str, object] = {"__name__": "the_users"}
    exec(compile(source, "<cell>", "exec"), names)
    code = code_of(names["thing"])
    assert not code.unknown
    return code.digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMITS = 0.1", "LIMITS = 0.2"),
        ("'c'}", "'d'}"),
        ("np.arange(6.0)", "np.arange(1.0, 7.0)"),
        ("ones(2,", "zeros(2,"),
        ("drop=0.5", "drop=0.6"),
        ("pick() * LR", "pick() + LR"),
        ("self[0]", "self[1]"),
        ("Bag([7])", "Bag([8])"),
        ("depth=2", "depth=3"),
        ("make(2)", "make(5)"),
        ("x=1", "x=2"),
        ("scale = 1.0", "scale = 2.0"),
        ("x + 1", "x + 2"),
        ("Task(3)", "Task(5)"),
        ("Task(4)", "Task(5)"),
        ("factor * x", "x * factor"),
    ],
)
def test_any_value_that_the_code_names_makes_it_another(old: str, new: str) -> None:
    assert SCRIPT.count(old) == 1
    assert digest(SCRIPT.replace(old, new)) != digest(SCRIPT)


def test_other_lines_of_the_file_and_comments_do_not() -> None:
    edited = "# A comment.\n" + SCRIPT.replace("UNUSED = 3", "UNUSED = 4\nFURTHER = 5")
    assert digest(edited) == digest(SCRIPT)


@pytest.mark.process
def test_it_is_the_same_in_every_process() -> None:
    """Though strings in a set come in another order there."""
    here = "from tests.fl.test_sources import SCRIPT, digest; print(digest(SCRIPT))"
    root = Path(__file__).parents[2]
    found = subprocess.check_output([sys.executable, "-c", here], text=True, cwd=root)
    assert found.strip() == digest(SCRIPT)


def test_values_of_a_module_of_the_users_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings_of_mine.py").write_text("LR = 0.1\nOTHER = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = "import settings_of_mine as s\ndef thing(x):\n    return x * s.LR\n"
    before = digest(source)
    module = sys.modules["settings_of_mine"]
    monkeypatch.setattr(module, "OTHER", 2)
    assert digest(source) == before
    monkeypatch.setattr(module, "LR", 0.2)
    assert digest(source) != before


def test_what_cannot_be_read_is_never_the_same(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def thing() -> object:
        return lock

    with caplog.at_level(logging.WARNING):
        assert key_of([thing], "uploads of thing") != key_of([thing], "uploads of thing")
    assert "uploads of thing are not reused" in caplog.text
    assert "lock" in caplog.text
    assert key_of([len], "uploads") == key_of([len], "uploads")


@pytest.mark.parametrize(
    "line",
    [
        *("os.environ['LR']", "os.getenv('LR')", "sys.argv[1]", "open('lr').read()"),
        *("globals()['x']", "getattr(os, 'name')", "np.load('lr.npy')", "path.read_text()"),
    ],
)
def test_what_is_read_from_outside_is_unknown(line: str) -> None:
    names: dict[str, object] = {"__name__": "the_users"}
    exec(f"import os, sys\ndef thing():\n    return {line}\n", names)
    assert code_of(names["thing"]).unknown


def test_a_module_that_is_imported_late_is_unknown() -> None:
    names: dict[str, object] = {"__name__": "the_users"}
    exec("def thing(x):\n    import late_one, sklearn\n    return late_one.f(x)\n", names)
    assert code_of(names["thing"]).unknown == ("import of late_one",)


WRAPPERS = """
import contextlib
import functools
import torch
import torch.nn.functional as F
from numpy import exp

class Times:
    __unit__ = 1.0

    def __init__(self, function, factor):
        functools.update_wrapper(self, function)
        self.factor = factor

    def __call__(self, x):
        return self.factor * x

FACTOR = 2
times = Times(len, 3)

@functools.wraps(F.cross_entropy)
def wrapper(x):
    return FACTOR * x

def swapped(left, right):
    return left

@torch.no_grad()
@torch.autocast("cpu")
def quiet(x):
    return 7 * x

@functools.singledispatch
def by_kind(x):
    return 9 * x

@torch.set_grad_enabled(False)
def frozen(x: int | None):
    return exp(x)

@contextlib.contextmanager
def scaled(x):
    yield 11 * x

learned = torch.nn.Parameter(torch.ones(2), requires_grad=True)
mapped = torch.vmap(lambda x: 13 * x)

def thing(x):
    with scaled(x) as y:
        x = mapped(y + learned)
    found = times(x) + wrapper(x) + swapped(left=x, right=0) + quiet(x) + by_kind(x)
    return found + frozen(x)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("len, 3", "len, 4"),
        ("FACTOR = 2", "FACTOR = 5"),
        ("left, right):", "right, left):"),
        ("7 * x", "8 * x"),
        ("9 * x", "8 * x"),
        ("11 * x", "8 * x"),
        ("13 * x", "8 * x"),
        ("requires_grad=True", "requires_grad=False"),
        ('autocast("cpu")', 'autocast("cpu", dtype=torch.float16)'),
        ('autocast("cpu")', 'autocast("cuda")'),
        ('autocast("cpu")', "set_grad_enabled(True)"),
        ("no_grad", "inference_mode"),
        ("set_grad_enabled(False)", "set_grad_enabled(True)"),
        ("__unit__ = 1.0", "__unit__ = 2.0"),
    ],
)
def test_what_wraps_a_function_is_not_taken_for_it(old: str, new: str) -> None:
    changed = WRAPPERS.replace(old, new)
    if "right, left" in new:
        changed = changed.replace("return left", "return right")
    assert digest(changed) != digest(WRAPPERS)
    assert digest(WRAPPERS) == digest(WRAPPERS)


def test_what_it_is_does_not_change_by_being_used() -> None:
    """Decorators keep caches, and classes those of how they are pickled."""
    names: dict[str, object] = {"__name__": "the_users"}
    exec(compile(WRAPPERS, "<cell>", "exec"), names)
    before = code_of(names["thing"])
    for name in ("by_kind", "quiet", "frozen"):
        names[name](3)  # type: ignore[operator]
    copy.copy(names["times"])
    assert code_of(names["thing"]) == before


def test_a_decorator_of_a_package_leaves_a_function_at_home() -> None:
    @torch.no_grad()
    def own() -> None:
        """A user's."""

    assert home(own) == __name__
    assert home(torch.no_grad()(F.relu)) == "torch.nn.functional"


def test_what_raises_is_unknown_as_endless_values_are() -> None:
    class Odd:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    assert code_of(Odd()).unknown
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert code_of(deep).unknown
    deep.clear()
    deep.append(deep)
    assert not code_of(deep).unknown


def test_who_defines_a_thing() -> None:
    names: dict[str, tuple[object, ...]] = {}
    exec(compile(SCRIPT, "<cell>", "exec"), names)  # type: ignore[arg-type]
    kinds = [defined(thing).__name__ for thing in names["thing"]]
    assert kinds == ["helper", "<lambda>", "Task", "__call__", "Task"]
    assert is_users("__main__")
    assert is_users("tests.fl.toy")
    assert not any(map(is_users, ("fl.sources", "json", "torch.nn", "torch._C", "numpy")))
