"""Eight devices on one CPU, for every test of this package."""

import os

# Read when JAX first looks for devices, so it must be set before any test runs.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
