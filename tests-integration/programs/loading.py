"""The documents' three loading examples: same names and arguments."""

import time

import jax
import jax.numpy as jnp
from roxxel_loader import Dataloader, MappedDataset, SimpleDataset
from roxxel_loader.sharding.placement import host_to_global_device_array
from roxxel_loader.sharding.presets import make_fsdp_sharding_config

# 1. Any indexable data.
dataset = SimpleDataset([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
loader = Dataloader(dataset, batch_size=2)
for batch in loader:
    print("plain", batch)


# 2. Slow preprocessing, hidden by workers.
def slow_preprocessing(x):
    time.sleep(0.01)
    return x * 2


dataset = MappedDataset(SimpleDataset(list(range(10))), slow_preprocessing)
loader = Dataloader(dataset, batch_size=2, workers=2, prefetch=3)
for batch in loader:
    print("mapped", batch)

# 3. Onto a mesh.
config = make_fsdp_sharding_config(axis_names=("data", "model"), batch_axis_name="data")
mesh = config.create_device_mesh()
dataset = SimpleDataset(list(range(128)))
dataloader = Dataloader(dataset, batch_size=8, workers=2, prefetch=2)


@jax.jit
def train_step(batch):
    return jnp.sum(batch)


with mesh:
    for local_batch in dataloader:
        global_batch = host_to_global_device_array(local_batch)
        assert global_batch.sharding.mesh.shape == mesh.shape
        print("global", global_batch.shape, int(train_step(global_batch)))
