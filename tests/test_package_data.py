"""An installed Onefold has all its files: what is not Python is named in pyproject.toml."""

import subprocess
import tomllib
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
TOP = ("cluster", "fl", "kernels", "onefold", "slurm", "tune")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *TOP], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]


def test_every_file_that_is_not_python_is_packed() -> None:
    packed = {
        file.relative_to(ROOT)
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for file in (ROOT / package).glob(pattern)
    }
    others = {file for file in tracked() if file.suffix != ".py"}
    assert Path("fl/data/digits.npz") in others
    assert others == packed


def test_every_folder_with_python_is_a_package() -> None:
    include = SETUPTOOLS["packages"]["find"]["include"]
    packages = {Path(*name.split(".")) for name in find_packages(str(ROOT), include=tuple(include))}
    assert {file.parent for file in tracked() if file.suffix == ".py"} == packages
