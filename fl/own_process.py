"""What a command's own process needs of its environment, whatever that says."""

import os
import sys
from io import TextIOWrapper


def prepare_process() -> None:
    """Lets no variable stop a command when it prints or draws; before matplotlib is imported."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # some terminals' encodings lack our characters
    os.environ["MPLBACKEND"] = "agg"  # pictures are files
    os.environ.pop("SOURCE_DATE_EPOCH", None)  # none has a date, and matplotlib reads it even so
