from __future__ import annotations

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from roxxel_train._model_state import is_sound, place, put, signature, take

from .helpers import pair


def test_objects_and_tree_are_the_same_values() -> None:
    model, optimizer = pair(seed=1)
    other, other_optimizer = pair(seed=2)

    put(other, other_optimizer, take(model, optimizer))

    np.testing.assert_array_equal(
        other.embed.embedding[...], model.embed.embedding[...]
    )
    assert signature(take(other, other_optimizer)) == signature(take(model, optimizer))


def test_placing_copies_every_array() -> None:
    model, optimizer = pair()
    before = take(model, optimizer)

    place(model, optimizer, Mesh(np.asarray(jax.devices()), ("data",)))

    after = take(model, optimizer)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert old is not new
        assert new.sharding.device_set == set(jax.devices())
    jax.jit(lambda x: x, donate_argnums=0)(after)
    assert is_sound(before)
    assert not is_sound(after)


def test_signature_sees_another_shape() -> None:
    model, optimizer = pair()
    before = signature(take(model, optimizer))

    model.out = nnx.Linear(4, 14, rngs=nnx.Rngs(0))

    assert signature(take(model, optimizer)) != before
