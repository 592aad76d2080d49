"""Inspect a compiled program, and measure how long it takes."""

from __future__ import annotations

import re
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
from jax.profiler import ProfileData, ProfileOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_TRITON = re.compile(r'"kind":"(__triton[^"]*)"')
_WIDE = re.compile(r"= \(?f32\[([\d,]+)\].* (dot|custom-call)\(")
_LARGE = 1 << 24
"""Number of values in a float32 result from which a product is named."""


def seconds(function: Callable[..., Any], *arguments: Any, calls: int = 20) -> float:
    """Return the mean time of a call, with the device kept busy; compile first."""
    jax.block_until_ready(function(*arguments))
    begin = perf_counter()
    result = None
    for _ in range(calls):
        result = function(*arguments)
    jax.block_until_ready(result)
    return (perf_counter() - begin) / calls


def reason(error: BaseException) -> str:
    """Return an error in one line of limited length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def program_facts(program: Any) -> dict[str, Any]:
    """Return the kernels that a compiled program calls, and the memory that it needs.

    `custom_calls` are kernels of libraries by name: `__cudnn$fmha...` is fused
    attention, `__cublas$lt$matmul...` and `__cublas$gemm` are products. `wide_products`
    are large products whose result is float32.
    """
    text = program.as_text()
    wide = Counter(
        f"{found[2]} f32[{found[1]}]"
        for found in _WIDE.finditer(text)
        if _numbers(found[1]) >= _LARGE
    )
    memory = program.memory_analysis()
    names = ("temp_size_in_bytes", "argument_size_in_bytes")
    return {
        "custom_calls": dict(Counter(_TARGET.findall(text)).most_common(20)),
        "triton": dict(Counter(_TRITON.findall(text))),
        "wide_products": dict(wide.most_common(20)),
        "hlo_lines": text.count("\n"),
        **{name: getattr(memory, name, None) for name in names},
    }


def fused_attention(facts: dict[str, Any]) -> bool:
    """Return whether a program calls cuDNN's fused attention."""
    return any("fmha" in name for name in facts["custom_calls"])


def kernels(folder: Path, work: Callable[[], object], steps: int) -> dict[str, Any]:
    """Trace `work`, which makes `steps` updates; return where a step's time goes.

    Returns:
        `kernel_ms` and `idle_ms` per step, and the slowest kernels: name, and
        milliseconds and calls per step.
    """
    options = ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(folder), profiler_options=options)
    work()
    jax.profiler.stop_trace()
    [path] = folder.rglob("*.xplane.pb")
    return kernels_of(ProfileData.from_file(str(path)), steps)


def kernels_of(profile: Any, steps: int) -> dict[str, Any]:
    """Return the fields of `kernels` from a profile."""
    planes = sorted(profile.planes, key=lambda plane: plane.name)
    device = [plane for plane in planes if plane.name.startswith("/device:GPU:")][:1]
    totals: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []
    for plane in device:
        for line in plane.lines:
            if not line.name.startswith("Stream #"):
                continue
            for event in line.events:
                totals[event.name] += event.duration_ns
                calls[event.name] += 1
                spans.append((event.start_ns, event.start_ns + event.duration_ns))
    if not spans:
        names = [plane.name for plane in planes]
        return {"failed": f"the trace has no kernel of a GPU, only the planes {names}"}
    busy, until = 0.0, 0.0
    for begin, end in sorted(spans):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    whole = until - min(begin for begin, _ in spans)
    unit = 1e6 * steps
    return {
        "kernel_ms": busy / unit,
        "idle_ms": (whole - busy) / unit,
        "slowest": [
            [name[:120], round(total / unit, 4), calls[name] / steps]
            for name, total in totals.most_common(40)
        ],
    }


def _numbers(dimensions: str) -> int:
    product = 1
    for each in dimensions.split(","):
        product *= int(each)
    return product
