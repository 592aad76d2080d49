"""A packed source is read bin by bin, in the order of a source of so many tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    Phase,
    StateMismatch,
    recorded_sampler,
)
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel, TokenReader

from .helpers import NAMES, phases

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from roxxel_curriculum import Field, Sampler

FIELDS: tuple[Field, ...] = ("tokens", "segment_ids", "positions", "loss_mask")
QUICK = settings(max_examples=25, deadline=None)


class BinReader(PositionReader):
    """A corpus of bins of `unit` tokens, of which the last in each is padding.

    Half of the tokens before it are the first document of the bin, the others the
    second.
    """

    def __init__(self, num_bins: int, unit: int, name: str = "") -> None:
        super().__init__(num_bins * unit, name, document_tokens=unit // 2)
        self._unit = unit

    @property
    def unit(self) -> int:
        return self._unit

    @property
    def num_padding(self) -> int:
        return self.num_tokens // self.unit

    def window_spans(self, starts: npt.ArrayLike, length: int) -> Any:
        half, unit = self.unit // 2, self.unit
        windows = [
            [
                (document, stop)
                for at in range(start // unit, -(-(start + length) // unit))
                for document, low, stop in (
                    (2 * at, at * unit, at * unit + half),
                    (2 * at + 1, at * unit + half, (at + 1) * unit - 1),
                    (-1, (at + 1) * unit - 1, (at + 1) * unit),
                )
                if low < start + length and start < stop
            ]
            for start in np.asarray(starts).tolist()
        ]
        counts = np.array([len(each) for each in windows])
        document, stop = (
            np.array([row for each in windows for row in each], np.int64)
            .reshape(-1, 2)
            .T
        )
        return counts, document, stop


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Curriculum, Curriculum, int]:
    """Draw a curriculum over packed sources, and the same over their bins."""
    unit = draw(st.integers(3, 9))
    names = NAMES[: draw(st.integers(1, 3))]
    declared = draw(st.lists(phases(names, 6), min_size=1, max_size=4))
    first = dict.fromkeys(names, 0) | dict(declared[0].weights or {"self": 1})
    sizes = {name: draw(st.integers(300, 900)) for name in names}
    longest = draw(st.sampled_from((None, 8)))
    made: list[Curriculum] = []
    for scale in (unit, 1):
        readers: dict[str, Any] = {
            name: PositionReader(size, name) if scale == 1 else BinReader(size, unit)
            for name, size in sizes.items()
        }
        primary = readers.pop("self")
        made.append(
            Curriculum(
                primary,
                [
                    Phase(
                        each.steps,
                        each.batch_size,
                        each.seq_len * scale,
                        each.weights if number else first,
                    )
                    for number, each in enumerate(declared)
                ],
                readers,
                policies=dict.fromkeys(readers, "repeat"),
                longest=longest and longest * scale + scale - 1,
            )
        )
    return made[0], made[1], unit


@QUICK
@given(pair=pairs(), seed=st.integers(0, 9))
def test_bins_are_read_in_the_order_of_so_many_tokens(
    pair: tuple[Curriculum, Curriculum, int], seed: int
) -> None:
    packed, bins, unit = pair
    one, two = packed.sampler(seed, fields=FIELDS), bins.sampler(seed)
    assert one.total_steps == two.total_steps
    for step in range(one.total_steps):
        windows, of_bins = one.windows(step), two.windows(step)
        assert windows.source.tolist() == of_bins.source.tolist()
        assert windows.start.tolist() == (of_bins.start * unit).tolist()
        assert windows.stop.tolist() == (of_bins.stop * unit).tolist()
    plans = packed.plan(seed).to_dict(), bins.plan(seed).to_dict()
    for plan, scale in zip(plans, (unit, 1), strict=True):
        for source in plan["sources"]:
            assert source["num_tokens"] % scale == 0
            source["waste_tokens"] //= scale
    for key in ("epochs", "num_spans", "waste_tokens"):
        one_key, two_key = ([row[key] for row in p["sources"]] for p in plans)
        assert one_key == pytest.approx(two_key)


@QUICK
@given(pair=pairs(), data=st.data())
def test_where_inverts_locate_for_bins(
    pair: tuple[Curriculum, Curriculum, int], data: st.DataObject
) -> None:
    packed, _, unit = pair
    sampler = packed.sampler(0, fields=FIELDS)
    step = data.draw(st.integers(0, sampler.total_steps - 1))
    row = data.draw(st.integers(0, sampler.shape(step)[0] - 1))
    here = sampler.locate(step, row)
    start = data.draw(st.integers(here.start, here.stop - 1))
    stop = data.draw(st.integers(start + 1, here.stop))
    found = [
        (each.column, each.start, each.stop)
        for each in sampler.where(here.source, start, stop)
        if (each.step, each.row) == (step, row)
    ]
    assert found == [(start - here.start, start, stop)]
    first, last = here.start // unit, here.stop // unit
    assert here.documents == tuple(range(2 * first, 2 * last))


@QUICK
@given(pair=pairs(), parts=st.sampled_from((2, 3)))
def test_the_shares_of_processes_are_the_whole_batch(
    pair: tuple[Curriculum, Curriculum, int], parts: int
) -> None:
    sampler = pair[0].sampler(1, fields=FIELDS)
    step = sampler.total_steps - 1
    whole = sampler.batch(step)
    rows = [*range(sampler.shape(step)[0])]
    shares = [sampler.rows(step, rows[at::parts]) for at in range(parts)]
    for field in FIELDS:
        for at, share in enumerate(shares):
            assert np.array_equal(share[field], whole[field][at::parts])
    half = slice(1, sampler.shape(step)[1] - 1)
    part = sampler.rows(step, rows, half)
    for field in FIELDS:
        assert np.array_equal(part[field], whole[field][:, half])


def sampler_of(
    unit: int = 5, fields: Iterable[Field] = FIELDS, **changes: Any
) -> Sampler:
    curriculum = Curriculum(BinReader(400, unit), [Phase(20, 4, 2 * unit)], **changes)
    return curriculum.sampler(3, fields=fields)


def test_padding_has_segment_0_and_is_not_learned() -> None:
    batch = sampler_of().batch(7)
    assert batch["segment_ids"][0].tolist() == [1, 1, 2, 2, 0, 3, 3, 4, 4, 0]
    assert batch["loss_mask"][0].tolist() == [1, 1, 1, 1, 0] * 2
    assert batch["positions"][0].tolist() == [0, 1, 0, 1, 0] * 2


@pytest.mark.parametrize("fields", [FIELDS, ("tokens", "loss_mask")])
def test_a_withdrawn_document_of_a_bin_is_masked_alone(fields: Any) -> None:
    plain = sampler_of()
    here = plain.locate(7, 2)
    batch = sampler_of(fields=fields, without={"self": [here.documents[1]]}).batch(7)
    assert batch["loss_mask"][2].tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 1, 0]
    assert np.array_equal(batch["tokens"], plain.batch(7)["tokens"])


def test_a_sequence_that_cuts_bins_names_both_lengths_and_the_source() -> None:
    web = BinReader(400, 6)
    with pytest.raises(CurriculumError, match=r"phase 1.*seq_len=16.*'web'.* 6 .* 18"):
        Curriculum(
            PositionReader(9000),
            [Phase(3, 4, 16), Phase(3, 4, 16, {"self": 1, "web": 1})],
            {"web": web},
        )


def test_a_dense_source_blends_with_a_packed_one_at_its_length() -> None:
    sources = {"web": BinReader(400, 6)}
    phase = Phase(30, 4, 12, {"self": 1, "web": 1})
    sampler = Curriculum(PositionReader(9000), [phase], sources).sampler(
        0, fields=FIELDS
    )
    dense = Curriculum(PositionReader(9000), [Phase(60, 1, 12)], longest=12).sampler(0)
    starts: dict[int, list[int]] = {0: [], 1: []}
    for step in range(sampler.total_steps):
        windows = sampler.windows(step)
        mask = sampler.batch(step)["loss_mask"]
        for row, (index, start) in enumerate(
            zip(windows.source.tolist(), windows.start.tolist(), strict=True)
        ):
            starts[index].append(start)
            assert mask[row].sum() == (10 if index else 12)
    alone = [int(dense.windows(step).start[0]) for step in range(len(starts[0]))]
    assert starts[0] == alone[: len(starts[0])]
    assert all(start % 6 == 0 for start in starts[1])


def test_tokens_alone_are_refused_where_padding_would_be_learned() -> None:
    curriculum = Curriculum(BinReader(400, 6), [Phase(3, 4, 12)])
    with pytest.raises(CurriculumError, match=r"400 tokens of source 'self'.*mask"):
        curriculum.sampler(0)


def test_bins_share_no_tokens() -> None:
    with pytest.raises(CurriculumError, match=r"'self'.*overlap=1; use overlap=0"):
        Curriculum(BinReader(400, 6), [Phase(3, 4, 12)], overlap=1)


class Halved(BinReader):
    """The same corpus in bins of twice the size."""

    @property
    def unit(self) -> int:
        return 2 * super().unit


def test_the_state_of_a_run_names_the_unit() -> None:
    sampler = sampler_of(unit=6)
    state = json.loads(json.dumps(sampler.state(5)))
    assert state["sources"][0]["unit"] == 6
    reader = BinReader(400, 6)
    past = recorded_sampler(state, {"self": reader}, FIELDS)
    assert np.array_equal(past.batch(4)["tokens"], sampler.batch(4)["tokens"])
    other = Halved(400, 6)
    with pytest.raises(StateMismatch, match="bins of 12 tokens instead of bins of 6"):
        Curriculum(other, [Phase(20, 4, 12)]).sampler(state=state, fields=FIELDS)
    dense = PositionReader(2400)
    assert "unit" not in Curriculum(dense, [Phase(2, 4, 12)]).sampler(0).state(1)


def test_a_plan_says_how_much_of_a_source_is_padding() -> None:
    curriculum = Curriculum(BinReader(400, 50), [Phase(3, 4, 100)])
    plan = curriculum.plan()
    assert (plan.sources[0].unit, plan.sources[0].padding_tokens) == (50, 400)
    assert "self is packed in bins of 50 tokens; 2 % of its tokens" in str(plan)
    small = curriculum.proxy(scale=1 / 8).curriculum.plan()
    assert "50 tokens; 2 % of its tokens" in str(small)


def test_a_packed_corpus_is_read_document_by_document(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sizes: list[int] = random.integers(1, 40, 300).tolist()
    texts: list[list[int]] = [[*range(1, n + 1)] for n in sizes]
    corpus = Roxxel(tmp_path / "web_*.rox")
    corpus.write(texts, separator=0, vocab_size=99, pack=16, max_shard_bytes=20_000)
    assert isinstance(corpus, TokenReader)
    assert corpus.num_shards > 1
    curriculum = Curriculum(corpus, [Phase(epochs=1, batch_size=2, seq_len=32)])
    sampler = curriculum.sampler(0, fields=FIELDS)
    learned: list[list[int]] = []
    for step in range(sampler.total_steps):
        batch = sampler.batch(step)
        for row in range(2):
            segments = batch["segment_ids"][row]
            assert np.array_equal(segments > 0, batch["loss_mask"][row] == 1)
            documents = sampler.locate(step, row).documents
            for segment, document in enumerate(documents, 1):
                here = batch["tokens"][row][segments == segment]
                assert here.tolist() == corpus.documents[document].tolist()
                learned.append(here.tolist())
    whole = [[*text, 0] for text in texts if len(text) < 16]
    missing = sum(text not in learned for text in whole)
    left_out = corpus.num_tokens - 64 * sampler.total_steps
    assert missing <= left_out
