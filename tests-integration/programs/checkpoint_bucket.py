"""Programs that save checkpoints in a bucket, for `test_checkpoint_bucket.py`.

checkpoint_bucket.py serve URL             saves the steps that it reads
checkpoint_bucket.py fork URL              uses the bucket before and after a fork
checkpoint_bucket.py train URL             saves one step after another
checkpoint_bucket.py full FOLDER           saves on a disk that is full for a moment
checkpoint_bucket.py pair URL INDEX PORT   is one of two processes
"""

import os
import resource
import sys

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from roxxel_ckpt import Checkpointer, CheckpointError


def state(seed):
    numbers = np.random.default_rng(seed).normal(size=(64, 8)).astype(np.float32)
    return nnx.Dict(
        weights=nnx.Param(jax.device_put(numbers)),
        seed=nnx.Variable(np.int64(seed)),
        rngs=nnx.Rngs(seed),
    )


def serve(url):
    saving = Checkpointer(url, state(0), timeout=600)
    for line in sys.stdin:
        try:
            saving.save(int(line))
            saving.wait()
            print("saved", flush=True)
        except CheckpointError as error:
            print(f"{type(error).__name__}: {error}", flush=True)


def train(url):
    model = state(0)
    with Checkpointer(url, model, timeout=600, max_to_keep=2) as saving:
        start = saving.restore()
        print("restored", start, flush=True)
        expected = start + np.arange(512.0, dtype=np.float32).reshape(64, 8)
        assert start == 0 or (np.asarray(model.weights[...]) == expected).all()
        for step in range(start + 1, start + 1000):
            model.weights.set_value(
                jax.numpy.asarray(
                    step + np.arange(512.0, dtype=np.float32).reshape(64, 8)
                )
            )
            saving.save(step)
            saving.wait()
            print("saved", step, flush=True)


def pair(url, index, port):
    index = int(index)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    rows = np.arange(32.0, dtype=np.float32).reshape(8, 4)

    def sharded(offset):
        return jax.make_array_from_callback(
            (8, 4), sharding, lambda part: rows[part] + offset
        )

    def holds(offset):
        return all(
            (np.asarray(shard.data) == rows[shard.index] + offset).all()
            for shard in model.weights[...].addressable_shards
        )

    model = nnx.Dict(weights=nnx.Param(sharded(0)))
    with Checkpointer(url, model, max_to_keep=2, timeout=600) as saving:
        assert saving.restore() == 0
        saving.check_shared()
        for step in (1, 2, 3):
            model.weights.set_value(sharded(step))
            assert saving.save(step, {"loss": 1.0 / step})
        saving.wait()
        assert saving.steps() == [2, 3]
        for release in (False, True):
            model.weights.set_value(sharded(9))
            assert saving.restore(release=release) == 3
            assert holds(3)
        assert saving.restore(2) == 2
        assert holds(2)
    trees = Checkpointer(url.replace("/checkpoints", "/tree"), timeout=600)
    tree = {"params": {"w": sharded(0)}, "count": 0}
    for step in (1, 2):
        tree = jax.tree.map(lambda leaf: leaf + 1, tree)
        assert trees.save(step, {"loss": 1.0 / step}, state=tree)
    trees.wait()
    shape = jax.ShapeDtypeStruct((8, 4), np.float32, sharding=sharding)
    for like in ({"params": {"w": shape}, "count": 0}, tree):
        found = trees.load(like=like)
        model.weights.set_value(found["params"]["w"])
        assert found["count"] == 2
        assert holds(2)
    # One process cannot reach the bucket: both fail, and no step appears.
    if index == 1:
        os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    other = Checkpointer(url.replace("/checkpoints", "/other"), model, timeout=30)
    try:
        other.save(1)
        other.wait()
        text = "nothing"
    except CheckpointError as error:
        text = str(error)
    assert "no connection" in text, text
    jax.distributed.shutdown()
    print("done", flush=True)


def fork(url):
    saving = Checkpointer(url, state(0), timeout=600)
    saving.save(1)
    saving.wait()
    child = os.fork()
    if child == 0:
        try:
            saving.steps()
        except CheckpointError as error:
            print(error, file=sys.stderr)
        os._exit(0)
    os.waitpid(child, 0)
    print(saving.steps(), flush=True)


def full(folder):
    numbers = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    model = nnx.Dict(weights=nnx.Param(jax.device_put(numbers)))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    saving = Checkpointer(folder, model, timeout=600)
    saving.save(1)
    saving.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    saving.save(2)
    try:
        saving.save(3)
    except CheckpointError as error:
        print(error)
    print(saving.steps(), flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    saving.save(3)
    saving.close()
    print(saving.steps(), flush=True)


def leave(url):
    Checkpointer(url, state(0), timeout=600).save(1)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
