"""Where the arrays of a model and its optimizer lie on the mesh.

Two rules: as the user annotated them, and fully sharded, which splits what is not
annotated over the devices that split the rows of a batch (Rajbhandari et al., ZeRO:
Memory Optimizations Toward Training Trillion Parameter Models, 2020). A model that is
built already is copied there; one that is given as a function is created there, each
device computing its own pieces, so that it may be larger than any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Callable

ModelSharding = Literal["annotated", "fsdp"]
"""How a model lies on the mesh: as annotated, or split wherever it is not."""


@dataclass(frozen=True)
class ModelLayout:
    """The sharding of every array of a model and its optimizer.

    Attributes:
        mesh: Where they lie.
        split_over: Axes of the mesh over which arrays without annotation are split;
            none replicates them.
    """

    mesh: Mesh
    split_over: tuple[str, ...] = ()

    @classmethod
    def of(cls, model_sharding: ModelSharding, batch: NamedSharding) -> ModelLayout:
        """Return the layout by name.

        Args:
            model_sharding: `"annotated"` or `"fsdp"`.
            batch: Sharding of batches, on the mesh to use.

        Raises:
            ValueError: The name is unknown, or `"fsdp"` has no axis to split over.
        """
        mesh = batch.mesh
        assert isinstance(mesh, Mesh)  # noqa: S101 - batch_sharding made it
        if model_sharding == "annotated":
            return cls(mesh)
        if model_sharding != "fsdp":
            raise ValueError(
                f'model_sharding must be "annotated" or "fsdp", got {model_sharding!r}'
            )
        rows = batch.spec[0] if len(batch.spec) else None
        if rows is None:
            raise ValueError(
                f'model_sharding="fsdp" splits the model as rows are split, but '
                f"data_sharding has the spec {tuple(batch.spec)}; split the rows over "
                "an axis of the mesh"
            )
        return cls(mesh, (rows,) if isinstance(rows, str) else tuple(rows))

    def sharding(self, path: str, array: Any, annotated: Any) -> NamedSharding:
        """Return where an array belongs.

        Args:
            path: Names it in errors.
            array: Anything with shape and dtype.
            annotated: Its annotation; None or empty if it has none. One that names no
                axis, such as `(None, None)`, replicates.

        Raises:
            ValueError: The annotation does not fit the mesh or the shape.
        """
        spec: tuple[Any, ...] = tuple(annotated or ())
        if spec:
            self._check(path, array, spec)
            return NamedSharding(self.mesh, PartitionSpec(*spec))
        ways = math.prod(self.mesh.shape[axis] for axis in self.split_over)
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        fitting = [
            dimension
            for dimension, size in enumerate(array.shape)
            if size and size % ways == 0
        ]
        if ways == 1 or is_key or not fitting:
            return NamedSharding(self.mesh, PartitionSpec())
        widest = max(fitting, key=lambda dimension: array.shape[dimension])
        before = (None,) * widest
        return NamedSharding(self.mesh, PartitionSpec(*before, self.split_over))

    def _check(self, path: str, array: Any, spec: tuple[Any, ...]) -> None:
        for dimension, axes in enumerate(spec):
            names = (axes,) if isinstance(axes, str) else (axes or ())
            for name in names:
                if name not in self.mesh.shape:
                    raise ValueError(
                        f"{path} is annotated with the axis {name!r}, which the mesh "
                        f"{dict(self.mesh.shape)} lacks; name one of its axes or give "
                        "another mesh"
                    )
            ways = math.prod(self.mesh.shape[name] for name in names)
            if dimension >= len(array.shape) or array.shape[dimension] % ways:
                raise ValueError(
                    f"{path} of shape {tuple(array.shape)} is annotated {spec}, which "
                    f"does not divide over the mesh {dict(self.mesh.shape)}; "
                    "change the shape, the annotation or the mesh"
                )


def on_mesh(
    model: Any, optimizer: nnx.Optimizer[Any] | None, layout: ModelLayout
) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
    """Return model and optimizer on the mesh, made there if a function is given.

    Raises:
        TypeError: The two do not go together.
        ValueError: An annotation does not fit.
    """
    if isinstance(model, nnx.Module):
        if optimizer is None:
            raise TypeError("give the optimizer of this model, an nnx.Optimizer")
        place(model, optimizer, layout)
        return model, optimizer
    if not callable(model):
        raise TypeError(
            f"model is a {type(model).__name__}; give a Flax NNX module or a function "
            "that returns (model, optimizer)"
        )
    if optimizer is not None:
        raise TypeError(
            "model is a function, which returns the optimizer too; "
            "leave out the argument optimizer"
        )
    return create(model, layout)


def place(
    model: nnx.Module, optimizer: nnx.Optimizer[Any], layout: ModelLayout
) -> None:
    """Give both objects arrays of their own on the mesh.

    An array that is sharded over the axes of the mesh already keeps its sharding. All
    are copied, one after the other, because the step donates them: whoever else holds
    the old arrays (a clone, an average of the weights) keeps them.

    Raises:
        ValueError: An annotation does not fit.
    """
    ours: set[int] = set()

    def copy(path: str, annotated: Any, x: Any) -> jax.Array:
        if id(x) in ours:
            return x
        sharding = _kept(layout.mesh, x) or layout.sharding(
            path, jax.typeof(x), annotated
        )
        # device_put may hand back the very buffer it was given.
        copied = jnp.copy(_put(x, sharding))
        ours.add(id(copied))
        return copied

    pair = (model, optimizer)
    for path, node in nnx.iter_graph(pair):
        if isinstance(node, nnx.Variable):
            place_one = partial(copy, _name(path), _annotation(node))
            node.set_value(jax.tree.map(place_one, node.get_value()))
    # What is left are arrays that stand in the objects without a Variable.
    left = partial(copy, "an array", None)
    nnx.update(pair, jax.tree.map(left, nnx.state(pair)))


def create(
    build: Callable[[], Any], layout: ModelLayout
) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
    """Call a function that makes a model and optimizer, directly on the mesh.

    Args:
        build: Returns `(model, optimizer)`; it is traced, so it makes arrays with JAX.
        layout: Where they go. No array is ever whole on one device if it is split.

    Raises:
        TypeError: `build` returns something else, or arrays outside of Variables.
        ValueError: An annotation does not fit.
    """
    form: list[tuple[Any, Any]] = []

    def arrays() -> Any:
        pair = build()
        _check_pair(pair)
        graphdef, state = nnx.split(pair)
        _check_no_strays(pair, state)
        form.append((graphdef, _annotations(state)))
        return nnx.to_pure_dict(state)

    # Variables with annotations can be made only where a mesh is set.
    with jax.set_mesh(layout.mesh):
        shapes = jax.eval_shape(arrays)
        graphdef, specs = form[0]
        shardings = jax.tree_util.tree_map_with_path(
            lambda path, x, spec: layout.sharding(_name(path), x, spec), shapes, specs
        )
        return nnx.merge(graphdef, jax.jit(arrays, out_shardings=shardings)())


def _check_pair(pair: Any) -> None:
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    if not (
        is_pair
        and isinstance(pair[0], nnx.Module)
        and isinstance(pair[1], nnx.Optimizer)
    ):
        kind = type(pair).__name__
        if is_pair:
            kind = " and a ".join(type(part).__name__ for part in pair)
        raise TypeError(
            f"the function given as model returned a {kind}; "
            "it must return (model, nnx.Optimizer)"
        )


def _check_no_strays(pair: Any, state: Any) -> None:
    """Check that every array made is in the state; Flax loses one without a Variable.

    Raises:
        TypeError: An attribute is an array that is not.
    """
    held = {id(x) for x in jax.tree.leaves(state)}
    for path, node in nnx.iter_graph(pair):
        if isinstance(node, nnx.Module):
            for name, value in vars(node).items():
                if isinstance(value, Tracer) and id(value) not in held:
                    raise TypeError(
                        f"{_name((*path, name))} is an array by itself, which a model "
                        "given as a function cannot hold; put it into an nnx.Variable"
                    )


def _annotations(state: Any) -> Any:
    """Return the annotation of every array of a state, each a `PartitionSpec`."""

    def of_arrays(leaf: Any) -> Any:
        if not isinstance(leaf, nnx.Variable):
            return PartitionSpec()
        spec = _annotation(leaf) or PartitionSpec()
        return jax.tree.map(lambda _: spec, leaf.get_value())

    return nnx.to_pure_dict(
        jax.tree.map(of_arrays, state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    )


def _annotation(variable: nnx.Variable[Any]) -> PartitionSpec | None:
    """Return a Variable's annotation; None where Flax has none for what it holds."""
    spec = nnx.get_partition_spec(variable).get_value()
    return spec if isinstance(spec, PartitionSpec) else None


def _name(path: tuple[Any, ...]) -> str:
    """Return a path such as `optimizer/opt_state/0/mu` from keys of either kind."""
    first, *rest = (getattr(key, "key", key) for key in path)
    return "/".join([("model", "optimizer")[first], *map(str, rest)])


def _kept(mesh: Mesh, x: Any) -> NamedSharding | None:
    """Return the sharding of an array that lies on this mesh already."""
    sharding = getattr(x, "sharding", None)
    if (
        isinstance(sharding, NamedSharding)
        and dict(sharding.mesh.shape) == dict(mesh.shape)
        and sharding.device_set == set(mesh.devices.flat)
        and any(axes is not None for axes in sharding.spec)
    ):
        return NamedSharding(mesh, sharding.spec)
    return None


def _put(x: Any, sharding: NamedSharding) -> jax.Array:
    if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
        # A key can be put on several processes only as the numbers it is made of.
        wrap = partial(jax.random.wrap_key_data, impl=jax.random.key_impl(x))
        replicated = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.jit(wrap)(jax.device_put(jax.random.key_data(x), replicated))
    return jax.device_put(x, sharding)
