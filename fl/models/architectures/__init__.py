"""A file for each kind of architecture, with its entries in the registry at its end."""
