"""Programs in an environment that lacks packages which are installed here."""

import os
from pathlib import Path

LACKING = ("ray", "submitit", "pydantic", "tensorboardX")
"""What a GPU machine without network may lack, of all that Onefold can use."""

SITE = f"""
import importlib.metadata, sys

LACKING = {LACKING}
version = importlib.metadata.version


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


def found(name):
    if name in LACKING:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)


sys.meta_path.insert(0, Missing())
importlib.metadata.version = found
"""


def environment(folder: Path) -> dict[str, str]:
    """A process's environment in which Python finds none of them; ``folder`` is filled for it."""
    root = Path(__file__).parents[1]
    (folder / "sitecustomize.py").write_text(SITE)
    return {**os.environ, "PYTHONPATH": f"{folder}:{root}", "OMP_NUM_THREADS": "1"}
