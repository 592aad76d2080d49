"""A window is copied once on the host: from its file into the memory that JAX keeps.

Counted by memory addresses: what the corpora fill is what the devices hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_loader import device_stream

from .helpers import CountingSource, sharded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

NAMES = ("self", "a", "b", "c", "d")


class Watched(Roxxel):
    """A corpus that notes the first and last byte of each row that it fills."""

    rows: list[tuple[int, int]]

    def with_version(self, fingerprint: str) -> Watched:
        assert fingerprint == self.fingerprint
        self.rows = []
        return self

    def read_into(
        self,
        starts: npt.ArrayLike,
        out: npt.NDArray[Any],
        rows: Sequence[int] | None = None,
    ) -> None:
        super().read_into(starts, out, rows)
        for row in range(len(out)) if rows is None else rows:
            first = out[row].ctypes.data
            self.rows.append((first, first + out[row].nbytes))


def watched(folder: Path, name: str) -> Watched:
    path = folder / f"{name}.rox"
    tokens = np.random.default_rng(len(name)).integers(0, 99, 9000)
    Roxxel(path).write([tokens], dtype="uint16")
    return Watched(path)


@pytest.mark.parametrize("fields", [("tokens",), ("tokens", "segment_ids")])
@pytest.mark.parametrize("mesh", [(1, 1), (8, 1), (4, 2)])
@pytest.mark.parametrize("names", [NAMES[:1], NAMES])
def test_the_memory_that_corpora_fill_is_what_devices_hold(
    names: tuple[str, ...], mesh: tuple[int, int], fields: Any, tmp_path: Path
) -> None:
    corpora = {name: watched(tmp_path, name) for name in names}
    curriculum = Curriculum(
        corpora["self"],
        [Phase(3, 16, 66, dict.fromkeys(names, 1))],
        {name: each for name, each in corpora.items() if name != "self"},
    )
    sampler = curriculum.sampler(1, fields=fields)

    with device_stream(sampler, 0, 2, sharded(mesh, "a", "b"), workers=0) as stream:
        batches = [next(stream), next(stream)]

    filled = {row for corpus in corpora.values() for row in corpus.rows}
    held: set[tuple[int, int]] = set()
    for step, batch in enumerate(batches):
        tokens = batch if fields == ("tokens",) else batch["tokens"]
        whole = sampler.batch(step)
        expected = whole if fields == ("tokens",) else whole["tokens"]
        assert np.array_equal(np.asarray(tokens), expected)
        for shard in tokens.addressable_shards:
            rows, columns = shard.data.shape
            first, size = shard.data.unsafe_buffer_pointer(), columns * 4
            held |= {(first + at * size, first + (at + 1) * size) for at in range(rows)}
    assert held <= filled
    assert len(held) == 2 * 16 * mesh[1]


class Filling(CountingSource):
    """A source that fills the arrays of the loader, and may give others."""

    dtype = np.dtype(np.int32)

    def rows(
        self, step: int, rows: slice, columns: slice | None = None, out: Any = None
    ) -> Any:
        out[...] = super().rows(step, rows, columns)
        return out


def test_a_source_that_returns_other_memory_is_copied() -> None:
    class Ignoring(Filling):
        def rows(
            self, step: int, rows: slice, columns: slice | None = None, out: Any = None
        ) -> Any:
            assert out.shape == (2, 24)
            values = super().rows(step, rows, columns, out).copy()
            out[...] = -1
            return values

    source = Ignoring()

    batches = list(device_stream(source, 0, 3, sharded((8,), "a"), workers=0))

    for step, batch in enumerate(batches):
        assert (np.asarray(batch) == source.whole(step)).all()


def test_a_leaf_that_is_split_otherwise_is_put_together() -> None:
    class WithFirst(Filling):
        def rows(
            self, step: int, rows: slice, columns: slice | None = None, out: Any = None
        ) -> Any:
            tokens = super().rows(step, rows, columns, out)
            return {"tokens": tokens, "first": tokens[:, 0].copy()}

    def sharding_of(shape: tuple[int, ...]) -> Any:
        return sharded((8,), "a") if len(shape) == 2 else sharded((8,))

    source = WithFirst()

    [batch] = device_stream(source, 0, 1, sharding_of, workers=0)

    assert batch["first"].is_fully_replicated
    assert (np.asarray(batch["first"]) == source.whole(0)[:, 0]).all()
    assert (np.asarray(batch["tokens"]) == source.whole(0)).all()
