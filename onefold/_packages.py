"""Imports Onefold's own packages before a file of the user's can take the place of one.

Their names are common words. A script's folder comes first where Python looks for modules, so a
``cluster.py`` beside the script would be found instead.
"""

import importlib
import sys
from pathlib import Path

from_here = str(Path(__file__).parents[1])
sys.path.insert(0, from_here)
try:
    for name in ("cluster", "fl", "kernels", "slurm", "tune"):
        found = importlib.import_module(name)
        if not Path(str(found.__file__)).is_relative_to(from_here):
            raise ImportError(
                f"import onefold before your own module {name} ({found.__file__}), or name it "
                "otherwise: Onefold has a package of that name"
            )
finally:
    sys.path.remove(from_here)
