# /// script
# requires-python = ">=3.11"
# dependencies = ["jax", "numpy", "roxxel==0.9.14"]
# ///
"""The original roxxel, with its prefetch thread and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel import Roxxel
from serve import Corpus, Job, Source, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import jax


def path_of(source: Source) -> str:
    return str(source.folder / "corpus.rox")


def write(corpus: Corpus, folder: Path, seq_len: int | None) -> None:
    del seq_len
    name = str(corpus.line.dtype)
    Roxxel(str(folder / "corpus.rox")).write(corpus.documents(), dtype=name)


def batches(job: Job) -> Iterator[jax.Array]:
    # It knows nothing of processes but their devices: each draws the same rows.
    readers = [Roxxel(path_of(source)) for source in job.sources]
    for reader in readers:
        reader.open()
    names = ["self", *(f"s{n}" for n in range(1, len(readers)))]
    blend = {}
    if len(readers) > 1:
        weights = [source.weight for source in job.sources]
        blend = {
            "mix_datasets": dict(zip(names[1:], readers[1:], strict=True)),
            "weights": dict(zip(names, weights, strict=True)),
        }
    stream = readers[0].stream(
        job.seq_len,
        job.process_batch_size,
        job.seed,
        start_step=job.start,
        prefetch_size=4 if job.variant == "threads" else 0,
        **blend,
    )
    try:
        yield from stream
    finally:
        stream.close()


serve(batches, write, packages=("roxxel",), gives="jax")
