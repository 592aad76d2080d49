"""What the document about the loader claims.

| claim | test |
| --- | --- |
| The names of the programs come from `roxxel` | `test_programs_run_without_a_warning` |
| A list is a dataset, and a loader of batch size 2 gives its five pairs in order | `test_basic_program_prints_the_pairs` |
| A batch prints as a list | differs: `a-batch-is-an-array` |
| Any indexable data is a dataset | `packages/roxxel-loader/tests/test_datasets.py::test_every_dataset_keeps_the_protocol` |
| A mapped dataset and two workers give the batches in order | `test_prefetching_program_prints_the_doubles` |
| Transformations are lazy: an item is mapped when it is loaded | `packages/roxxel-loader/tests/test_datasets.py::test_map_is_lazy` |
| A function that is mapped may be jitted | `packages/roxxel-loader/tests/test_datasets.py::test_a_jitted_function_may_be_mapped` |
| Workers make batches while the loop does not ask for one | `packages/roxxel-loader/tests/test_prefetch.py::test_one_thread_makes_results_by_default`, `packages/roxxel-loader/tests/test_prefetch.py::test_no_more_is_made_ahead_than_was_said` |
| Workers and prefetching change no batch | `packages/roxxel-loader/tests/test_dataloader.py::test_workers_and_prefetch_change_no_batch` |
| Datasets are shuffled by a seed | `packages/roxxel-loader/tests/test_datasets.py::test_a_shuffle_is_a_permutation_that_the_seed_decides` |
| The preset makes a mesh of all devices with the axes of the program | `test_distributed_program_feeds_every_device` |
| Inside `with mesh:` a local batch becomes a global array over all devices | `test_distributed_program_feeds_every_device` |
| Each process loads its own share of every batch | `packages/roxxel-loader/tests/test_dataloader.py::test_processes_share_every_batch`, `tests-integration/test_loader_processes.py::test_local_batches_become_the_global_one` |
| A process reads what its devices hold and nothing else | `tests-integration/test_loader_processes.py::test_a_process_reads_the_bytes_of_its_devices` |
| Values go to the devices that need them, without a transfer between devices | `packages/roxxel-loader/tests/test_layout.py::test_every_value_is_read_once_and_is_where_the_sharding_says` |
| The order does not depend on the number of processes | `tests-integration/test_loader_processes.py::test_processes_make_the_batches_of_one` |
| A dataset whose size is unknown gives the same batches each time | `packages/roxxel-loader/tests/test_streaming.py::test_workers_and_prefetch_change_no_batch_of_a_stream` |
| Types flow from the dataset to the loop | `packages/roxxel-loader/tests/test_types.py::test_dicts_make_a_dict_of_arrays`, `packages/roxxel-loader/tests/test_types.py::test_a_batch_is_what_collate_returns` |
| Items of different shapes are found | `packages/roxxel-loader/tests/test_dataloader.py::test_ragged_items_are_named` |
| Planned: datasets that are streamed, larger than memory or disk | `packages/roxxel-loader/tests/test_streaming.py::test_an_endless_stream_can_be_broken_off`, `packages/roxxel-loader/tests/test_streaming.py::test_resuming_a_stream_at_any_step_gives_the_tail` |
| Planned: `PolarsDataset` | `packages/roxxel-loader/tests/test_extras.py::test_polars_frames_are_datasets` |
| Planned: `SQLiteDataset` | `packages/roxxel-loader/tests/test_sqlite.py::test_rows_come_in_the_order_of_the_key` |
| Planned: device layouts that are not uniform | `packages/roxxel-loader/tests/test_sharding.py::test_a_mesh_may_hold_some_of_the_devices` |
| Planned: caching | `packages/roxxel-loader/tests/test_datasets.py::test_a_cache_makes_each_item_once` |
| `pip` installs the library | `tests-integration/test_registry_pages.py::test_the_readme_installs_from_the_checkout_with_all_members_needed` |
"""  # noqa: E501 - a row of the table is one line

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import run_python

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

BASIC = """
from roxxel import Dataloader, SimpleDataset

# Create a dataset from any indexable data
dataset = SimpleDataset([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
loader = Dataloader(dataset, batch_size=2)

# Iterate through batches
for batch in loader:
    print(batch)
# Output: [1, 2], [3, 4], [5, 6], [7, 8], [9, 10]
"""

PREFETCHING = """
from roxxel import Dataloader, SimpleDataset, MappedDataset
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

# The program leaves these names to its reader.
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

DISTRIBUTED = """
from roxxel import Dataloader, SimpleDataset
from roxxel.sharding.placement import host_to_global_device_array
from roxxel.sharding.presets import make_fsdp_sharding_config
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

RESULT = """
print(dict(mesh.shape), loss, seen == list(range(128)))
"""

PROGRAM = BASIC + PREFETCHING + TRAINING + DISTRIBUTED + RESULT


@pytest.fixture(scope="module", params=[1, 8], ids=lambda count: f"devices-{count}")
def ran(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    compilation_cache: Path,
) -> tuple[int, subprocess.CompletedProcess[str]]:
    """Run the programs on so many devices; a warning is an error."""
    # JAX warns of the program's own `with mesh:`.
    options = "-W", "ignore:`with mesh", "-c", PROGRAM
    folder = tmp_path_factory.mktemp("loadax")
    done = run_python(folder, compilation_cache, *options, devices=request.param)
    return request.param, done


Ran = tuple[int, "subprocess.CompletedProcess[str]"]


def test_programs_run_without_a_warning(ran: Ran) -> None:
    _, done = ran

    assert (done.returncode, done.stderr) == (0, "")


def test_basic_program_prints_the_pairs(ran: Ran) -> None:
    lines = ran[1].stdout.splitlines()

    assert lines[:5] == ["[1 2]", "[3 4]", "[5 6]", "[7 8]", "[ 9 10]"]


def test_prefetching_program_prints_the_doubles(ran: Ran) -> None:
    lines = ran[1].stdout.splitlines()

    assert lines[5:10] == ["[0 2]", "[4 6]", "[ 8 10]", "[12 14]", "[16 18]"]


def test_distributed_program_feeds_every_device(ran: Ran) -> None:
    devices, done = ran

    assert done.stdout.splitlines()[10:] == [
        f"{{'data': {devices}, 'model': 1}} {sum(range(120, 128))} True"
    ]
