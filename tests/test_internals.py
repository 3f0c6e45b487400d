"""What a library does not promise to keep is used in one file, which a test holds to its word."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import PACKAGES, ROOT

FILES = {
    "torch": ("fl/torch_internals.py",),
    "ray": ("cluster/hardware/ray_internals.py",),
    "ray.tune": ("tune/tune_internals.py",),
    "submitit": ("slurm/submitit_internals.py",),
    "tyro": ("fl/command.py",),
}
"""The only files that may use a library's internals. Beside the mirror of each is its test."""
ALLOWED = {file for files in FILES.values() for file in files}
FOREIGN = {name.partition(".")[0] for name in FILES}

UNMARKED = {
    "GPU_group": "ray",
    "RAY_AUTH": "ray",
    "auth_token": "ray",
    "ray.scripts": "ray",
    "ray_current_cluster": "ray",
    "checkpoint_manager": "ray.tune",
    "latest_checkpoint_result": "ray.tune",
    "experiment_fs_path": "ray.tune",
    "submitit.core": "submitit",
    "USR_SIG": "submitit",
}
"""Internals whose names have no underscore in front, and whose they are."""
PUBLIC = {"_exit", "_asdict", "_fields", "_make", "_replace"}
"""Of the standard library, with an underscore all the same."""


def sources() -> list[Path]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in files if path.relative_to(ROOT).as_posix() not in ALLOWED)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def internals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Whatever is another's and has an underscore in front: its line, and how it is written.

    Of whose class an object is a file says nothing, so nobody's private attributes may be used but
    one's own; nor may private arguments be given, or private names be imported from a library.
    """
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if is_own else [node.attr]
        elif isinstance(node, ast.Call):
            names = [k.arg for k in node.keywords if k.arg]
        elif isinstance(node, ast.Import):
            names = [part for a in node.names for part in imported(a.name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [part for a in node.names for part in imported(f"{node.module}.{a.name}")]
        if any(is_private(name) for name in names):
            yield node.lineno, ast.unparse(node)


def imported(path: str) -> list[str]:
    parts = path.split(".")
    return parts if parts[0] in FOREIGN else []


def test_only_the_named_files_use_internals() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {code}"
        for path in sources()
        for line, code in internals(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", UNMARKED)
def test_only_the_named_files_use_internals_without_an_underscore(name: str) -> None:
    users = {path.relative_to(ROOT).as_posix() for path in sources() if name in path.read_text()}
    assert not users, f"{name} belongs in {FILES[UNMARKED[name]]}"


@pytest.mark.parametrize("file", sorted(ALLOWED))
def test_each_of_them_has_a_test_that_names_the_version(file: str) -> None:
    path = Path(file)
    mirror = ROOT / "tests" / path.parent / f"test_{path.name}"
    assert "TESTED_WITH" in (ROOT / file).read_text()
    assert "TESTED_WITH" in mirror.read_text()


@pytest.mark.parametrize(
    "code",
    [
        "torch._fused_adam_(x)",
        "torch.ops.mkldnn._linear_pointwise(x)",
        "layer._parameters",
        "self.group._ranks",
        "ray.init(_memory=1)",
        "from torch.nn.modules.dropout import _DropoutNd",
        "from tyro._errors import on_parse_error",
        "import ray._private.worker",
    ],
)
def test_an_internal_is_found(code: str) -> None:
    assert [*internals(ast.parse(code))]


@pytest.mark.parametrize(
    "code", ["self._layers[0]", "os._exit(1)", "model.__dict__", "from fl.data import _digits"]
)
def test_what_is_ones_own_is_none(code: str) -> None:
    assert not [*internals(ast.parse(code))]
