"""Causal attention within documents, also of rows that no single device can hold.

A mesh may have the axis `context`. If the rows of a batch do not divide over all
devices, each device of the axis holds an equal part of the columns, in order. A layer
then gathers keys and values, a head at a time, and each device computes its own
queries, so all have the same work. The backward pass gathers again, so a device keeps
less, the larger the axis.

The scores of a long row are computed for some queries at a time, on one device too. If
nothing is split and rows are short, or the kernel keeps no scores, `jax.nn` computes
the attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

if TYPE_CHECKING:
    from roxxel.recipe.llama_config import Attention, LlamaConfig

_LONG = 8192
"""Maximum number of columns of a row whose attention is computed as a whole."""

_MOST_SCORES = 1 << 26
"""Number of scores that a device computes at once, for its rows, one key head and all
keys.
"""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["segments", "mask"],
    meta_fields=["columns"],
)
@dataclass(frozen=True)
class Scope:
    """Which tokens a token sees, and which devices hold them.

    Attributes:
        columns: How the columns are split.
        segments: Document of each token, shape (B, T); None if each row is one
            document.
        mask: True for two tokens of one document, bool, shape (B, 1, T, T); None if
            each row is one document, or is computed in blocks.
    """

    columns: Columns
    segments: jax.Array | None
    mask: jax.Array | None

    @classmethod
    def of(cls, columns: Columns, segments: jax.Array | None) -> Scope:
        """Return the scope of a batch."""
        mask = None
        if segments is not None and not columns.is_cut:
            mask = (segments[:, :, None] == segments[:, None])[:, None]
        return cls(columns, segments, mask)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        implementation: Attention,
    ) -> jax.Array:
        """Return the mixed values, in the shape and dtype of `query`.

        Args:
            query: Shape (B, T, heads, channels).
            key: Shape (B, T, key heads, channels).
            value: As `key`.
            implementation: As for `jax.nn.dot_product_attention`.
        """
        if self.columns.is_cut:
            own = map(self.columns.split, (query, key, value))
            # So a device keeps these columns for the backward pass, and no second copy
            # of them, which `_in_blocks` orders by heads.
            attend = jax.checkpoint(partial(_in_blocks, self.columns, self.segments))
            return attend(*own)
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=self.mask,
            is_causal=True,
            implementation=implementation,
        )


@dataclass(frozen=True)
class Columns:
    """How the columns of a batch are split over the devices, and into blocks.

    Attributes:
        parts: Number of devices that hold a row.
        axis: The axis of these devices; None without a mesh.
        block: Columns whose scores a device computes at a time.
        is_cut: Whether a row's attention is computed in several blocks.
        rows: Axes of the mesh that split the rows; None leaves it to the compiler.
        row_parts: Number of devices along these axes.
        head_parts: Number of devices that hold the heads of a row.
        own_rows: Rows that a device holds.
    """

    parts: int
    axis: str | None
    block: int
    is_cut: bool
    rows: tuple[str, ...] | None
    row_parts: int
    head_parts: int
    own_rows: int

    @classmethod
    def of(cls, config: LlamaConfig, num_rows: int, length: int) -> Columns:
        """Return how a batch is split over the current mesh.

        Raises:
            ValueError: The columns do not divide over the axis `context`.
        """
        sizes = dict(jax.sharding.get_abstract_mesh().shape)
        head_parts = math.gcd(
            sizes.pop(config.tensor_axis or "", 1), config.num_kv_heads
        )
        parts, axis, axes = 1, None, ()
        if sizes:
            # Only a mesh needs the loader; a model alone must not import it.
            from roxxel_loader.sharding import presets

            parts = presets.column_ways(sizes, num_rows, length)
            axis, axes = presets.CONTEXT_AXIS, presets.row_axes(sizes, num_rows)
        ways = math.prod(sizes[name] for name in axes)
        if parts > 1 and config.attention == "cudnn":
            raise ValueError(
                f'attention="cudnn" cannot split a row over the axis {axis!r}; '
                'use attention="xla"'
            )
        split_over, row_parts = (None, 1) if num_rows % ways else (axes, ways)
        own, rows = length // parts, num_rows // row_parts
        of_query = length * rows * config.num_heads // config.num_kv_heads
        most = min(own, max(1, _MOST_SCORES // of_query))
        block = -(-own // -(-own // most))  # Blocks of one size, the last one padded.
        is_cut = parts > 1 or (length > _LONG and config.attention == "xla")
        devices = (split_over, row_parts, head_parts, rows)
        return cls(parts, axis, block, is_cut, *devices)

    def split(self, x: jax.Array) -> jax.Array:
        """Let each device hold its columns of an array of shape (B, T, ...)."""
        return self.held(x, self.axis)

    def held(self, x: jax.Array, columns: str | None) -> jax.Array:
        """Split the columns of an array of shape (B, T, ...) over an axis, if any."""
        if self.parts == 1:
            return x
        free = PartitionSpec.UNCONSTRAINED
        rows = free if self.rows is None or len(x) == 1 else self.rows
        spec = PartitionSpec(rows, columns, *(free,) * (x.ndim - 2))
        return jax.lax.with_sharding_constraint(x, spec)

    def by_device(self, x: jax.Array) -> jax.Array:
        """Reshape an array (B, T, ...) to axes of devices and of each device's part.

        Four axes replace two: devices of rows and of columns, then each device's rows
        and columns.
        """
        size = (self.row_parts, len(x) // self.row_parts, self.parts, -1)
        return jnp.moveaxis(x.reshape(*size, *x.shape[2:]), 2, 1)

    def on_device(self, x: jax.Array) -> jax.Array:
        """Let each device hold its part of an array whose first axes are the devices.

        Adding such arrays needs no communication.
        """
        if self.parts == self.row_parts == 1:
            return x
        free = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 2)
        columns = self.axis if self.parts > 1 else None
        spec = PartitionSpec(self.rows if self.row_parts > 1 else None, columns, *free)
        return jax.lax.with_sharding_constraint(x, spec)


def _in_blocks(
    columns: Columns,
    segments: jax.Array | None,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
) -> jax.Array:
    num_rows, length, _, channels = query.shape
    parts, size = columns.parts, columns.block
    # Axes: row, device of the columns, block, query of the block, device of the
    # heads, key head, query of the head, channel.
    own = length // parts
    blocks = (num_rows, parts, -(-own // size), size)
    heads = (columns.head_parts, key.shape[2] // columns.head_parts)
    split = query.reshape(num_rows, parts, own, *heads, -1, channels)
    missing = blocks[2] * size - own
    split = jnp.pad(split, [(0, missing if axis == 2 else 0) for axis in range(7)])
    split = split.reshape(*blocks, *split.shape[3:])
    at = columns.split(jnp.arange(length)[None]).reshape(parts, own)
    at = jnp.pad(at, [(0, 0), (0, missing)]).reshape(blocks[1:])

    # The backward pass gathers again, so each device keeps its own columns alone.
    @jax.checkpoint
    def of_head(head: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        queries, *pair = head
        gathered: list[Any] = [_gathered(columns, x) for x in pair]
        keys, values = gathered

        @jax.checkpoint
        def of_block(block: tuple[jax.Array, jax.Array]) -> jax.Array:
            query, at = block
            scores = jnp.einsum(
                "bpqhrc,bpkhc->bphrqk",
                query,
                keys,
                preferred_element_type=jnp.float32,
            )
            sees = (at[..., None] >= jnp.arange(length))[None]
            if segments is not None:
                of_query = segments[:, at]
                sees &= of_query[..., None] == segments[:, None, None]
            scores = scores / math.sqrt(channels)
            scores = jnp.where(sees[:, :, None, None], scores, -jnp.inf)
            shares = jax.nn.softmax(scores).astype(values.dtype)
            return jnp.einsum("bphrqk,bpkhc->bpqhrc", shares, values)

        return jax.lax.map(of_block, (queries, jnp.moveaxis(at, 1, 0)))

    # A loop over heads outside: a block then adds to the gradient of one head, and only
    # its keys and values are gathered at a time.
    by_head = (x.reshape(num_rows, length, *heads, channels) for x in (key, value))
    keys, values = (jnp.moveaxis(x, 3, 0) for x in by_head)
    queries = jnp.moveaxis(split, (5, 2), (0, 1))
    mixed = jax.lax.map(of_head, (queries, keys, values))
    mixed = jnp.moveaxis(mixed, (0, 1), (5, 2))
    mixed = mixed.reshape(num_rows, parts, -1, *mixed.shape[4:])[:, :, :own]
    return mixed.reshape(query.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gathered(columns: Columns, x: jax.Array) -> jax.Array:
    """Let each device hold all columns, and of the gradient only its own sum.

    The result has an axis of devices after the axis of rows. So the blocks of a device
    add to a gradient that stays there, and that crosses devices once, when all blocks
    are done.
    """
    whole = columns.held(x, None)[:, None]
    return columns.split(jnp.broadcast_to(whole, (len(x), columns.parts, *x.shape[1:])))


def _gathered_forward(columns: Columns, x: jax.Array) -> tuple[jax.Array, None]:
    return _gathered(columns, x), None


def _gathered_backward(
    columns: Columns, _: None, change: jax.Array
) -> tuple[jax.Array]:
    return (columns.split(change.sum(axis=1)),)


_gathered.defvjp(_gathered_forward, _gathered_backward)
