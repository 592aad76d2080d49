"""Measure a run: losses, rates, the use of its devices, and slow processes."""
