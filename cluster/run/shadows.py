"""Files of the user's that would take the place of Onefold's packages in other processes."""

import sys
from pathlib import Path

from cluster.clients.extensions import PACKAGES
from fl.errors import UserError


def refuse_shadows() -> None:
    """Ray's processes look in the script's and the present folder first.

    Raises:
        UserError: names a file there that they would import as one of Onefold's packages.
    """
    ours = Path(__file__).resolve().parents[2]
    for folder in {Path.cwd().resolve(), Path(sys.argv[0]).resolve().parent} - {ours}:
        for name in PACKAGES:
            for found in (folder / f"{name}.py", folder / name / "__init__.py"):
                if found.is_file():
                    raise UserError(
                        f"{found} has the name of a package of Onefold's, and Ray's processes "
                        "would find it first: rename it, or use --runtime inprocess"
                    )
