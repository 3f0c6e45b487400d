"""Slurm: a run, or many, as jobs of their own."""
