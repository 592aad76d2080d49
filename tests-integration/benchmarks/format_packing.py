"""Measures packing against concatenation: documents per second, padding, and cuts.

The lengths are like those of web pages: lognormal, 1 104 tokens on average. "cut" is
the share of documents that concatenation cuts although they would fit into a sequence.
The second table writes a corpus of such documents, packed and not.

    python tests-integration/benchmarks/format_packing.py
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from roxxel_format import Roxxel
from roxxel_format._write.packing import best_fit

if TYPE_CHECKING:
    import numpy.typing as npt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    pack(options.documents)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.documents // 10)


def lengths(num_documents: int) -> npt.NDArray[np.int64]:
    """Return lengths like those of web pages."""
    random = np.random.default_rng(0)
    return np.maximum(1, random.lognormal(6.4, 1.1, num_documents)).astype(np.int64)


def pack(num_documents: int) -> None:
    """Print the speed of packing and what it saves."""
    print(f"{'unit':>8} {'documents/s':>12} {'padding':>10} {'cut':>8}")
    sizes = lengths(num_documents)
    stops = np.cumsum(sizes)
    for unit in (2049, 4097, 8193, 131_073):
        fits = sizes <= unit
        began = time.process_time()
        bins = best_fit(sizes[fits], unit)
        elapsed = time.process_time() - began
        padding = 1 - sizes[fits].sum() / ((int(bins.max()) + 1) * unit)
        is_cut = ((stops - 1) // unit != (stops - sizes) // unit)[fits]
        print(
            f"{unit:>8,} {fits.sum() / elapsed:>12,.0f} {padding:>10.4%} "
            f"{is_cut.mean():>8.1%}"
        )


def write(folder: Path, num_documents: int) -> None:
    """Print the speed of a write with and without packing."""
    sizes = lengths(num_documents)
    line = np.random.default_rng(1).integers(0, 50_000, int(sizes.max()), np.uint16)
    for unit in (None, 4097):
        corpus = Roxxel(folder / f"{unit}_*.rox")
        began = time.process_time()
        corpus.write((line[:size] for size in sizes.tolist()), separator=0, pack=unit)
        speed = num_documents / (time.process_time() - began)
        print(f"write with pack={unit}: {speed:,.0f} documents/s")


if __name__ == "__main__":
    main()
