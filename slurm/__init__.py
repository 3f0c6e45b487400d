"""Submits runs as Slurm jobs, one or many, and follows them."""
