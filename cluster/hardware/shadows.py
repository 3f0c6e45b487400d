"""Files of the user's with the names of Onefold's packages, and how other processes pass them by.

Python and Ray look for modules in the present folder first, and in the script's. A ``cluster.py``
there would be imported in place of our ``cluster``.
"""

import os
import sys
import sysconfig
from pathlib import Path

from cluster.hardware.ray_internals import path_of_workers
from fl import PACKAGES
from fl.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
"""The folder that they are in."""


def shadows() -> list[Path]:
    """The user's files that Ray's processes would find in place of Onefold's packages."""
    folders = {Path.cwd().resolve(), Path(sys.argv[0]).resolve().parent} - {ROOT}
    return [
        file
        for folder in sorted(folders)
        for name in PACKAGES
        for file in (folder / f"{name}.py", folder / name / "__init__.py")
        if file.is_file()
    ]


def first_for_workers() -> str | None:
    """The folder that is to come first where Ray's workers look for modules; None for no other.

    Installed packages come before the user's files there, so it is given only where it must be.
    """
    return str(ROOT) if shadows() else None


def refuse_shadows() -> None:
    """For a Ray cluster that this process is in already, in which it is settled where workers look:
    raises `UserError` for a file that they would import as one of Onefold's packages."""
    path = path_of_workers()
    if path is None or path[-1:] == [str(ROOT)]:  # none yet, or one of ours
        return
    for file in shadows():
        raise UserError(
            f"{file} has the name of a package of Onefold's, and the processes of the Ray that "
            "this one has started would find it first: let Onefold start Ray, rename the file, or "
            "use --runtime inprocess"
        )


def python(module: str) -> list[str]:
    """The command that runs a module of ours with this Python, wherever it starts.

    Its environment must be :func:`environment`, in a checkout that is not installed.
    """
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's environment, in which Python also finds a checkout that is not installed."""
    before = os.environ.get("PYTHONPATH")
    if str(ROOT) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)  # found anyway; and in front it would hide Python's own modules
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), before]))}
