"""Sweeps with Ray Tune that train no client twice."""
