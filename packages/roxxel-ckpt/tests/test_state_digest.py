"""The digest of a state: equal for every sharding, other for every changed bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_ckpt import Checkpointer
from roxxel_ckpt.cli import main

from .helpers import make

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "uint32", "bool", "complex64")


class Values(nnx.Module):
    """Arrays of one model, by name."""

    def __init__(self, **arrays: Any) -> None:
        for name, array in arrays.items():
            setattr(self, name, nnx.Param(array))


def digest(folder: Path, **arrays: Any) -> str:
    return Checkpointer(folder, Values(**arrays)).state_digest()


def random(dtype: str, shape: tuple[int, ...] = (8, 16), seed: int = 0) -> jax.Array:
    values = np.random.default_rng(seed).normal(size=shape) * 8
    return jnp.asarray(values).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_sharding_has_the_same_digest(tmp_path: Path, dtype: str) -> None:
    array = random(dtype)
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    specs = [(), ("a",), (None, "b"), ("b", "a"), (("a", "b"),)]
    sharded = [
        jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
        for spec in specs
    ]

    found = {digest(tmp_path, x=each) for each in [array, *sharded]}

    assert len(found) == 1


def test_a_sharded_state_of_many_leaves_has_a_digest(tmp_path: Path) -> None:
    # JAX allows 32 programs in flight on a CPU. With more, their collectives can wait
    # for each other, and XLA ends the process.
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    place = NamedSharding(mesh, PartitionSpec("a", "b"))
    array = random("float32")
    split = {f"x{i}": jax.device_put(array, place) for i in range(100)}

    found = {digest(tmp_path, **split) for _ in range(8)}

    assert found == {digest(tmp_path, **dict.fromkeys(split, array))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_every_flipped_bit_changes_the_digest(tmp_path: Path, dtype: str) -> None:
    array = np.array(random(dtype, (3, 5)))
    whole = digest(tmp_path, x=jnp.array(array))
    flat = array.reshape(-1).view(np.uint8)
    chosen = np.random.default_rng(1).choice(8 * flat.size, 24, replace=False)
    for bit in chosen:
        flat[bit // 8] ^= 1 << bit % 8
        assert digest(tmp_path, x=jnp.array(array)) != whole
        flat[bit // 8] ^= 1 << bit % 8

    assert digest(tmp_path, x=jnp.array(array)) == whole


def test_names_places_shapes_and_dtypes_count(tmp_path: Path) -> None:
    a, b = random("float32", seed=1), random("float32", seed=2)

    states = [
        {"x": a, "y": b},
        {"x": b, "y": a},
        {"x": a, "z": b},
        {"x": a[::-1], "y": b},
        {"x": a.at[0, 1].set(a[1, 0]).at[1, 0].set(a[0, 1]), "y": b},
        {"x": a.reshape(16, 8), "y": b},
        {"x": a.view("int32"), "y": b},
        {"x": a},
    ]

    assert len({digest(tmp_path, **state) for state in states}) == len(states)


def test_every_leaf_of_a_trained_state_counts(tmp_path: Path) -> None:
    model, optimizer = make()
    saving = Checkpointer(tmp_path, model, optimizer)
    found = [saving.state_digest()]

    leaves = dict(nnx.to_flat_state(nnx.state((model, optimizer))))
    for leaf in leaves.values():
        value = leaf[...]
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        leaf.set_value(jax.random.fold_in(value, 1) if is_key else value + 1)
        nnx.update((model, optimizer), nnx.from_flat_state(leaves))
        found.append(saving.state_digest())
        leaf.set_value(value)

    assert len({*found}) == len(found) > 5


def test_a_form_without_a_live_state_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="make Checkpointer"):
        Checkpointer(tmp_path).state_digest()


def test_verify_finds_arrays_that_are_not_those_of_the_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = make()
    with Checkpointer(tmp_path, model, optimizer) as saving:
        extra = {"state_digest": saving.state_digest()}
        saving.save(1, extra=extra)
        kernel = model.embed.kernel
        kernel[...] = kernel[...].at[0, 0].multiply(1 + 2**-20)
        saving.save(2, extra=extra)

    assert main(["verify", f"{tmp_path}@1"]) == 0
    assert main(["verify", f"{tmp_path}@2"]) == 3

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("sound")
    assert extra["state_digest"] in lines[1]


def test_verify_finds_a_step_that_the_log_contradicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = make()
    with Checkpointer(tmp_path, model, optimizer) as saving:
        digest = saving.state_digest()
        saving.save(1)
        saving.save(2, extra={"state_digest": digest})

    assert main(["verify", str(tmp_path)], logged=lambda *_: digest) == 0
    assert main(["verify", str(tmp_path)], logged=lambda *_: "0" * 16) == 3

    lines = capsys.readouterr().out.splitlines()
    assert all("this run did not save" in line for line in lines[2:])
