"""What a test starts, by the marks that it then carries: ``ray``, ``slurm`` and ``process``.

Seen is what this process starts; whether a command of its own starts Ray, its words tell.
"""

import multiprocessing.process
import os
import re
import subprocess
from typing import Any

BY_FIXTURE = {"template": "process", **dict.fromkeys(("bundles", "nodes", "both_runtimes"), "ray")}
"""The mark of every test that has this fixture."""
ALSO = {"ray": "process", "slurm": "process"}
"""The second is true of all that the first is."""
RAY = re.compile(
    r"gcs_server|private_ray\(|ray\.init\(|onefold (run|sweep|study)\b"
    r"|-m (tests\.undrawn )?(cluster\.(launch|study)|tune\.sweep)\b"
)
NO_RAY = re.compile(r"runtime[= ]inprocess|--(dry-run|smoke|help|help-all|version)\b")
PYTHON = re.compile(
    r"(\S*/)?((python[\d.]*|onefold)( |$)|(ba)?sh .*\b(python|onefold)\b)", re.DOTALL
)

started: set[str] = set()
"""Marks of what was started since this was cleared."""


def marks_of(command: Any) -> set[str]:
    """The marks of what the command starts, as subprocess takes it."""
    single = isinstance(command, str | bytes | os.PathLike)
    words = " ".join(os.fsdecode(word) for word in ([command] if single else command))
    found = {"process"} if PYTHON.match(words) else set()
    if RAY.search(words) and not NO_RAY.search(words):
        found |= {"ray", "process"}
    return found | {"slurm", "process"} if "slurmctld" in words else found


def watch() -> None:
    """From now on this process's ``started`` is kept."""
    popen, start = subprocess.Popen.__init__, multiprocessing.process.BaseProcess.start

    def opened(self: Any, args: Any, *more: Any, **named: Any) -> None:
        started.update(marks_of(args))
        popen(self, args, *more, **named)

    def begun(self: Any) -> None:
        started.add("process")
        start(self)

    subprocess.Popen.__init__ = opened  # type: ignore[method-assign]
    multiprocessing.process.BaseProcess.start = begun  # type: ignore[method-assign]
    os.register_at_fork(before=lambda: started.add("process"))
