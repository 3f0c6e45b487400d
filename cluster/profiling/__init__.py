"""Measures what a client needs of the machine, on one real step of its training."""
