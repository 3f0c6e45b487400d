"""Whether Triton's interpreter is on, which runs kernels on the CPU."""

import os


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
