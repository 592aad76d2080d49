"""One read of each source a batch, into one array, whatever the sources are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

NAMES = ("self", "a", "b", "c", "d")
FIELDS = ("tokens", "segment_ids", "positions", "loss_mask")


class Counted(Roxxel):
    """A corpus that notes the memory that it fills, and how often it is asked."""

    filled: list[tuple[int, int]]
    num_spans: int

    def read_into(
        self,
        starts: npt.ArrayLike,
        out: npt.NDArray[Any],
        rows: Sequence[int] | None = None,
    ) -> None:
        self.filled.append((out.ctypes.data, len(np.asarray(starts))))
        super().read_into(starts, out, rows)

    def window_spans(self, starts: npt.ArrayLike, length: int) -> Any:
        self.num_spans += 1
        return super().window_spans(starts, length)

    def with_version(self, fingerprint: str) -> Counted:
        assert fingerprint == self.fingerprint
        self.filled, self.num_spans = [], 0
        return self


def counted(folder: Path, name: str) -> Counted:
    path = folder / f"{name}.rox"
    documents = np.random.default_rng(0).integers(0, 99, (40, 50))
    Roxxel(path).write(list(documents), dtype="uint16")
    return Counted(path)


def sampler_of(corpora: dict[str, Any], fields: Sequence[Any]) -> Sampler:
    others = {name: each for name, each in corpora.items() if name != "self"}
    weights = dict.fromkeys(corpora, 1.0)
    phases = [Phase(8, 16, 65, weights)]
    return Curriculum(corpora["self"], phases, others).sampler(1, fields=fields)


@pytest.mark.parametrize("names", [NAMES[:1], NAMES])
def test_a_batch_asks_each_of_its_sources_once_and_fills_one_array(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    corpora = {name: counted(tmp_path, name) for name in names}
    sampler = sampler_of(corpora, FIELDS)

    tokens = sampler.batch(3)["tokens"]

    sources = np.bincount(sampler.windows(3).source, minlength=len(names))
    for size, corpus in zip(sources.tolist(), corpora.values(), strict=True):
        assert corpus.filled == [(tokens.ctypes.data, size)] * (size > 0)
        assert corpus.num_spans == (size > 0)


@pytest.mark.parametrize("fields", [("tokens",), FIELDS])
def test_rows_fill_the_array_that_the_caller_gives(fields: tuple[str, ...]) -> None:
    corpora = {name: PositionReader(5000, name) for name in NAMES}
    sampler = sampler_of(corpora, fields)
    whole = np.full((20, 100), -1, np.int32)
    out = whole[2:7, 3:13]

    found = sampler.rows(2, slice(4, 9), slice(5, 15), out=out)

    batch = sampler.batch(2)
    tokens = batch if fields == ("tokens",) else batch["tokens"]
    assert (found if fields == ("tokens",) else found["tokens"]) is out
    assert np.array_equal(out, tokens[4:9, 5:15])
    assert (whole != -1).sum() == out.size


@pytest.mark.parametrize("shape", [(4, 65), (5, 64)])
def test_an_array_of_another_shape_or_dtype_is_refused(shape: tuple[int, int]) -> None:
    sampler = sampler_of({"self": PositionReader(5000)}, ("tokens",))

    with pytest.raises(ValueError, match=r"out has shape .* need \(5, 65\)"):
        sampler.rows(0, slice(0, 5), out=np.empty(shape, np.int32))
    with pytest.raises(ValueError, match=r"dtype int64, .* int32"):
        sampler.rows(0, slice(0, 5), out=np.empty((5, 65), np.int64))
