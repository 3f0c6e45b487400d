"""Imports Onefold's own packages before a file of the user's can take the place of one.

Their names are common words. A script's folder comes first where Python looks for modules, so a
``cluster.py`` beside the script would be found instead.
"""

import sys
from importlib import import_module
from importlib.util import LazyLoader, find_spec, module_from_spec
from pathlib import Path

from_here = str(Path(__file__).parents[1])
sys.path.insert(0, from_here)
try:
    for name in ("cluster", "fl", "kernels", "slurm", "tune"):
        found = find_spec(name)
        if found is None or not Path(str(found.origin)).is_relative_to(from_here):
            raise ImportError(
                f"import onefold before your own module {name} "
                f"({found.origin if found else 'nowhere'}), or name it otherwise: Onefold has a "
                "package of that name"
            )
        if name == "kernels" and name not in sys.modules:
            # It loads torch, which takes seconds: its code runs when it is first used.
            assert found.loader is not None
            found.loader = LazyLoader(found.loader)
            sys.modules[name] = module_from_spec(found)
            found.loader.exec_module(sys.modules[name])
        else:
            import_module(name)  # cluster has to come before torch, see there
finally:
    sys.path.remove(from_here)
