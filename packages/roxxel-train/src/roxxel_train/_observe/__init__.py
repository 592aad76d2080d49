"""Measurements of a run: losses, rates, devices, and needs before the first step."""
