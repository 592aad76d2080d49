"""How programs are compiled in these tests."""

from __future__ import annotations

import os

# Before JAX looks: without LLVM's optimizations a program compiles in half the time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
