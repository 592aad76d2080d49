"""How XLA compiles in tests and in their programs: quickly, whatever then runs slowly.

The optimizations of LLVM make a small update compile in twice the time. Without them,
the newer emitters of fusions and the threads take five sixths of the rest: 0.65 s of
CPU instead of 0.1. Later versions of XLA have only those emitters.
"""

from __future__ import annotations

from importlib.metadata import version

_HAS_OLDER_EMITTERS = tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10)

QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false" * _HAS_OLDER_EMITTERS
)
"""A part of `XLA_FLAGS`, which is set before JAX looks for its devices."""
