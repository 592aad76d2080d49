"""A damaged block is an error that says how to train without its tokens."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ChecksumError, Roxxel

FIELDS = ("tokens", "segment_ids", "positions", "source", "loss_mask")
PHASES = [Phase(6, 4, 129), Phase(6, 2, 257)]


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Roxxel, Any]:
    """Return a corpus with a damaged block, and its tokens before the damage."""
    corpus = Roxxel(tmp_path / "web_*.rox")
    random = np.random.default_rng(0)
    corpus.write((random.integers(1, 99, 50) for _ in range(200)), vocab_size=99)
    whole = corpus.tokens[:].copy()
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    data[4096 + 4096 + 5] ^= 1
    path.write_bytes(data)
    return Roxxel(tmp_path / "web_*.rox"), whole


def first_error(sampler: Any) -> tuple[int, ChecksumError]:
    for step in range(sampler.total_steps):
        try:
            sampler.batch(step)
        except ChecksumError as error:
            return step, error
    raise AssertionError("no step reads a damaged block")


def option_of(error: Exception) -> tuple[Any, Any]:
    """Return the option in the message of an error, as Python and as TOML."""
    option = re.search(
        r"without=(\{.*\}), or under \[without\] of a config (.*)", str(error)
    )
    assert option is not None
    toml = tomllib.loads(option[2].replace("], ", "]\n"))
    return eval(option[1], {}), toml  # noqa: S307 - a user would paste it


def test_the_error_has_the_option_that_reads_around_the_block(
    damaged: tuple[Roxxel, Any],
) -> None:
    corpus, whole = damaged
    sampler = Curriculum(corpus, PHASES).sampler(1, fields=FIELDS, check="blocks")
    step, error = first_error(sampler)
    start = 4096 // corpus.dtype.itemsize
    stop = min(2 * start, corpus.num_tokens)

    without, toml = option_of(error)

    assert without == toml == {"self": [f"tokens:[{start},{stop})"]}
    assert f"verify {corpus.paths[0]} --repair COPY" in str(error)
    assert (error.section, error.block, error.byte_offset) == ("tokens", 1, 8192)
    curriculum = Curriculum(corpus, PHASES, without=without)
    masking = curriculum.sampler(
        state=sampler.state(step), fields=FIELDS, check="blocks"
    )
    zeroed = whole.copy()
    zeroed[start:stop] = 0
    for each in range(12):
        windows, batch = masking.windows(each), masking.batch(each)
        for row, first in enumerate(windows.start):
            expected = zeroed[first : windows.stop[row]]
            assert np.array_equal(batch["tokens"][row], expected)
            assert np.array_equal(batch["loss_mask"][row], expected > 0)


def test_a_proxy_names_the_tokens_of_its_whole_source(
    damaged: tuple[Roxxel, Any],
) -> None:
    corpus, _ = damaged
    small = Curriculum(corpus, PHASES).proxy(scale=1).curriculum

    _, error = first_error(small.sampler(1, fields=FIELDS, check="blocks"))

    without, toml = option_of(error)
    assert without == toml
    around = Curriculum(corpus, PHASES, without=without).proxy(scale=1).curriculum
    sampler = around.sampler(1, fields=FIELDS, check="blocks")
    assert all(sampler.batch(step) for step in range(sampler.total_steps))


def test_a_second_block_is_named_beside_the_first(damaged: tuple[Roxxel, Any]) -> None:
    corpus, _ = damaged
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    data[4096] ^= 1
    path.write_bytes(data)
    _, error = first_error(Curriculum(corpus, PHASES).sampler(1, check="blocks"))
    without, _ = option_of(error)
    again = Curriculum(Roxxel(corpus.filepath), PHASES, without=without)

    _, second = first_error(again.sampler(1, fields=FIELDS, check="blocks"))

    assert option_of(second)[0] != without
    assert "beside what is withdrawn already" in str(second)
    assert "beside" not in str(error)


def test_each_source_that_reads_the_block_is_named(damaged: tuple[Roxxel, Any]) -> None:
    corpus, _ = damaged
    phases = [Phase(9, 4, 129, {"web": 1, "code v2": 1})]
    mix = {"code v2": Roxxel(corpus.filepath)}
    curriculum = Curriculum(corpus, phases, mix, primary="web")

    _, error = first_error(curriculum.sampler(1, check="blocks"))

    without, toml = option_of(error)
    assert without == toml
    assert without.keys() == {"web", "code v2"}
    fed = Curriculum(corpus, phases, mix, primary="web", without=without)
    sampler = fed.sampler(1, fields=FIELDS, check="blocks")
    assert all(sampler.batch(step) for step in range(9))


def test_errors_about_other_bytes_have_no_option(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "web_*.rox")
    corpus.write([[5, 6, 7] * 50] * 40, vocab_size=99, block_size=512)
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    at = 4096 + -(-corpus.num_tokens * corpus.dtype.itemsize // 512) * 512
    data[at + 1] ^= 1
    path.write_bytes(data)
    sampler = Curriculum(Roxxel(tmp_path / "web_*.rox"), PHASES).sampler(
        1, fields=FIELDS, check="blocks"
    )

    with pytest.raises(ChecksumError, match="block 0 of the documents") as caught:
        sampler.batch(0)
    assert "without" not in str(caught.value)


def test_rows_with_withdrawn_ranges_are_not_hinted() -> None:
    """Their reads request other ranges, so the bytes of a hint would be wasted."""
    plain = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)]).sampler(1)
    start = int(plain.windows(5).start[2])
    reader = PositionReader(10_000)
    without = {"self": [f"tokens:[{start + 3},{start + 100})"]}
    curriculum = Curriculum(reader, [Phase(9, 4, 129)], without=without)

    curriculum.sampler(1, fields=["tokens", "loss_mask"]).will_need(5)

    ((starts, length),) = reader.hints
    assert (len(starts), length) == (3, 129)
    assert start not in starts
