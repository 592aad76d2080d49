"""Measurements of a run: losses, rates, the devices, and its needs before the start."""
