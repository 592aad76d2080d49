"""Prints how many devices of a platform JAX finds, and their kind.

    python tests-integration/tools/devices.py tpu

The output is `found 4:` and the kind, or `found 0:` and the reason; then the exit code
is 3.
"""

from __future__ import annotations

import sys

import jax

NONE_FOUND = 3


def main(platform: str) -> int:
    """Print the number and the kind; return the exit code."""
    try:
        devices = jax.devices(platform)
    except RuntimeError as error:
        print("found 0:", " ".join(str(error).split()))
        return NONE_FOUND
    print(f"found {len(devices)}:", devices[0].device_kind)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
