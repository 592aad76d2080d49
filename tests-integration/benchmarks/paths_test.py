"""The count of modules runs, and the paths stay as short as they are."""

from __future__ import annotations

from . import paths

MOST = {
    "a document written": 4,
    "a write": 28,
    "a prepared file": 46,
    "a batch": 12,
    "a save": 20,
    "a restore": 19,
    "a save in a bucket": 19,
    "a restore in a bucket": 20,
    "ls": 16,
    "report": 55,
    "a refused replay": 63,
}
"""Modules of each path, at most."""


def test_paths_are_short() -> None:
    found = paths.main()

    counts = {name: len(found[name].modules) for name in MOST}
    assert all(counts[name] <= most for name, most in MOST.items()), counts
