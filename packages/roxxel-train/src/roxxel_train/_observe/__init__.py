"""Measure a run: losses, rates, use of devices, and the memory and disk it needs."""
