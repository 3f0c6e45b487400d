"""Classifiers and generators, built by name (:mod:`fl.models.registry`)."""
