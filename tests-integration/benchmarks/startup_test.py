"""The benchmark of the imports runs once, small."""

from __future__ import annotations

from . import startup


def test_start_up() -> None:
    found = startup.main(["--rounds", "1", "roxxel_format", "numpy"])

    assert list(found) == ["roxxel_format", "numpy"]
