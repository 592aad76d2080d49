"""Attention with segment masks: is each implementation right, and how fast is it?

A row holds several documents, and a token may see earlier tokens of its own document
only. A fused kernel that ignores the mask is fast and wrong, and the loss hides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from _accelerator_program import fused_attention, program_facts, reason, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelerator import Job, Record

LARGEST_ERROR = 2e-2
"""Allowed error of a bfloat16 result, relative to float32, in the norm of the whole
array.
"""
MODEL_PATHS = ("xla", "cudnn")
"""Implementations that `roxxel.models` offers; others are measured for comparison."""


def attention(job: Job, save: Callable[[Record], None]) -> None:
    """Compare every implementation with float32 and an explicit mask.

    Raises:
        RuntimeError: An implementation of `roxxel.models` is wrong.
    """
    on_gpu = jax.default_backend() == "gpu"
    rows, length, heads, channels = (2, 64, 2, 32) if job.dry else (16, 1024, 12, 64)
    random = np.random.default_rng(0)
    shape = (rows, length, heads, channels)
    query, key, value, change = (
        jnp.asarray(random.normal(size=shape), jnp.bfloat16) for _ in range(4)
    )
    segments = _segments(random, rows, length)
    found: dict[str, Record] = {}
    expected = _reference(query, key, value, change, segments)
    for name, function in _paths(segments, on_gpu=on_gpu).items():
        try:
            found[name] = _measured(
                function, (query, key, value, change), segments, expected
            )
        except Exception as error:  # noqa: BLE001
            # A path that does not run here is a result.
            found[name] = {"failed": reason(error)}
        save({"shape": shape, "paths": found})
    offered = [name for name in MODEL_PATHS if name in found]
    wrong = [name for name in offered if not found[name].get("right")]
    right = [name for name in offered if name not in wrong]
    right.sort(key=lambda name: found[name]["both_s"])
    save({"right": right})
    if wrong:
        raise RuntimeError(
            f"wrong attention of {', '.join(wrong)}: {[found[x] for x in wrong]}"
        )


def _segments(random: Any, rows: int, length: int) -> jax.Array:
    """Return documents of a third of a row on average, numbered from 1."""
    begins = random.random((rows, length)) < 3 / length
    begins[:, 0] = True
    begins[:, length // 2] = True
    return jnp.asarray(np.cumsum(begins, axis=1), jnp.int32)


def _mask(segments: jax.Array) -> jax.Array:
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def _paths(
    segments: jax.Array, *, on_gpu: bool
) -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Return every implementation by name; all take queries, keys and values."""

    def masked(implementation: Any) -> Callable[[Any, Any, Any], Any]:
        return lambda q, k, v: jax.nn.dot_product_attention(
            *(q, k, v),
            mask=_mask(segments),
            is_causal=True,
            implementation=implementation,
        )

    paths: dict[str, Callable[[Any, Any, Any], Any]] = {}
    rows = np.asarray(segments)
    if on_gpu:
        paths["cudnn"] = masked("cudnn")
    paths["xla"] = masked("xla")
    if on_gpu:
        paths["cudnn, causal only"] = lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation="cudnn"
        )
        paths["cudnn, packed"] = lambda q, k, v: _packed(q, k, v, rows)
        paths["pallas"] = lambda q, k, v: _pallas(q, k, v, segments)
    return paths


def _packed(q: Any, k: Any, v: Any, segments: np.ndarray[Any, Any]) -> Any:
    """Compute attention by cuDNN's packed layout, from private modules of JAX."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    rows = segments
    most = int(rows.max())
    lengths = np.full((len(rows), most), -1, np.int32)
    offsets = np.full((len(rows), most + 1), -1, np.int32)
    for index, row in enumerate(rows):
        counts = np.bincount(row)[1:]
        lengths[index, : len(counts)] = counts
        offsets[index, : len(counts) + 1] = np.concatenate([[0], np.cumsum(counts)])
    return fused.dot_product_attention(
        *(q, k, v),
        q_seqlen=jnp.asarray(lengths),
        kv_seqlen=jnp.asarray(lengths),
        q_offsets=jnp.asarray(offsets),
        kv_offsets=jnp.asarray(offsets),
        scale=q.shape[-1] ** -0.5,
        mask_type=fused.MaskType.PADDING_CAUSAL,
    )


def _pallas(q: Any, k: Any, v: Any, segments: jax.Array) -> Any:
    from jax.experimental.pallas.ops.gpu import attention as pallas

    scale = q.shape[-1] ** -0.5
    return pallas.mha(q, k, v, segments, sm_scale=scale, causal=True)


def _reference(
    query: jax.Array, key: jax.Array, value: jax.Array, change: jax.Array, segments: Any
) -> list[jax.Array]:
    """Return the result and the gradients in float32, by the definition."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqhc,bkhc->bhqk", q, k) * q.shape[-1] ** -0.5
        length = q.shape[1]
        seen = _mask(segments) & jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        return jnp.einsum("bhqk,bkhc->bqhc", weights, v)

    wide = [x.astype(jnp.float32) for x in (query, key, value)]
    with jax.default_matmul_precision("highest"):
        return _with_gradients(attend)(*wide, change.astype(jnp.float32))


def _with_gradients(function: Callable[..., Any]) -> Callable[..., list[jax.Array]]:
    def both(q: Any, k: Any, v: Any, change: Any) -> list[jax.Array]:
        out, back = jax.vjp(function, q, k, v)
        return [out, *back(change)]

    return jax.jit(both)


def _measured(
    function: Callable[..., Any],
    arrays: tuple[jax.Array, ...],
    segments: jax.Array,
    expected: list[jax.Array],
) -> Record:
    query, key, value, change = arrays
    both: Any = _with_gradients(function)
    program = both.lower(*arrays).compile()
    facts = program_facts(program)
    results = program(*arrays)
    errors = {
        name: float(
            jnp.linalg.norm((one.astype(jnp.float32) - other).ravel())
            / jnp.linalg.norm(other.ravel())
        )
        for name, one, other in zip(
            ("value", "d_query", "d_key", "d_value"), results, expected, strict=True
        )
    }
    # Other keys and values in the first documents must not move later documents.
    first = (segments == 1)[:, :, None, None]
    moved = program(
        query, jnp.where(first, -key, key), jnp.where(first, -value, value), change
    )
    crosses = bool(jnp.any((moved[0] != results[0]) & ~first))
    forward = jax.jit(function)
    return {
        "errors": errors,
        "crosses_documents": crosses,
        "right": max(errors.values()) < LARGEST_ERROR and not crosses,
        "is_fused": fused_attention(facts),
        "forward_s": seconds(forward, query, key, value),
        "both_s": seconds(program, *arrays),
        **facts,
    }
