from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from roxxel_curriculum import Phase
from roxxel_loader import make_hybrid_sharding_config
from roxxel_train._step.model_sharding import MIN_SPLIT_SIZE, ModelLayout

from .helpers import adam, rows, trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel_train import ModelState


def grid() -> Mesh:
    return Mesh(np.asarray(jax.devices()[:8]).reshape(4, 2), ("data", "model"))


FSDP = ModelLayout(
    AbstractMesh((4, 2), ("data", "model")),  # pyright: ignore[reportArgumentType] - has all that is read of a mesh
    ("data",),
    min_split_size=0,
)
PHASES = [Phase(2, 4, 9)]
GIVEN = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))


class Model(nnx.Module):
    """An array by each rule: annotated, wide, narrow, odd, tied, a pair, a key."""

    def __init__(self, rngs: nnx.Rngs, width: int = 64) -> None:
        self.embed = nnx.Embed(13, 8, rngs=rngs)
        self.up = nnx.Linear(8, width, kernel_init=GIVEN, rngs=rngs)
        self.down = nnx.Linear(width, 8, rngs=rngs)
        self.out = nnx.Linear(8, 13, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.carry = nnx.Variable((jnp.zeros(8), jnp.zeros(3)))
        self.tied = self.out.bias

    def __call__(self, tokens: jax.Array) -> jax.Array:
        hidden = self.dropout(self.embed(tokens))
        return self.out(self.down(jax.nn.relu(self.up(hidden))))


def build(width: int = 64) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
    model = Model(nnx.Rngs(0), width)
    return model, nnx.Optimizer(model, adam(1e-2), wrt=nnx.Param)


def built(mesh: Mesh, width: int = 64) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
    with jax.set_mesh(mesh):
        return build(width)


def leaves(pair: tuple[nnx.Module, nnx.Optimizer[Any]]) -> dict[str, jax.Array]:
    tree = nnx.to_pure_dict(nnx.state(pair))
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}


def axes_by_dimension(array: jax.Array) -> tuple[Any, ...]:
    assert isinstance(array.sharding, NamedSharding)
    spec = tuple(array.sharding.spec)
    return spec + (None,) * (array.ndim - len(spec))


shapes = st.lists(st.integers(0, 12), max_size=4).map(tuple)


@given(shape=shapes)
def test_array_without_annotation_is_split_at_its_widest_dimension_that_divides(
    shape: tuple[int, ...],
) -> None:
    spec = FSDP.sharding("x", jax.ShapeDtypeStruct(shape, jnp.float32), None).spec

    dividing = [size for size in shape if size and size % 4 == 0]
    split = [i for i, axes in enumerate(spec) if axes is not None]
    assert len(split) == bool(dividing)
    for dimension in split:
        assert spec[dimension] in ("data", ("data",))
        assert shape[dimension] == max(dividing)


@given(shape=shapes)
def test_annotated_layout_replicates_what_is_not_annotated(
    shape: tuple[int, ...],
) -> None:
    layout = ModelLayout(FSDP.mesh)

    array = jax.ShapeDtypeStruct(shape, jnp.float32)

    assert layout.sharding("x", array, None).spec == PartitionSpec()


@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    spec=st.sampled_from(
        [(None, None), (None,), ("model",), (None, "data"), (("data", "model"), None)]
    ),
)
def test_annotation_is_kept_or_refused(
    shape: tuple[int, int], spec: tuple[Any, ...]
) -> None:
    ways = {None: 1, "data": 4, "model": 2, ("data", "model"): 8}
    divides = all(
        size % ways[axes] == 0 for size, axes in zip(shape, spec, strict=False)
    )
    array = jax.ShapeDtypeStruct(shape, jnp.float32)

    if divides:
        assert tuple(FSDP.sharding("x", array, PartitionSpec(*spec)).spec) == spec
    else:
        with pytest.raises(ValueError, match="does not divide over the mesh"):
            FSDP.sharding("x", array, PartitionSpec(*spec))


def test_keys_are_replicated() -> None:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))

    assert FSDP.sharding("x", keys, None).spec == PartitionSpec()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            ("tensor",),
            "model/w is annotated with the axis 'tensor', which the mesh .* lacks",
        ),
        (
            ("data",),
            r"model/w of shape \(6,\) is annotated \('data',\), which does not divide",
        ),
        ((None, "data"), r"model/w of shape \(6,\) is annotated \(None, 'data'\)"),
    ],
)
def test_annotation_that_does_not_fit_is_named(
    spec: tuple[Any, ...], message: str
) -> None:
    array = jax.ShapeDtypeStruct((6,), jnp.float32)

    with pytest.raises(ValueError, match=message):
        FSDP.sharding("model/w", array, PartitionSpec(*spec))


def test_layout_is_chosen_by_name_and_by_how_rows_are_split() -> None:
    mesh = grid()
    both = NamedSharding(mesh, PartitionSpec(("data", "model")))
    columns = NamedSharding(mesh, PartitionSpec(None, "data"))

    assert ModelLayout.of("annotated", both).split_over == ()
    assert ModelLayout.of("fsdp", both).split_over == ("data", "model")
    assert ModelLayout.of(("model",), both).split_over == ("model",)
    for wrong in ("zero", ("rows",)):
        with pytest.raises(ValueError, match='must be "annotated", "fsdp" or names of'):
            ModelLayout.of(wrong, both)
    for rows_whole in (columns, NamedSharding(mesh, PartitionSpec())):
        with pytest.raises(ValueError, match="split the rows over an axis"):
            ModelLayout.of("fsdp", rows_whole)


def test_hybrid_mesh_holds_the_whole_model_in_every_group(tmp_path: Path) -> None:
    def wide() -> tuple[nnx.Module, nnx.Optimizer[Any]]:
        model = nnx.Embed(2048, 64, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, adam(1e-2), wrt=nnx.Param)

    config = make_hybrid_sharding_config(1)
    groups = jax.devices()[:4], jax.devices()[4:8]
    mesh = Mesh(np.asarray(groups)[:, :, None], config.axis_names)
    one = trainer(
        tmp_path,
        [Phase(1, 8, 9)],
        pair=(wide, None),
        loss_fn=lambda model, batch: model(batch).mean(),
        mesh=mesh,
        data_sharding=config.batch_sharding(mesh),
        model_sharding="fsdp",
    )

    def pieces(array: jax.Array, group: list[Any]) -> set[str]:
        shards = array.addressable_shards
        return {str(shard.index) for shard in shards if shard.device in group}

    for array in leaves((one.model, one.optimizer)).values():
        first, second = (pieces(array, group) for group in groups)
        assert first == second
        assert len(first) == (4 if array.size >= MIN_SPLIT_SIZE else 1)


@given(size=st.integers(1, MIN_SPLIT_SIZE // 2).map(lambda half: 4 * half))
def test_small_arrays_are_replicated(size: int) -> None:
    layout = ModelLayout(FSDP.mesh, FSDP.split_over)
    array = jax.ShapeDtypeStruct((size,), jnp.float32)

    is_split = layout.sharding("x", array, None).spec != PartitionSpec()

    assert is_split == (size >= MIN_SPLIT_SIZE)


@pytest.mark.parametrize("way", ["placed", "created"])
@pytest.mark.parametrize("split_over", [(), ("data",)])
def test_model_and_moments_are_split_as_annotated_and_the_rest_by_rule(
    tmp_path: Path, way: str, split_over: tuple[str, ...]
) -> None:
    width = MIN_SPLIT_SIZE // 8
    pair = (lambda: build(width), None) if way == "created" else built(grid(), width)

    one = trainer(tmp_path, PHASES, pair=pair, mesh=grid(), model_sharding=split_over)

    found = leaves((one.model, one.optimizer))
    split = split_over or None
    for prefix in ("[0]", "[1]['opt_state'][0]['mu']", "[1]['opt_state'][0]['nu']"):
        up = axes_by_dimension(found[f"{prefix}['up']['kernel']"])
        down = axes_by_dimension(found[f"{prefix}['down']['kernel']"])
        assert up == (None, "model")
        assert down in ((split, None), (split and split[0], None))
        assert axes_by_dimension(found[f"{prefix}['out']['bias']"]) == (None,)
    assert axes_by_dimension(found["[1]['step']"]) == ()
    assert {len(array.sharding.device_set) for array in found.values()} == {8}


def test_model_from_a_function_has_the_form_of_the_built_one(tmp_path: Path) -> None:
    one = trainer(
        tmp_path, PHASES, pair=(build, None), mesh=grid(), model_sharding="fsdp"
    )
    model, optimizer = one.model, one.optimizer
    other = built(grid())

    forms, expected = (
        {name: (x.shape, x.dtype) for name, x in leaves(pair).items()}
        for pair in ((model, optimizer), other)
    )
    assert forms == expected
    assert isinstance(model, Model)
    assert model.tied is model.out.bias
    np.testing.assert_allclose(
        model.up.kernel[...], leaves(other)["[0]['up']['kernel']"], rtol=1e-5
    )


def test_no_array_that_divides_is_ever_whole_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[Any] = []
    jit = jax.jit

    def spy(function: Callable[..., Any], **options: Any) -> Any:
        programs.append(jit(function, **options))
        return programs[-1]

    monkeypatch.setattr(jax, "jit", spy)
    mesh = grid()
    width = 384  # arrays that are large enough to be split

    def deep() -> tuple[nnx.Module, nnx.Optimizer[Any]]:
        layers = (nnx.Linear(width, width, rngs=nnx.Rngs(seed)) for seed in range(4))
        model = nnx.Sequential(*layers)
        return model, nnx.Optimizer(model, adam(1e-2), wrt=nnx.Param)

    one = trainer(
        tmp_path,
        PHASES,
        pair=(deep, None),
        mesh=mesh,
        model_sharding=mesh.axis_names,
        loss_fn=lambda model, batch: model(jnp.ones((batch.shape[0], width))).mean(),
    )

    found = leaves((one.model, one.optimizer))
    for name, array in found.items():
        if array.size >= MIN_SPLIT_SIZE:
            sizes = {shard.data.size for shard in array.addressable_shards}
            assert sizes == {array.size // 8}, name
    program = programs[0]  # creates the arrays; the others train
    with jax.set_mesh(mesh):
        memory = program.lower().compile().memory_analysis()
    whole = sum(array.nbytes for array in found.values())
    assert memory.output_size_in_bytes < whole / 7
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes < whole / 4


def test_array_that_is_split_over_the_mesh_keeps_its_sharding(tmp_path: Path) -> None:
    mesh = grid()
    model, optimizer = built(mesh)
    assert isinstance(model, Model)
    columns = NamedSharding(mesh, PartitionSpec(None, "data"))
    model.down.kernel.set_value(jax.device_put(model.down.kernel[...], columns))

    trainer(tmp_path, PHASES, pair=(model, optimizer), mesh=mesh, model_sharding="fsdp")

    assert axes_by_dimension(model.down.kernel[...]) == (None, "data")


def test_array_on_a_mesh_of_another_shape_gets_a_new_sharding(tmp_path: Path) -> None:
    model, optimizer = built(grid())
    assert isinstance(model, Model)
    turned = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    pairs = NamedSharding(turned, PartitionSpec("data"))
    model.carry.set_value((jnp.zeros(8), jax.device_put(jnp.zeros(2), pairs)))

    trainer(tmp_path, PHASES, pair=(model, optimizer), mesh=grid())

    assert axes_by_dimension(model.carry.get_value()[1]) == (None,)


class Stray(nnx.Module):
    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones(8))
        self.mask = jnp.ones(8)


def test_array_without_a_variable_is_refused_by_name_where_flax_loses_it(
    tmp_path: Path,
) -> None:
    def stray() -> Any:
        model = Stray()
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def loss(model: Any, _: Any) -> jax.Array:
        return model.weight.sum()

    try:
        one = trainer(tmp_path, PHASES, pair=(stray, None), mesh=grid(), loss_fn=loss)
    except TypeError as error:
        assert str(error) == (  # noqa: PT017 - older versions of Flax keep it
            "model/mask is an array without a Variable, which a model given as a "
            "function cannot hold; wrap the array in an nnx.Variable"
        )
    else:
        assert isinstance(one.model, Stray)
        np.testing.assert_array_equal(one.model.mask, np.ones(8))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3, None), "model is a int; give a Flax NNX module or a function"),
        ((build, "optimizer"), "model is a function, which returns the optimizer too"),
        (("model", None), "give the nnx.Optimizer of the model"),
        ((lambda: Model(nnx.Rngs(0)), None), "returned a Model; it must return"),
        ((lambda: (1, 2), None), "returned a int as its first value; it must return"),
        (
            (lambda: build()[::-1], None),
            "returned a Optimizer as its first value; it must",
        ),
    ],
)
def test_wrong_model_or_optimizer_is_named(
    tmp_path: Path, given: tuple[Any, Any], message: str
) -> None:
    model, optimizer = given
    if model == "model":
        model, _ = built(grid())
    if optimizer == "optimizer":
        _, optimizer = built(grid())

    with pytest.raises(TypeError, match=message):
        trainer(tmp_path, PHASES, pair=(model, optimizer), mesh=grid())


def test_run_from_a_function_on_eight_devices_goes_on_on_one(tmp_path: Path) -> None:
    def trips(state: ModelState) -> None:
        if int(state.step[...]) == 2:
            raise RuntimeError("it tripped")

    phases, width = [Phase(4, 8, 9)], MIN_SPLIT_SIZE // 8
    one = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    unbroken = trainer(tmp_path / "a", phases, pair=built(one, width), mesh=one)
    unbroken.run()
    broken = trainer(
        tmp_path / "b",
        phases,
        pair=(lambda: build(width), None),
        mesh=grid(),
        model_sharding="fsdp",
        eval_fn=trips,
        eval_every=1,
    )
    assert isinstance(broken.model, Model)
    assert axes_by_dimension(broken.model.down.kernel[...])[0] in ("data", ("data",))
    with pytest.raises(RuntimeError, match="it tripped"):
        broken.run()

    resumed = trainer(tmp_path / "b", phases, pair=built(one, width), mesh=one)
    summary = resumed.run()

    assert summary.start_step == 2
    for row, expected in zip(rows(tmp_path / "b"), rows(tmp_path / "a"), strict=True):
        assert row["tokens_by_source"] == expected["tokens_by_source"]
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    for ours, expected in zip(
        leaves((resumed.model, resumed.optimizer)).values(),
        leaves((unbroken.model, unbroken.optimizer)).values(),
        strict=True,
    ):
        assert ours.sharding.device_set == {jax.devices()[0]}
        if not jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-5)
