"""Roxxel: a curriculum's sampler for numpy, device_stream for jax.Array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_format import Roxxel
from serve import Corpus, Job, Source, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "corpus.rox"
BLEND_STEPS = 1 << 20
AHEAD = 4


def write(corpus: Corpus, folder: Path, seq_len: int | None) -> None:
    del seq_len
    Roxxel(folder / NAME).write(corpus.documents(), dtype=corpus.line.dtype)


def reader_of(source: Source, variant: str) -> Roxxel:
    """Return the corpus; in the variant "folder", the shards in the folder."""
    return Roxxel(source.folder if variant == "folder" else source.folder / NAME)


def sampler_of(job: Job) -> Sampler:
    """Return the sampler of one epoch, or of a long run of a blend."""
    readers = [reader_of(source, job.variant) for source in job.sources]
    size = job.batch_size, job.seq_len
    if len(readers) == 1:
        return Curriculum(readers[0], [Phase(None, *size, epochs=1)]).sampler(job.seed)
    names = ["self", *(f"s{n}" for n in range(1, len(readers)))]
    weights = {
        name: source.weight for name, source in zip(names, job.sources, strict=True)
    }
    mix = dict(zip(names[1:], readers[1:], strict=True))
    phase = Phase(BLEND_STEPS, *size, weights)
    return Curriculum(
        readers[0], [phase], mix, policies=dict.fromkeys(names, "repeat")
    ).sampler(job.seed)


def batches(job: Job) -> Iterator[Any]:
    sampler = sampler_of(job)
    steps = range(job.start, sampler.total_steps)
    if job.to == "jax":
        import jax
        from jax.sharding import NamedSharding, PartitionSpec
        from roxxel_loader import device_stream, make_data_parallel_sharding_config

        config = make_data_parallel_sharding_config()
        mesh = config.create_device_mesh(jax.devices()[:1])
        sharding = NamedSharding(mesh, PartitionSpec("data", None))
        return device_stream(sampler, steps.start, steps.stop, sharding)
    if job.process_count > 1:
        first = job.process_index * job.process_batch_size
        rows = slice(first, first + job.process_batch_size)
        return (sampler.rows(step, rows) for step in steps)
    if job.variant == "hints":
        return hinted(sampler, steps)
    return map(sampler.batch, steps)


def hinted(sampler: Sampler, steps: range) -> Iterator[Any]:
    """Yield batches, and hint to the sampler the next four to eight steps."""
    sampler.will_need(steps.start, AHEAD)
    for step in steps:
        if (step - steps.start) % AHEAD == 0:
            sampler.will_need(step + AHEAD, AHEAD)
        yield sampler.batch(step)


serve(batches, write, packages=("roxxel-format",), gives="both")
