"""The three programs of the document that describes the loader, imports apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BASIC = """
from roxxel_loader import Dataloader, SimpleDataset

# Create a dataset from any indexable data
dataset = SimpleDataset([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
loader = Dataloader(dataset, batch_size=2)

# Iterate through batches
for batch in loader:
    print(batch)
"""

PREFETCHING = """
from roxxel_loader import Dataloader, SimpleDataset, MappedDataset
import time

def slow_preprocessing(x):
    time.sleep(0.1)  # Simulate expensive preprocessing
    return x * 2

# Chain transformations lazily
dataset = MappedDataset(SimpleDataset(list(range(10))), slow_preprocessing)

# Use multiple workers and prefetching to hide latency
loader = Dataloader(dataset, batch_size=2, workers=2, prefetch=3)

for batch in loader:
    # Data is ready immediately - preprocessing happened in background
    print(batch)
"""

DISTRIBUTED = """
from roxxel_loader import Dataloader, SimpleDataset
from roxxel_loader.sharding.placement import host_to_global_device_array
from roxxel_loader.sharding.presets import make_fsdp_sharding_config
import jax.numpy as jnp

# Create mesh for distributed training
config = make_fsdp_sharding_config(
    axis_names=("data", "model"),
    batch_axis_name="data"
)
mesh = config.create_device_mesh()

# Loadax automatically shards data across hosts
dataset = SimpleDataset(list(range(128)))
dataloader = Dataloader(dataset, batch_size=8, workers=2, prefetch=2)

with mesh:
    for local_batch in dataloader:
        # Convert host-local batch to globally sharded array
        # No data movement needed - loadax ensures correct placement
        global_batch = host_to_global_device_array(local_batch)

        # Use in your distributed training step
        loss = train_step(model, optimizer, global_batch)
"""

TRAINING = """
import jax

model = optimizer = None
seen = []

@jax.jit
def total(batch):
    return batch.sum()

def train_step(model, optimizer, batch):
    assert len(batch.sharding.device_set) == len(jax.devices())
    seen.extend(batch.tolist())
    return total(batch)
"""


def run(program: str, num_devices: int) -> list[str]:
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    # JAX's own warning at `with mesh:` belongs to the program's line.
    known = "ignore:`with mesh"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", known, "-c", program],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("num_devices", [1, 8])
def test_the_programs_of_the_document_run(num_devices: int) -> None:
    check = "print(loss, seen == list(range(128)))"

    printed = run(BASIC + PREFETCHING + TRAINING + DISTRIBUTED + check, num_devices)

    assert printed == [
        *["[1 2]", "[3 4]", "[5 6]", "[7 8]", "[ 9 10]"],
        *["[0 2]", "[4 6]", "[ 8 10]", "[12 14]", "[16 18]"],
        "988 True",
    ]


def test_importing_starts_nothing() -> None:
    program = """
import sys, threading
import roxxel_loader
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
assert threading.active_count() == 1
for heavy in ("polars", "pyarrow", "datasets", "sqlite3"):
    assert heavy not in sys.modules, heavy
"""
    assert run(program, 1) == []
