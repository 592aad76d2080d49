"""Computes the rows of a step from a declaration, its sources and a resumed state."""
