"""Imports Onefold's own packages before a file of the user's can take the place of one.

Their names are common words. A script's folder comes first where Python looks for modules, so a
``cluster.py`` beside the script would be found instead.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from_here = str(Path(__file__).parents[1])


def reserve(spec: ModuleSpec) -> None:
    """Gives the name to our package, whose code runs when it is first used."""
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


sys.path.insert(0, from_here)
try:
    for name in ("cluster", "fl", "kernels", "slurm", "tune"):
        found = importlib.util.find_spec(name)
        if found is None or not Path(str(found.origin)).is_relative_to(from_here):
            origin = found.origin if found else "nowhere"
            raise ImportError(
                f"import onefold before your own module {name} ({origin}), or name it "
                "otherwise: Onefold has a package of that name"
            )
        if name == "kernels" and name not in sys.modules:
            reserve(found)  # it loads torch, which takes seconds
        else:
            importlib.import_module(name)  # cluster has to come before torch, see there
finally:
    sys.path.remove(from_here)
