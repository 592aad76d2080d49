from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roxxel_train._files.mirror import fetch_run
from roxxel_train._step.compiled import kernel_options, use_compilation_cache

PROGRAM = """
import jax
import jax.numpy as jnp
from roxxel_train._step.compiled import use_compilation_cache
use_compilation_cache()
print(jax.config.values["jax_compilation_cache_dir"])
"""

SMALL = PROGRAM + "jax.jit(lambda x: x + 3)(jnp.ones(5)).block_until_ready()"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"XDG_CACHE_HOME": "shared"}, "shared/roxxel/jax"),
        ({"JAX_COMPILATION_CACHE_DIR": "mine"}, "mine"),
        ({"JAX_ENABLE_COMPILATION_CACHE": "false"}, "None"),
    ],
)
def test_cache_is_on_unless_the_user_has_decided(
    settings: dict[str, str], expected: str, tmp_path: Path
) -> None:
    done = forked.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == expected


def test_without_a_home_programs_compile_in_silence_and_a_note_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        (note,) = use_compilation_cache()
        chosen = jax.config.values["jax_compilation_cache_dir"]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)

    assert "/dev/null/nobody" in note
    assert note.endswith("set XDG_CACHE_HOME to a folder that can be written")
    assert chosen is None


def test_a_run_in_a_bucket_names_the_setting_if_no_home_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)

    with pytest.raises(FileNotFoundError, match="XDG_CACHE_HOME"):
        fetch_run("s3://bucket/run")


@pytest.mark.parametrize(
    ("settings", "is_taken"),
    [({}, True), ({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "60"}, False)],
)
def test_cache_takes_programs_that_compile_fast_unless_the_user_has_decided(
    settings: dict[str, str], is_taken: bool, tmp_path: Path
) -> None:
    forked.run(
        [sys.executable, "-c", SMALL],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), **settings},
        check=True,
    )

    assert any(tmp_path.rglob("*-cache")) == is_taken


def gpu_mesh(platform: str) -> Any:
    """Return what `kernel_options` reads of a mesh; no GPU is needed."""
    return SimpleNamespace(devices=np.asarray([SimpleNamespace(platform=platform)]))


@pytest.mark.parametrize("platform", ["gpu", "cuda", "rocm"])
def test_compiler_keeps_the_choice_of_gpu_kernels_in_the_folder_of_the_run(
    platform: str, tmp_path: Path
) -> None:
    options = kernel_options(gpu_mesh(platform), tmp_path / "run")

    (folder,) = map(str, options.values())
    assert Path(folder).is_dir()
    assert Path(folder).is_relative_to(tmp_path / "run" / "autotune")
    # The compiler refuses the name of an option that it does not know.
    jax.jit(jnp.sin).lower(1.0).compile(compiler_options=options)


@pytest.mark.parametrize(("platform", "has_folder"), [("cpu", True), ("gpu", False)])
def test_without_a_gpu_or_a_folder_no_choice_is_kept(
    platform: str, tmp_path: Path, *, has_folder: bool
) -> None:
    folder = tmp_path / "run" if has_folder else None

    assert kernel_options(gpu_mesh(platform), folder) == {}
    assert not (tmp_path / "run").exists()
