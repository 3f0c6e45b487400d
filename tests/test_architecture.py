"""The rules that no single module can hold: imports run one way, and never round."""

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import quantiles

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [
    p for p in ("kernels", "fl", "cluster", "slurm", "tune", "onefold") if (ROOT / p).is_dir()
]
ENTRY_POINTS = {"cluster.launch", "cluster.suite", "cluster.study", "cluster.grid"}
FORBIDDEN = {
    "kernels": {"fl", "cluster", "slurm", "tune", "onefold", "ray", "submitit"},
    "fl": {"cluster", "slurm", "tune", "onefold", "ray", "submitit"},
    "cluster": {"slurm", "tune", "onefold", "submitit"},
    "slurm": {"tune", "onefold"},
    "tune": {"onefold"},
}
WINGS = ("scheduling", "hardware", "clients", "server", "profiling", "run", "studies")
"""Of ``cluster/``: each imports from those before it alone."""
KERNELS_MAY_IMPORT = set(sys.stdlib_module_names) | {"torch", "triton", "kernels"}


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(path: Path, *, at_import_time: bool = False) -> set[str]:
    """Names that a file imports; with at_import_time only those outside functions."""
    names: set[str] = set()
    known = modules().keys()

    def visit(node: ast.AST) -> None:
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if isinstance(node, ast.Import):
            names.update(a.name for a in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import"
            below = {f"{node.module}.{a.name}" for a in node.names}
            # What is taken from a package may be a module of it, or something it defines.
            names.update(below & known or {node.module})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package: str) -> None:
    for name, path in modules().items():
        if name.split(".")[0] != package:
            continue
        forbidden = FORBIDDEN.get(package, set())
        if name in ENTRY_POINTS:
            forbidden = forbidden - {"slurm"}
        wrong = {i for i in imports(path) if i.split(".")[0] in forbidden}
        assert not wrong, f"{name} imports {wrong}"


def test_kernels_import_only_torch_and_triton() -> None:
    for name, path in modules().items():
        if name.split(".")[0] == "kernels":
            others = {i for i in imports(path) if i.split(".")[0] not in KERNELS_MAY_IMPORT}
            assert not others, f"{name} imports {others}"


def test_no_arrow_between_wings_runs_backwards() -> None:
    found = {p.parent.name for p in (ROOT / "cluster").glob("*/__init__.py")}
    assert found == {*WINGS} - {"profiling"}  # a module
    for name, path in modules().items():
        package, *wing = name.split(".")[:2]
        if package != "cluster" or not set(wing) & set(WINGS):
            continue
        allowed = WINGS[: WINGS.index(wing[0]) + 1]
        inside = {i for i in imports(path) if i.startswith("cluster.")}
        wrong = {i for i in inside if i.split(".")[1] not in allowed}
        assert not wrong, f"{name} imports {wrong}"


def refuse_circles(graph: dict[str, set[str]]) -> None:
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in finished:
            for below in graph[name]:
                visit(below, (*path, name))
            finished.add(name)

    for name in graph:
        visit(name, ())


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    refuse_circles(
        {
            n: {i for i in imports(p, at_import_time=True) if i in known and i != n}
            for n, p in known.items()
        }
    )


def test_no_packages_import_each_other_in_a_circle() -> None:
    """Wherever in a module an import stands. A module that is in no package below is its own."""
    known = modules()
    folders = {n for n, p in known.items() if p.name == "__init__.py" and n.count(".") < 2}

    def package(name: str) -> str:
        return max((f for f in folders if f"{name}.".startswith(f"{f}.")), key=len)

    def unit(name: str) -> str:
        return name if package(name) in PACKAGES else package(name)

    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        below = {unit(i) for i in imports(path) if i in known}
        graph.setdefault(unit(name), set()).update(below - {unit(name)})
    commands = graph.keys() & {*ENTRY_POINTS, "tune.sweep"}
    refuse_circles({n: below for n, below in graph.items() if n not in commands})


def test_the_science_knows_of_no_scheduler() -> None:
    for name, path in modules().items():
        if name.split(".")[0] in ("fl", "kernels"):
            assert "SLURM" not in path.read_text(), f"{name} knows of Slurm"


def test_what_makes_a_module_a_program_comes_last() -> None:
    """What is defined below it is not there when it runs."""
    for name, path in modules().items():
        *above, _last = ast.parse(path.read_text()).body or [None]
        programs = [
            node
            for node in above
            if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        ]
        assert not programs, f"{name} defines something after its program"


def test_files_and_functions_stay_small() -> None:
    lengths = []
    for name, path in modules().items():
        assert path.read_text().count("\n") <= 550, f"{name} has grown past one subject"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
    assert quantiles(lengths, n=20)[-1] < 30


SUBJECTS = [
    path.relative_to(ROOT)
    for package in (*PACKAGES, "benchmarks")
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.name.startswith("__") and path.read_text().count("\n") > 60
]


@pytest.mark.parametrize("path", SUBJECTS, ids=str)
def test_the_tests_of_a_package_name_what_its_modules_offer(path: Path) -> None:
    offered = {
        node.name
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    offered |= {path.stem}
    offered |= {name.replace("_", "-") for name in offered}  # a model's or a method's name
    tests = (ROOT / "tests" / path.parent).rglob("test_*.py")
    assert any(
        re.search(rf"\b{name}\b", f"{f.stem[5:]} {f.read_text()}")
        for f in tests
        for name in offered
    )


WATCHED = """
import os, sys
from pathlib import Path

from cluster.launch import main
from fl.clients import Clients

root, files, train = Path(sys.argv[1]), set(), Clients.train

def watch(frame, event, argument):
    if event == "call":
        files.add(frame.f_code.co_filename)

def watched(clients, **options):
    sys.setprofile(watch)
    train(clients, **options)
    sys.setprofile(None)
    for file in map(Path, files):
        if file.is_relative_to(root) and ".venv" not in file.parts:
            print("entered", file.relative_to(root).as_posix(), file=sys.__stdout__, flush=True)
    os._exit(0)  # the rest of the run is none of an upload's way

Clients.train = watched
sys.exit(f"it ended with {main(sys.argv[2:])} before its client trained")
"""


@pytest.mark.process
def test_an_uploads_way_is_as_the_page_says(tmp_path: Path) -> None:
    options = "--method=fedavg --num-clients=1 --classifier.model=cnn --classifier.epochs=1"
    options += " --data.max-train=60 --data.max-test=20"
    command = [sys.executable, "-c", WATCHED, str(ROOT), *options.split(), "--runtime=inprocess"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    entered = re.findall(r"^entered (.*)$", ran.stdout, re.MULTILINE)
    page = (ROOT / "docs/design/architecture.md").read_text()
    table = page.partition("## One upload's way")[2].partition("\nOn Ray ")[0]
    told = re.findall(r"`([a-z_/]+[.]py)`", table)
    assert sorted(told) == sorted(entered)  # each once


def test_nothing_but_the_house_is_kept() -> None:
    """A trial's runs once got in, by ``git add -A``."""
    git = shutil.which("git")
    ran = git and subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if not ran or ran.returncode:
        pytest.skip("no git, or no checkout of it")
    folders = {name.partition("/")[0] for name in ran.stdout.splitlines() if "/" in name}
    assert folders == {*PACKAGES, "benchmarks", "docs", "examples", "tests", ".ci"}
