"""The count of modules runs, and the paths stay as short as they are."""

from __future__ import annotations

from . import paths

MOST = {
    "a document written": 12,
    "a batch": 11,
    "a save": 13,
    "a restore": 12,
    "a save in a bucket": 18,
    "a restore in a bucket": 17,
}
"""Modules of each path, at most."""


def test_paths_are_short() -> None:
    found = paths.main()

    counts = {name: len(found[name]) for name in MOST}
    assert all(counts[name] <= most for name, most in MOST.items()), counts
