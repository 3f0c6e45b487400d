"""Tests of the users' door."""
