# /// script
# requires-python = ">=3.11"
# dependencies = ["array-record==0.8.*", "grain==0.2.18", "jax", "numpy"]
# ///
"""grain over ArrayRecord and over a memory map, with threads and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from serve import Corpus, Job, Source, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "samples.array_record"


class Windows:
    """The samples of a memory-mapped line, a random-access source."""

    def __init__(self, source: Source, job: Job) -> None:
        self._line = np.asarray(np.memmap(source.flat, job.dtype, "r"))
        self._length = job.seq_len

    def __len__(self) -> int:
        return len(self._line) // self._length

    def __getitem__(self, index: int) -> np.ndarray:
        start = index * self._length
        return self._line[start : start + self._length].astype(np.int32)


def write(corpus: Corpus, folder: Path, seq_len: int | None) -> None:
    writer = ArrayRecordWriter(str(folder / NAME), "group_size:1,uncompressed")
    for record in corpus.records(seq_len):
        writer.write(record.tobytes())
    writer.close()


def samples(source: Source, job: Job) -> grain.MapDataset:
    if "map" in job.variant:
        return grain.MapDataset.source(Windows(source, job))
    records = grain.sources.ArrayRecordDataSource(str(source.folder / NAME))
    return grain.MapDataset.source(records).map(
        lambda record: np.frombuffer(record, job.dtype).astype(np.int32)
    )


def batches(job: Job) -> Iterator[np.ndarray]:
    parts = [samples(s, job).seed(job.seed).shuffle() for s in job.sources]
    order = parts[0]
    if len(parts) > 1:
        order = grain.MapDataset.mix(parts, [s.weight for s in job.sources])
    if job.process_count > 1:
        order = order[job.process_index :: job.process_count]
    whole = order.batch(job.process_batch_size, drop_remainder=True)[job.start :]
    threads = {} if "threads" in job.variant else {"num_threads": 0}
    return iter(whole.to_iter_dataset(grain.ReadOptions(**threads)))


serve(batches, write, packages=("grain", "array-record"))
