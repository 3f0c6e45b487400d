"""A Ray cluster of our own on this machine: private port, short temp root, gone afterwards."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHORT_TMP = Path("/tmp")
"""Ray's socket paths must stay under 107 bytes, which a long TMPDIR breaks."""


@contextlib.contextmanager
def private_ray(*, cpus: float, gpus: float) -> Iterator[None]:
    """Starts a cluster that nobody else can find, and ends exactly its own processes.

    Args:
        cpus: cores it may hand out.
        gpus: GPUs it may hand out.
    """
    # These must be set before ray is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    import ray

    root = tempfile.mkdtemp(prefix="onefold-", dir=SHORT_TMP if SHORT_TMP.is_dir() else None)
    try:
        ray.init(
            address="local",
            num_cpus=cpus,  # type: ignore[arg-type]
            num_gpus=gpus,  # type: ignore[arg-type]
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=root,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(root, ignore_errors=True)
