"""One file per architecture, each with its entry in the registry at its end."""
