"""The example program of the document about checkpoints, without its comments."""
# ruff: noqa: F401 - the document imports these

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from roxxel.checkpoint import Checkpointer


class SimpleModel(nnx.Module):
    def __init__(self, rngs) -> None:
        self.linear = nnx.Linear(10, 5, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


rngs = nnx.Rngs(42)
model = SimpleModel(rngs)
tx = optax.adam(1e-3)
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

checkpointer = Checkpointer(
    checkpoint_path="./checkpoints",
    model=model,
    optimizer=optimizer,
    max_to_keep=3,
)

start_step = checkpointer.restore()
print(f"Resumed from step: {start_step}")

for step in range(start_step, 1000):
    loss_val = 0.52

    if step % 100 == 0:
        checkpointer.save(
            step=step,
            metrics_dict={"loss": loss_val},
        )
