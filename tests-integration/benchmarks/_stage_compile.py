"""Compiles the program of a second phase while the device is busy, or idle.

XLA times kernels on the device and picks the fastest. A program that is compiled while
the device trains may therefore differ from a program that is compiled on an idle
device. The caches of compiled programs and of these choices must be off.
"""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from _decoder import jit_update, make_state
from _pretraining import Job, device_fields, phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel import Phase

STEPS = 3
"""Updates whose results are compared."""

_METADATA = re.compile(r",? metadata=\{[^{}]*\}")
_NAME = re.compile(r"%[A-Za-z_][\w.\-]*")


def compile_busy(job: Job) -> dict[str, Any]:
    """Compile the second phase's update while the first phase's keeps running."""
    return _compiled(job, busy=True)


def compile_idle(job: Job) -> dict[str, Any]:
    """Compile the second phase's update on an idle device."""
    return _compiled(job, busy=False)


def _compiled(job: Job, *, busy: bool) -> dict[str, Any]:
    size = job.decoder
    graphdef, state = make_state(size, 2 * size.context)
    update = jit_update(graphdef)
    second = _batch(phase(size, 1, longer=2), size.vocabulary)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    lowered = update.lower(shapes, jax.ShapeDtypeStruct(second.shape, second.dtype))
    updates_meanwhile = 0
    if busy:
        first = jax.device_put(_batch(phase(size, 1), size.vocabulary))
        _, other = make_state(size, 2 * size.context)
        other, scalars = update(other, first)
        jax.block_until_ready(other)
        with ThreadPoolExecutor(1) as thread:
            compiling = thread.submit(lowered.compile)
            while not compiling.done():
                other, scalars = update(other, first)
                scalars["loss"].block_until_ready()
                updates_meanwhile += 1
            program = compiling.result()
        del other, scalars
    else:
        program = lowered.compile()
    text = normalised(program.as_text())
    path = job.folder / f"{'busy' if busy else 'idle'}.hlo"
    path.write_text(text)
    return {
        **device_fields(),
        "updates_meanwhile": updates_meanwhile,
        "hlo_lines": text.count("\n"),
        "hlo_sha256": hashlib.sha256(text.encode()).hexdigest(),
        **_results(program, state, second),
    }


def _batch(of: Phase, vocabulary: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(0)
    shape = (of.batch_size, of.seq_len)
    return random.integers(0, vocabulary, shape).astype(np.int32)


def _results(
    program: Callable[..., Any], state: Any, batch: np.ndarray[Any, Any]
) -> dict[str, Any]:
    """Return losses bit for bit, and a digest of every array after the updates."""
    losses: list[str] = []
    for _ in range(STEPS):
        state, scalars = program(state, jax.device_put(batch))
        losses.append(float(scalars["loss"]).hex())
    bits = jax.jit(
        lambda leaves: [
            jax.lax.bitcast_convert_type(leaf, jnp.uint32).sum(dtype=jnp.uint32)
            for leaf in leaves
        ]
    )
    sums = [int(value) for value in bits(jax.tree.leaves(state))]
    digest = hashlib.sha256(str(sums).encode()).hexdigest()
    return {"losses": losses, "state_sha256": digest}


def normalised(text: str) -> str:
    """Return the text of a program without the parts that do not change its results.

    Removes metadata (source lines), and replaces names by numbers in the order of their
    first use. Keeps the backend settings, which name the chosen kernels.
    """
    numbers = count()
    known: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        name = match.group()
        if name not in known:
            known[name] = f"%{next(numbers)}"
        return known[name]

    lines = _NAME.sub(number, _METADATA.sub("", text)).splitlines()
    # The first line names the module, the last ones list source files.
    kept = [line for line in lines[1:] if line.startswith((" ", "%", "}", "ENTRY"))]
    return "\n".join(kept) + "\n"
