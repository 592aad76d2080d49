"""The formats of input files: the endings of their names."""

from __future__ import annotations

COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
"""The endings of compressed files."""


def is_compressed(path: str) -> bool:
    """Return whether the name of a file says that it is compressed."""
    return path.lower().endswith(COMPRESSED)


def uncompressed(path: str) -> str:
    """Return a name without the ending of a compressed file."""
    return path.rpartition(".")[0] if is_compressed(path) else path
