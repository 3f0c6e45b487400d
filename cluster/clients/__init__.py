"""Clients as Ray actors: their processes, memory caps, retries, and the store of their updates."""
