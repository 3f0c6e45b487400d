"""A run in one step per client and one batch at the server, and what the whole would take."""
