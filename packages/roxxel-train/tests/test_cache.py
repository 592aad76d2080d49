from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax
from roxxel_train._cache import use_compilation_cache
use_compilation_cache()
print(jax.config.values["jax_compilation_cache_dir"])
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"XDG_CACHE_HOME": "shared"}, "shared/roxxel/jax"),
        ({"JAX_COMPILATION_CACHE_DIR": "mine"}, "mine"),
        ({"JAX_ENABLE_COMPILATION_CACHE": "false"}, "None"),
    ],
)
def test_cache_is_on_unless_the_user_has_decided(
    settings: dict[str, str], expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == expected
