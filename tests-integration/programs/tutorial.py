"""The tutorial's program: its names, arguments and numbers, but for a small model.

Run it in an empty folder; run it again and it goes on with what it finds there.
"""

import jax
import numpy as np
import optax
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from roxxel import Curriculum, Phase, Roxxel, Trainer

# The tutorial has 10000, 256 and 10000, with which this takes minutes on two cores.
VOCABULARY = 100
WIDTH = 16
DOCUMENTS = 2000

DATASET_PATTERN = "./wiki_*.rox"
GLOBAL_SEED = 42
LR = 3e-4


class Xenron(nnx.Module):
    """Predicts a token from the one before it."""

    def __init__(self, num_layers: int, rngs: nnx.Rngs) -> None:
        self.num_layers = num_layers
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.linear = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.embed(x))


def token_generator():
    for _ in range(DOCUMENTS):
        yield np.random.randint(0, VOCABULARY, size=(128,), dtype=np.int32)


rox = Roxxel(DATASET_PATTERN)
rox.write(
    token_generator(), separator=b"\x00", block_size=4096, max_shard_bytes=1024**3
)


def sample_now(state) -> str:
    return f"[sampled after step {int(state.step[...])}]"


def loss_fn(model, batch):
    logits = model(batch[:, :-1])
    targets = batch[:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def main() -> None:
    rngs = nnx.Rngs(GLOBAL_SEED)
    model = Xenron(4, rngs)

    devices = jax.devices()
    mesh = Mesh(mesh_utils.create_device_mesh((len(devices),)), axis_names=("data",))
    data_sharding = NamedSharding(mesh, P("data", None))

    with Roxxel(filepath=DATASET_PATTERN) as init_ds:
        phase1_steps = init_ds.estimate_steps(seq_len=1025, batch_size=16)
        phase2_full_steps = init_ds.estimate_steps(seq_len=32769, batch_size=1)
        phase2_steps = int(phase2_full_steps * 0.20)

    phases = [
        Phase(steps=phase1_steps, batch_size=16, seq_len=1025),
        Phase(steps=phase2_steps, batch_size=1, seq_len=32769),
    ]
    curriculum = Curriculum(primary_streamer=Roxxel(DATASET_PATTERN), phases=phases)
    total_train_steps = sum(p.steps for p in phases)

    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.nadamw(
            learning_rate=optax.warmup_cosine_decay_schedule(
                init_value=1e-7,
                peak_value=LR,
                warmup_steps=int(total_train_steps * 0.05),
                decay_steps=total_train_steps,
                end_value=LR * 0.01,
            ),
            weight_decay=0.01,
        ),
    )
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    trainer = Trainer(
        model=model,
        optimizer=optimizer,
        curriculum=curriculum,
        loss_fn=loss_fn,
        save_path="run_delta",
        eval_fn=sample_now,
        eval_every=500,
        checkpoint_every=100,
        log_every=100,
        seed=GLOBAL_SEED,
        mesh=mesh,
        data_sharding=data_sharding,
    )
    trainer.run()


if __name__ == "__main__":
    main()
