"""Checks of this machine: what it has, and whether what a run depends on works here."""
