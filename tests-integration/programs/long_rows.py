"""Prints what a device needs and receives for a gradient of one long row.

    python tests-integration/programs/long_rows.py 131072 [small [none]]

prints a line of JSON for each size of the axis `context`, as the compiler plans it for
devices of the CPU: for a preset, and what its backward pass computes again.

    python tests-integration/programs/long_rows.py meshes 131072 large full

does so for other ways to split a row over eight devices.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel.models import Llama, LlamaConfig, next_token_loss
from roxxel.recipe.llama_config import llama_config

# On a CPU, the compiler merges what the backward pass computes again with what the
# forward pass has computed, unless this pass is left out; on accelerators it does not.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 "
    f"{os.environ.get('XLA_FLAGS', '')} --xla_disable_hlo_passes=cse_barrier_expander"
)

_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=\{?(%[\w., %-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


def planned(config: LlamaConfig, axes: dict[str, int], length: int) -> dict[str, int]:
    """Return what the compiler plans for a device and a row of `length` targets.

    `kept` are the bytes that a device needs beside model and optimizer, `products` the
    operations of its matrix products, and the others how many numbers its collectives
    give it. They are numbers, not bytes, as a CPU sends bfloat16 as float32.
    """
    shape = tuple(axes.values())
    mesh = Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), (*axes,))
    whole = NamedSharding(mesh, PartitionSpec())
    with jax.set_mesh(mesh):
        graph, state = nnx.split(
            nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
        )
        shapes = jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=NamedSharding(mesh, spec or whole.spec)
            ),
            state,
            nnx.get_partition_spec(state),
        )
        batch = jax.ShapeDtypeStruct((1, length + 1), jnp.int32, sharding=whole)

        def loss(state: Any, batch: Any) -> Any:
            return next_token_loss(nnx.merge(graph, state), batch, loss_chunk=4096)[0]

        program = jax.jit(jax.grad(loss)).lower(shapes, batch).compile()
    kept = program.memory_analysis().temp_size_in_bytes
    return {"kept": kept, **costs(program.as_text())}


def costs(program: str) -> Counter[str]:
    """Return the costs of a compiled program, the bodies of its loops by their trips.

    The compiler's own analysis counts a body once, however often it runs.
    """
    bodies: dict[str, list[str]] = {}
    body = entry = ""
    for line in program.splitlines():
        if head := re.match(r"(ENTRY )?(%[\w.-]+) \(.*\{$", line):
            body = head[2]
            bodies[body] = []
            entry = body if head[1] else entry
        elif body and " = " in line:
            bodies[body].append(line)
    found: dict[str, Counter[str]] = {}

    def of_body(name: str) -> Counter[str]:
        if name not in found:
            found[name] = Counter()
            sizes = {each: size for each, size in map(_result, bodies[name]) if each}
            for line in bodies[name]:
                found[name] += _own(line, sizes)
                trips = _TRIPS.search(line)
                times = int(trips[1]) if trips and " while(" in line else 1
                for called in re.findall(r"%[\w.-]+", "".join(_CALLED.findall(line))):
                    inner = of_body(called)
                    found[name] += Counter({k: times * n for k, n in inner.items()})
        return found[name]

    return of_body(entry)


def _result(line: str) -> tuple[str, list[int]]:
    """Return the name and the sizes of the array that a line of a program makes."""
    array = re.match(r"\s*(?:ROOT )?(%[\w.-]+) = \w+\[([\d,]*)\]", line)
    return (array[1], _sizes(array[2])) if array else ("", [])


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]


def _own(line: str, sizes: dict[str, list[int]]) -> Counter[str]:
    """Return what a line costs, without the programs that it calls."""
    made, _, rest = line.partition(" = ")
    if " dot(" in rest:
        first = re.search(r" dot\((%[\w.-]+)", rest)
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
        assert first
        assert axes
        over = [sizes[first[1]][axis] for axis in _sizes(axes[1])]
        own = sizes[made.split()[-1]]
        return Counter(products=2 * math.prod(own) * math.prod(over))
    for kind in _COLLECTIVES:
        if f" {kind}(" in rest:
            arrays = re.findall(r"\w+\[([\d,]*)\]", rest.partition(f" {kind}(")[0])
            return Counter({kind: sum(math.prod(_sizes(each)) for each in arrays)})
    return Counter()


def by_axis(length: int, preset: str = "small", remat: Any = "none") -> None:
    """Print a line of JSON for each size of the axis `context`."""
    config = llama_config(preset, context=length, remat=remat)
    for ways in (1, 2, 4, 8):
        found = planned(config, {"data": 1, "context": ways}, length)
        print(json.dumps({"context": ways, **found}), flush=True)


def by_mesh(length: int, preset: str, remat: Any) -> None:
    """Print a line of JSON for each way to split one row over eight devices."""
    for axes in (
        {"context": 8},
        {"context": 4, "tensor": 2},
        {"context": 2, "tensor": 4},
        {"tensor": 8},
    ):
        config = llama_config(
            preset,
            context=length,
            remat=remat,
            tensor_axis="tensor" if "tensor" in axes else None,
        )
        found = planned(config, {"data": 1, **axes}, length)
        print(json.dumps({**axes, **found}), flush=True)


if __name__ == "__main__":
    first, *given = sys.argv[1:]
    if first == "meshes":
        by_mesh(int(given[0]), *given[1:])
    else:
        by_axis(int(first), *given)
