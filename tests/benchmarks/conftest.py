"""The benchmarks' own folder, from which they import each other as scripts do."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
