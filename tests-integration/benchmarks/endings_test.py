"""The benchmark `endings.py` runs once, small."""

from __future__ import annotations

from . import endings


def test_endings() -> None:
    found = endings.main(["raises after"])

    ending = found["raises after", 2]
    assert (ending.named, ending.expected) == (2, 2)
    assert ending.codes == [1, 1]
    assert ending.reason.startswith("process 1 failed: OSError")
