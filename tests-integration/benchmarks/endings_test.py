"""The benchmark `endings.py` runs once, small."""

from __future__ import annotations

from . import endings


def test_endings() -> None:
    found = endings.main(["raises after"])

    ending = found["raises after"]
    assert (ending.named, ending.expected) == (2, 2)
