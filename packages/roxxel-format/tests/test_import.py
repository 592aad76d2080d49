from __future__ import annotations

import subprocess
import sys


def test_importing_loads_numpy_and_nothing_heavy() -> None:
    program = (
        "import sys, roxxel_format; "
        "heavy = {'jax', 'ml_dtypes', 'pyarrow', 'tokenizers', 'argparse', 'asyncio', "
        "'importlib.metadata'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )

    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        check=True,
        text=True,
    )

    assert result.stdout == "[]\n"


def test_every_public_name_exists() -> None:
    import roxxel_format

    for name in roxxel_format.__all__:
        assert getattr(roxxel_format, name) is not None
