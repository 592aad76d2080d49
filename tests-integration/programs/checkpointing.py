"""The documents' checkpoint program: same names and arguments, fewer steps."""

import sys

import optax
from flax import nnx
from roxxel.checkpoint import Checkpointer

NUM_STEPS = int(sys.argv[1])


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

for step in range(start_step, NUM_STEPS):
    loss_val = 0.52
    if step % 100 == 0:
        checkpointer.save(step=step, metrics_dict={"loss": loss_val})
