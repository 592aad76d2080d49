"""Make the golden files of a format version; run once, when the version is new.

The files are never made again: they stand for what earlier releases have written.
Usage: python make_golden.py SHARDS_FOLDER MANIFEST_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from roxxel_format import Roxxel

CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "uint16": ([[1, 2, 3], [], [65535], list(range(700))], {"separator": 0}),
    "int64": ([np.array([-(2**63), 2**63 - 1])], {"metadata": {"source": "gold"}}),
    "float32": ([np.array([0.5, -0.0, np.inf], np.float32)], {}),
    "bool": ([np.array([True, False])], {}),
    "uint8": (["Größe", "b"], {"separator": b"\n\n"}),
    "bfloat16": ([np.array([0x3F80, 0xFFFF], np.uint16)], {"dtype": "bfloat16"}),
    "large_*": ([list(range(3000)), [7]], {"separator": 9, "max_shard_bytes": 12000}),
}


APPENDED = ([[1, 2, 3], [4], list(range(3000))], [[5, 6], []])
"""Documents of the two versions of the corpus with a manifest."""

SEPARATOR = 9


def main() -> None:
    folder = Path(sys.argv[1])
    for name, (documents, options) in CASES.items():
        corpus = Roxxel(folder / f"{name}.rox")
        corpus.write(documents, block_size=512, exist="error", **options)
    make_manifest(Path(sys.argv[2]))


def make_manifest(folder: Path) -> None:
    corpus = Roxxel(folder / "g_*.rox")
    for documents in APPENDED:
        corpus.write(
            documents,
            SEPARATOR,
            block_size=512,
            max_shard_bytes=12000,
            vocab_size=3000,
            exist="append",
        )
    corpus.write_column("even", corpus.tokens[:] % 2 == 0)
    corpus.write_column("name", [f"n{i}" for i in range(5)], "document")


if __name__ == "__main__":
    main()
