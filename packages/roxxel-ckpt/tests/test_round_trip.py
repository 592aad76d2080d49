"""A state is restored bit for bit as it was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorstore
from flax import nnx
from roxxel_ckpt import Checkpointer, CheckpointError

from .helpers import checkpointer, content, leaves, make, save_all, train

if TYPE_CHECKING:
    from pathlib import Path


class Odds(nnx.Module):
    """A Variable of every kind that a program may hold."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        key = jax.random.key(seed)
        first = jax.devices()[0]
        for name in ("float8_e4m3fn", "float16", "bfloat16", "int8", "bool", "uint32"):
            value = jnp.asarray(rng.integers(0, 2, 3), dtype=name)
            setattr(self, name, nnx.Variable(value))
        self.nan = nnx.Variable(jnp.asarray([jnp.nan, -0.0, jnp.inf, seed]))
        self.scalar = nnx.Variable(jnp.float32(rng.normal()))
        self.committed_scalar = nnx.Variable(jax.device_put(rng.normal(), first))
        self.weak = nnx.Variable(jnp.asarray(rng.normal()))
        self.number = nnx.Variable(seed + 2**40)
        self.ratio = nnx.Variable(seed + 0.1)
        self.flag = nnx.Variable(bool(seed))
        self.phase = nnx.Variable(complex(seed, 1))
        self.wide = nnx.Variable(np.arange(3) + 2**40 + seed)
        self.numpy_scalar = nnx.Variable(np.float32(seed))
        self.key = nnx.Variable(key)
        self.keys = nnx.Variable(jax.random.split(jax.random.key(seed, impl="rbg"), 3))
        self.committed_key = nnx.Variable(jax.device_put(key, first))
        self.legacy_key = nnx.Variable(jax.random.PRNGKey(seed))
        self.tree = nnx.Variable({"a": jnp.full(2, seed), "b": (jnp.ones(1), 2.5)})
        self.nothing = nnx.Variable(None)
        self.empty = nnx.Variable(jnp.zeros((0, 3)))
        self.plain = jnp.full(2, seed)
        self.slashed = nnx.Dict({"a/b": nnx.Param(jnp.full(1, seed))})


def test_a_trained_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = make(seed=0)
    train(model, optimizer, range(3))
    with Checkpointer(tmp_path, model, optimizer) as saving:
        saving.save(3, {"loss": 1.0})
    fresh, fresh_optimizer = make(seed=1)

    assert Checkpointer(tmp_path, fresh, fresh_optimizer).restore(strict=True) == 3

    assert content(fresh, fresh_optimizer) == content(model, optimizer)
    assert fresh.tied is fresh.embed


def test_a_resumed_run_has_the_losses_of_one_never_stopped(tmp_path: Path) -> None:
    model, optimizer = make(seed=0)
    with Checkpointer(tmp_path, model, optimizer) as saving:
        train(model, optimizer, range(3))
        saving.save(3)
    straight = train(model, optimizer, range(3, 6))
    fresh, fresh_optimizer = make(seed=1)

    start = Checkpointer(tmp_path, fresh, fresh_optimizer).restore()

    assert train(fresh, fresh_optimizer, range(start, 6)) == straight


def test_every_kind_of_variable_comes_back_as_it_was(tmp_path: Path) -> None:
    saved, fresh = Odds(0), Odds(1)
    with Checkpointer(tmp_path, saved) as saving:
        saving.save(0)

    Checkpointer(tmp_path, fresh).restore(strict=True)

    assert content(fresh) == content(saved)
    for name, leaf in leaves(saved).items():
        again = leaves(fresh)[name]
        assert type(again) is type(leaf), name
        for trait in ("weak_type", "committed", "sharding"):
            assert getattr(again, trait, None) == getattr(leaf, trait, None), name


def test_a_variable_that_holds_a_whole_tree_comes_back_with_its_moments(
    tmp_path: Path,
) -> None:
    def of(value: float) -> tuple[nnx.Dict[Any], nnx.Optimizer[Any]]:
        tree = {"a": {"w": jnp.full((2, 2), value)}, "layers": [jnp.full(1, value)]}
        model = nnx.Dict(tree=nnx.Param(tree))
        return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    model, optimizer = of(1.0)
    twice = jax.tree.map(lambda leaf: 2 * leaf, model.tree.get_value())
    optimizer.update(model, nnx.State({"tree": nnx.Param(twice)}))
    model.tree.set_value(jax.tree.map(lambda leaf: leaf + 1, model.tree.get_value()))
    with Checkpointer(tmp_path, model, optimizer) as saving:
        saving.save(1)

    fresh = of(5.0)
    assert Checkpointer(tmp_path, *fresh).restore(strict=True) == 1
    assert content(*fresh) == content(model, optimizer)
    assert float(fresh[0].tree.get_value()["a"]["w"][0, 0]) == pytest.approx(1.9)


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path: Path) -> None:
    model = nnx.Linear(300, 300, rngs=nnx.Rngs(0))
    before = content(model)
    overwrite = jax.jit(
        lambda state: jax.tree.map(lambda x: x * 0 - 1, state), donate_argnums=0
    )
    with Checkpointer(tmp_path, model) as saving:
        state = nnx.to_pure_dict(nnx.state(model))
        saving.save(1)
        for _ in range(5):
            state = overwrite(state)
        nnx.update(model, state)

    Checkpointer(tmp_path, model).restore()

    assert content(model) == before


def test_numpy_arrays_may_be_written_to_as_soon_as_save_returns(tmp_path: Path) -> None:
    model = nnx.Dict({"table": nnx.Variable(np.zeros(100_000))})
    with Checkpointer(tmp_path, model) as saving:
        saving.save(1)
        model["table"][...][:] = 7

    Checkpointer(tmp_path, model).restore()

    assert not model["table"][...].any()


def test_restoring_over_donated_arrays_works(tmp_path: Path) -> None:
    model, optimizer = make()
    before = content(model, optimizer)
    with Checkpointer(tmp_path, model, optimizer) as saving:
        save_all(saving, 1)
        for leaf in leaves(model, optimizer).values():
            leaf.delete()

        assert saving.restore() == 1

    assert content(model, optimizer) == before


def test_saving_a_donated_array_names_it(tmp_path: Path) -> None:
    model, optimizer = make()
    model.embed.kernel[...].delete()

    with pytest.raises(CheckpointError, match="model/embed/kernel: the array was don"):
        Checkpointer(tmp_path, model, optimizer).save(1)


def test_without_an_optimizer_only_the_model_is_restored(tmp_path: Path) -> None:
    model, optimizer = make(seed=0)
    train(model, optimizer, range(2))
    with Checkpointer(tmp_path, model, optimizer) as saving:
        saving.save(2)
    fresh, untouched = make(seed=1)
    before = content(untouched)

    reading = Checkpointer(tmp_path, fresh)

    assert reading.restore(strict=True) == 2
    assert content(fresh) == content(model)
    assert content(untouched) == before


EXTRA: dict[str, Any] = {"seed": 3, "text": "ü/\n", "list": [0.1, None, {"a": True}]}


def test_extra_and_metrics_come_back_with_their_step(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        saving.save(1, {"loss": jnp.float32(0.1), "tokens": np.int64(7)}, EXTRA)
        saving.save(2)

    reading = checkpointer(tmp_path)
    assert reading.peek(1) == (1, EXTRA)
    assert reading.peek() == (2, None)
    assert reading.extra is None
    assert reading.restore(1) == 1
    assert reading.extra == EXTRA
    assert reading.metrics(1) == {"loss": float(np.float32(0.1)), "tokens": 7.0}


def test_peek_leaves_the_live_state_alone(tmp_path: Path) -> None:
    with checkpointer(tmp_path, seed=0) as saving:
        saving.save(1)
    model, optimizer = make(seed=1)
    before = content(model, optimizer)

    Checkpointer(tmp_path, model, optimizer).peek()

    assert content(model, optimizer) == before


def test_an_empty_folder_restores_nothing(tmp_path: Path) -> None:
    fresh = checkpointer(tmp_path / "none")

    assert fresh.peek() is None
    assert fresh.restore() == 0
    assert fresh.steps() == []
    assert fresh.latest_step is fresh.best_step is fresh.last_save is None
    assert not (tmp_path / "none").exists()


def test_a_closed_checkpointer_opens_again(tmp_path: Path) -> None:
    saving = checkpointer(tmp_path)
    save_all(saving, 1)
    saving.close()
    saving.close()

    save_all(saving, 2)

    assert saving.restore() == 2


def test_a_relative_path_does_not_follow_a_later_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saving = checkpointer("run")  # pyright: ignore[reportArgumentType] - a str is fine
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    save_all(saving, 1)

    assert (tmp_path / "run" / "1").is_dir()


def test_what_json_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    saving = checkpointer(tmp_path / "run")

    with pytest.raises(TypeError, match="extra must be a dict that JSON can hold"):
        saving.save(1, extra={"array": jnp.ones(2)})
    with pytest.raises(TypeError, match=r"metrics_dict\['loss'\] must be a number"):
        saving.save(1, {"loss": "1"})
    with pytest.raises(TypeError, match="metrics_dict must be a dict of numbers, got"):
        saving.save(1, 0.5)  # pyright: ignore[reportArgumentType] - the point
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        saving.save(-1)
    with pytest.raises(TypeError, match="model/name: holds str"):
        Checkpointer(tmp_path / "run", nnx.Dict(name=nnx.Variable("x"))).save(1)
    with pytest.raises(CheckpointError, match="holds no arrays"):
        Checkpointer(tmp_path / "run", nnx.Dict(a=nnx.Variable(None))).save(1)
    assert not (tmp_path / "run").exists()


def test_a_path_that_goes_back_from_a_link_is_the_folder_of_its_target(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run")

    save_all(checkpointer(tmp_path / "link" / ".." / "checkpoints"), 1)

    assert (tmp_path / "disk" / "checkpoints" / "1").is_dir()
    assert not (tmp_path / "checkpoints").exists()


def test_all_saves_and_restores_share_the_threads_of_one_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[Any] = []
    real_open = tensorstore.open

    def watched(*arguments: Any, context: Any, **options: Any) -> Any:
        contexts.append(context)
        return real_open(*arguments, context=context, **options)

    monkeypatch.setattr(tensorstore, "open", watched)
    arrays = {"of jax": jnp.ones(3), "of numpy": np.ones(3)}
    with Checkpointer(tmp_path) as saving:
        for step in (1, 2):
            saving.save(step, state=arrays)
            saving.wait()
        saving.load(like=arrays)

    assert len(contexts) >= 6
    assert all(context is contexts[0] for context in contexts)
