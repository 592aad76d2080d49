"""Memory of batches: what is freed is there for the next ones."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from textwrap import dedent

import pytest

STREAM = "device_stream(batch_of, 0, 120, prefetch=4, workers=0)"
LOADER = (
    "Dataloader(SimpleDataset(range(120)), 1, prefetch=4, workers=0, "
    "collate=lambda items: batch_of(items[0]), "
    "sharding=SingleDeviceSharding(jax.devices()[0]))"
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap is meant")
@pytest.mark.parametrize("batches", [STREAM, LOADER])
def test_large_batches_use_the_memory_of_those_before(batches: str) -> None:
    script = f"""
        from resource import RUSAGE_SELF, getrusage

        import jax
        import numpy as np
        from jax.sharding import SingleDeviceSharding
        from roxxel_loader import Dataloader, SimpleDataset, device_stream

        def batch_of(step):
            return np.full((1, 3 << 19), step, np.int32)

        faults = []
        for batch in {batches}:
            faults.append(getrusage(RUSAGE_SELF).ru_minflt)
        print((faults[-1] - faults[19]) / 100)
    """
    ran = subprocess.run(
        [sys.executable, "-c", dedent(script)],
        check=True,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")},
    )

    # Of 1536 pages, or where pages are large, of two such and the rest.
    assert float(ran.stdout) < 25
