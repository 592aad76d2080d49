"""JAX's persistent compilation cache, on unless the user has decided."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Let compiled programs be kept between runs, in one folder for the user.

    Whoever has set `jax_compilation_cache_dir`, by `jax.config` or by the environment,
    keeps that. The folder is `$XDG_CACHE_HOME/roxxel/jax`, or `~/.cache/roxxel/jax`.
    """
    settings = jax.config.values
    chosen = settings["jax_compilation_cache_dir"]
    if chosen or not settings["jax_enable_compilation_cache"]:
        return
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "roxxel" / "jax"))
