"""One run: from the command line to a finished run directory."""
