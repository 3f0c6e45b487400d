"""A user's module by path or by name, and what can be wrong with it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl.errors import UserError
from fl.models.registry import MODELS
from fl.plugins import PREFIX, load_plugin
from tests.registries import registries_restored

MODEL = """
from torch import nn
from fl.models.registry import register_model
class Net(nn.Module): pass
register_model("mine", Net)
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    with registries_restored():
        yield
    for name in set(sys.modules) - before:
        if name.startswith((PREFIX, "plugged")):
            del sys.modules[name]


def test_a_file_registers_and_hides_no_other_module(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(MODEL)
    module = load_plugin("json.py")
    assert "mine" in MODELS
    assert load_plugin("json.py") is module  # once
    assert sys.modules["json"] is not module


def test_a_module_of_the_present_folder_and_a_name_in_it(tmp_path: Path) -> None:
    (tmp_path / "plugged.py").write_text("from torch import nn\nclass Net(nn.Module): pass\nx = 3")
    load_plugin("plugged:Net")
    assert "Net" in MODELS
    with pytest.raises(UserError, match="x is a int; expected a Method or a model's class"):
        load_plugin("plugged:x")
    with pytest.raises(UserError, match="y is nothing"):
        load_plugin("plugged:y")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\n1 / 0\n", r"fails in line 2 of .*bad\.py: ZeroDivisionError: division by zero"),
        ("def (\n", "SyntaxError"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "from fl.models.registry import register_model\nregister_model('vgg9', print)\n",
            "plugin bad.py: model vgg9 comes with Onefold",
        ),
    ],
)
def test_a_plugin_that_fails_is_one_line_with_the_place(
    tmp_path: Path, source: str, line: str
) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(UserError, match=line) as caught:
        load_plugin("bad.py")
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"plugin none\.py: there is no such file"):
        load_plugin("none.py")
    with pytest.raises(UserError, match=r"there is no module nothing; a file ends in \.py"):
        load_plugin("nothing")


def test_a_plugin_imports_the_file_beside_it_then_and_later(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "plugged_helper.py").write_text("value = 3")
    (tmp_path / "away" / "plugged_later.py").write_text("value = 4")
    (tmp_path / "plugged_helper.py").write_text("value = 'of the present folder'")
    later = "def later():\n    import plugged_later\n    return plugged_later.value"
    (tmp_path / "away" / "mine.py").write_text(f"from plugged_helper import value\n{later}")
    sys.path.insert(0, "")
    module = load_plugin("away/mine.py")
    assert (module.value, module.later()) == (3, 4)
    assert sys.path[-1] == str(tmp_path / "away")  # no module of ours is looked for there first
