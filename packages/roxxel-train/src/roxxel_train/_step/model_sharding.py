"""Shardings of the arrays of a model and its optimizer over the mesh.

An array follows the annotation of its Variable. Arrays without an annotation are
replicated, or split over some axes of the mesh (Rajbhandari et al., ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models, 2020). An existing model is
copied to the mesh. A model given as a function is created on the mesh: each device
computes its own pieces, so the model may be larger than the memory of a device.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roxxel_train._step.given import (
    array_path,
    check_call,
    check_model,
    check_no_strays,
    check_optimizer,
    check_returned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUP_AXIS = "replica"
"""The axis along which `make_hybrid_sharding_config` puts groups of devices.

`"fsdp"` leaves it out: each group holds the whole model, so the slower network between
groups carries only gradients.
"""

MIN_SPLIT_SIZE = 100_000
"""Arrays with fewer elements are replicated.

Copies of a small array, such as a bias, cost little memory, while gathering a split
array costs a collective. DeepSpeed's ZeRO-3 has the same default for
`stage3_param_persistence_threshold`.
"""


@dataclass(frozen=True)
class ModelLayout:
    """The rule that gives every array of a model and its optimizer a sharding.

    The axes `split_over` split arrays of at least `min_split_size` elements that have
    no annotation. If `split_over` is empty, these arrays are replicated.
    """

    mesh: Mesh
    split_over: tuple[str, ...] = ()
    min_split_size: int = MIN_SPLIT_SIZE

    @classmethod
    def of(
        cls, model_sharding: str | Sequence[str], batch: NamedSharding
    ) -> ModelLayout:
        """Return the layout for the argument `model_sharding` and a batch sharding."""
        mesh = batch.mesh
        assert isinstance(mesh, Mesh)  # noqa: S101 - batch_sharding made it
        if model_sharding == "annotated":
            return cls(mesh)
        if model_sharding == "fsdp":
            rows = batch.spec[0] if len(batch.spec) else None
            names = (rows,) if isinstance(rows, str) else tuple(rows or ())
            axes = tuple(name for name in names if name != GROUP_AXIS)
            if not axes:
                raise ValueError(
                    f'model_sharding="fsdp" uses the axes that split the rows, but '
                    f"data_sharding has the spec {tuple(batch.spec)}; split the rows "
                    f"over an axis of the mesh other than {GROUP_AXIS!r}"
                )
            return cls(mesh, axes)
        names = set(model_sharding)
        is_twice = len(names) < len(model_sharding)
        is_text = isinstance(model_sharding, str)
        if is_text or is_twice or not names <= set(mesh.axis_names):
            raise ValueError(
                'model_sharding must be "annotated", "fsdp" or names of the axes '
                f"{mesh.axis_names}, each once, got {model_sharding!r}"
            )
        return cls(mesh, tuple(model_sharding))

    def sharding(self, path: str, array: Any, annotated: Any) -> NamedSharding:
        """Return the sharding of an array, from its shape and dtype.

        Errors name `path`. An annotation without an axis, such as `(None, None)`,
        replicates the array. If `annotated` is None or empty, `split_over` applies.
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
        too_small = math.prod(array.shape) < self.min_split_size
        if ways == 1 or is_key or too_small or not fitting:
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
                        f"{dict(self.mesh.shape)} lacks; change the annotation or the "
                        "mesh"
                    )
            ways = math.prod(self.mesh.shape[name] for name in names)
            if dimension >= len(array.shape) or array.shape[dimension] % ways:
                raise ValueError(
                    f"{path} of shape {tuple(array.shape)} is annotated {spec}, which "
                    f"does not divide over the mesh {dict(self.mesh.shape)}; "
                    "change the shape, the annotation or the mesh"
                )


def on_mesh(
    model: Any,
    optimizer: nnx.Optimizer[Any] | None,
    layout: ModelLayout,
    check: Callable[[str], None] | None = None,
) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
    """Return model and optimizer on the mesh, created there if `model` is a function.

    Before the first computation, `check` is called with a summary of all arrays: the
    computation crashes if the summary differs between processes.
    """
    check_model(model)
    if isinstance(model, nnx.Module):
        check_optimizer(optimizer)
        put_on_mesh(model, cast("nnx.Optimizer[Any]", optimizer), layout, check)
        return model, cast("nnx.Optimizer[Any]", optimizer)
    if optimizer is not None:
        raise TypeError(
            "model is a function, which returns the optimizer too; "
            "omit the argument optimizer"
        )
    check_call("model", model, "")
    if layout.mesh.size > 1:
        return create(model, layout, check)
    # One device holds all arrays anyway. In one program, XLA would compile the random
    # numbers of each matrix anew: over three minutes for 124 million parameters on an
    # H100, where the operations of one layer after another compile once.
    with jax.set_mesh(layout.mesh):
        pair: Any = model()
    check_returned(pair)
    put_on_mesh(pair[0], pair[1], layout, check)
    return pair


def put_on_mesh(
    model: nnx.Module,
    optimizer: nnx.Optimizer[Any],
    layout: ModelLayout,
    check: Callable[[str], None] | None = None,
) -> None:
    """Replace the arrays of both objects by copies on the mesh.

    An array that is already split over axes of the mesh keeps its sharding. Every array
    is copied, one at a time, because the update donates its arrays, and the user's
    program may still hold the originals.
    """
    copies: set[int] = set()

    def copy(path: str, annotated: Any, x: Any) -> jax.Array:
        if id(x) in copies:  # a Variable that both objects hold
            return x
        sharding = _kept(layout.mesh, x) or layout.sharding(
            path, jax.typeof(x), annotated
        )
        # `device_put` alone may return the buffer of its argument.
        copied = jnp.copy(_put(x, sharding))
        copies.add(id(copied))
        return copied

    pair = (model, optimizer)
    if check is not None:
        state = nnx.state(pair)
        arrays = nnx.to_pure_dict(state)
        summary = _summary(jax.tree.map(jax.typeof, arrays), _annotations(state))
        if jax.process_count() > 1:
            summary += f", values {_crc_of(arrays):08x}"
        check(summary)
    variables = [
        (array_path(path), node)
        for path, node in nnx.iter_graph(pair)
        if isinstance(node, nnx.Variable)
    ]
    for name, variable in variables:
        copy_array = partial(copy, name, _annotation(variable))
        variable.set_value(jax.tree.map(copy_array, variable.get_value()))
    # Also copy the arrays that are attributes and not Variables.
    copy_attribute = partial(copy, "an array", None)
    nnx.update(pair, jax.tree.map(copy_attribute, nnx.state(pair)))


def create(
    build: Callable[[], Any],
    layout: ModelLayout,
    check: Callable[[str], None] | None = None,
) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
    """Create a model and its optimizer directly on the mesh; `check` as for `on_mesh`.

    `build` returns `(model, optimizer)`. JAX traces `build`, so `build` must create
    arrays with JAX. No device ever holds all of a split array.
    """
    form: list[tuple[Any, Any]] = []

    def arrays() -> Any:
        pair = build()
        check_returned(pair)
        graphdef, state = nnx.split(pair)
        check_no_strays(pair, state)
        form.append((graphdef, _annotations(state)))
        return nnx.to_pure_dict(state)

    # Flax creates an annotated Variable only while a mesh is set.
    with jax.set_mesh(layout.mesh):
        shapes = jax.eval_shape(arrays)
        graphdef, specs = form[0]
        if check is not None:
            check(_summary(shapes, specs))
        shardings = jax.tree_util.tree_map_with_path(
            lambda path, x, spec: layout.sharding(array_path(path), x, spec),
            shapes,
            specs,
        )
        return nnx.merge(graphdef, jax.jit(arrays, out_shardings=shardings)())


def _summary(arrays: Any, specs: Any) -> str:
    """Return number and size of the arrays, and a digest of paths and annotations."""
    leaves = jax.tree_util.tree_flatten_with_path(arrays)[0]
    lines = [
        f"{array_path(path)} {leaf.shape} {leaf.dtype} {tuple(spec)}"
        for (path, leaf), spec in zip(leaves, jax.tree.leaves(specs), strict=True)
    ]
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=4).hexdigest()
    size = sum(math.prod(leaf.shape) for _, leaf in leaves)
    return f"{len(leaves)} arrays of {size:,} numbers, digest {digest}"


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
    """Return the annotation of a Variable; None if Flax gives no `PartitionSpec`."""
    spec = nnx.get_partition_spec(variable).get_value()
    return spec if isinstance(spec, PartitionSpec) else None


def _kept(mesh: Mesh, x: Any) -> NamedSharding | None:
    """Return the sharding of an array that `mesh` already splits; None for others."""
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
    if _is_key(x):
        # `device_put` cannot put random keys on the devices of several processes, but
        # it can put their data there.
        wrap = partial(jax.random.wrap_key_data, impl=jax.random.key_impl(x))
        replicated = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.jit(wrap)(_put(jax.random.key_data(x), replicated))
    if sharding.is_fully_addressable or _is_global(x):
        return jax.device_put(x, sharding)
    # `device_put` would compare the values of all processes. For this, each host would
    # need memory for twice the array, times the number of processes.
    values = np.asarray(x)
    return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _crc_of(arrays: Any) -> int:
    """Return a checksum of the arrays of which this process holds all values."""
    crc = 0
    for x in jax.tree.leaves(arrays):
        if not _is_global(x):
            values = np.asarray(jax.random.key_data(x) if _is_key(x) else x)
            flat = np.ascontiguousarray(values).reshape(-1)
            crc = zlib.crc32(flat.view(np.uint8).data, crc)
    return crc


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


def _is_global(x: Any) -> bool:
    """Return whether other processes hold a part of an array."""
    return isinstance(x, jax.Array) and not x.is_fully_addressable
