"""Files of the compiler: programs of the user, choices of GPU kernels of a run."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from jax.sharding import Mesh


def use_compilation_cache() -> None:
    """Turn on JAX's persistent compilation cache unless the user has configured it.

    The folder is `$XDG_CACHE_HOME/roxxel/jax`, or `~/.cache/roxxel/jax`. A
    `jax_compilation_cache_dir` from `jax.config` or the environment stays.
    """
    settings = jax.config.values
    chosen = settings["jax_compilation_cache_dir"]
    if chosen or not settings["jax_enable_compilation_cache"]:
        return
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "roxxel" / "jax"))


def kernel_options(mesh: Mesh, run_folder: Path | None) -> dict[str, str | bool]:
    """Return options of the compiler that keep the choice of GPU kernels with a run.

    For a GPU, XLA times several kernels and picks the fastest. On a busy GPU, or after
    a restart, another kernel may win, which sums in another order. With these options
    XLA reads earlier choices from `autotune/` in the run's folder and adds new ones.

    Args:
        mesh: The devices to compile for.
        run_folder: Folder of the run; None keeps no choices.

    Returns:
        The options, for `lowered.compile(compiler_options=...)`; none for other devices
        than GPUs.
    """
    if run_folder is None or mesh.devices.flat[0].platform not in _GPUS:
        return {}
    # XLA does not create the folder, and does not check the version of its files.
    folder = run_folder / "autotune" / metadata.version("jaxlib")
    folder.mkdir(parents=True, exist_ok=True)
    return {"xla_gpu_per_fusion_autotune_cache_dir": str(folder.absolute())}


_GPUS = {"gpu", "cuda", "rocm"}
