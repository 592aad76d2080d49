"""A column `loss_mask` of a corpus is part of the field of this name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    Phase,
    StateMismatch,
    recorded_sampler,
)
from roxxel_format import Roxxel, ShardError

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = ("tokens", "loss_mask")


def corpus_of(folder: Path, mask: Any = None, **options: Any) -> Roxxel:
    corpus = Roxxel(folder / "web_*.rox")
    random = np.random.default_rng(0)
    corpus.write(
        [random.integers(0, 99, 40) for _ in range(100)],
        dtype="uint16",
        block_size=512,
        max_shard_bytes=12_000,
    )
    if mask is not None:
        corpus.write_column("loss_mask", mask, **options)
    return corpus


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(step=st.integers(0, 8), documents=st.sets(st.integers(0, 99)))
def test_a_mask_is_the_column_times_what_is_withdrawn(
    step: int, documents: set[int], tmp_path: Path
) -> None:
    column = np.random.default_rng(1).integers(0, 2, 4000).astype(np.uint8)
    corpus = Roxxel(tmp_path / "web_*.rox")
    if not (tmp_path / "web_manifest.json").exists():
        corpus = corpus_of(tmp_path, column)
    curriculum = Curriculum(corpus, [Phase(9, 4, 65)], without={"self": documents})
    sampler = curriculum.sampler(1, fields=FIELDS, check="blocks")

    mask = sampler.batch(step)["loss_mask"]

    windows = sampler.windows(step)
    for row, start in enumerate(windows.start.tolist()):
        expected = [
            int(column[at]) if at // 40 not in documents else 0
            for at in range(start, start + 65)
        ]
        assert mask[row].tolist() == expected
    part = sampler.rows(step, [2], slice(5, 30))["loss_mask"]
    assert np.array_equal(part, mask[2:3, 5:30])


def test_a_state_records_the_column_that_a_run_uses(tmp_path: Path) -> None:
    mask = np.ones(4000, np.uint8)
    corpus = corpus_of(tmp_path, mask)
    phases = [Phase(9, 4, 65)]
    plain = Curriculum(corpus, phases).sampler(1)
    state = Curriculum(corpus, phases).sampler(1, fields=FIELDS).state(5)
    assert "loss_mask" not in plain.state(5)["sources"][0]
    assert recorded_sampler(state, {"self": corpus}, FIELDS).total_steps == 5

    mask[0] = 0
    corpus.write_column("loss_mask", mask, exist="replace")

    with pytest.raises(StateMismatch, match="column 'loss_mask' of source 'self' had"):
        Curriculum(corpus, phases).sampler(1, state, fields=FIELDS)
    with pytest.raises(StateMismatch, match="column 'loss_mask' of source 'self' had"):
        recorded_sampler(state, {"self": corpus}, FIELDS)
    other = Curriculum(corpus, phases).sampler(1, fields=FIELDS)
    with pytest.raises(StateMismatch, match="column 'loss_mask' of source 'self' had"):
        other.check(state)
    # Tokens do not depend on the column, and a run may begin to use it.
    Curriculum(corpus, phases).sampler(1, state).check(state)
    Curriculum(corpus, phases).sampler(1, plain.state(5), fields=FIELDS)


def test_a_run_that_began_without_a_column_goes_on_without_it(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path)
    phases = [Phase(9, 4, 65)]
    state = Curriculum(corpus, phases).sampler(1, fields=FIELDS).state(5)

    corpus.write_column("loss_mask", np.zeros(4000, np.uint8))

    curriculum = Curriculum(corpus, phases)
    resumed = curriculum.sampler(state=state, fields=FIELDS)
    recorded = recorded_sampler(state, {"self": corpus}, FIELDS)
    assert resumed.state(5) == state
    assert all(resumed.batch(step)["loss_mask"].all() for step in range(9))
    assert all(recorded.batch(step)["loss_mask"].all() for step in range(5))
    other = curriculum.sampler(1, fields=FIELDS)
    message = "column 'loss_mask' of source 'self' was absent and now has the digest"
    with pytest.raises(StateMismatch, match=message):
        other.check(state)


def test_a_run_uses_the_column_of_a_source_from_which_it_has_not_read(
    tmp_path: Path,
) -> None:
    """The future may be edited, so a column counts from the first row of its source."""
    web, code = (corpus_of(tmp_path / name) for name in ("web", "code"))
    phases = [Phase(4, 4, 65), Phase(4, 4, 65, {"code": 1})]
    sampler = Curriculum(web, phases, {"code": code}).sampler(1, fields=FIELDS)
    state = sampler.state(4)

    for value in range(2):
        code.write_column("loss_mask", np.full(4000, value), exist="replace")
        curriculum = Curriculum(web, phases, {"code": code})
        resumed = curriculum.sampler(state=state, fields=FIELDS)
        assert (resumed.batch(3)["loss_mask"] == 1).all()
        assert (resumed.batch(4)["loss_mask"] == value).all()
        state = resumed.state(4)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (np.ones(4000, np.float32), {}),
        (np.ones(100, np.uint8), {"per": "document"}),
    ],
)
def test_a_column_that_is_no_mask_is_one_sentence(
    values: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, values, **options)
    curriculum = Curriculum(corpus, [Phase(9, 4, 65)])

    with pytest.raises(CurriculumError, match="write an integer, 0 or 1, for each"):
        curriculum.sampler(1, fields=FIELDS)


def test_a_shard_without_the_mask_is_named(tmp_path: Path) -> None:
    """The run would otherwise learn every token, also those that the column masks."""
    corpus = corpus_of(tmp_path, np.zeros(4000, np.uint8))
    corpus.write(
        [np.arange(40)] * 9,
        dtype="uint16",
        block_size=512,
        exist="append",
        without_columns=["loss_mask"],
    )
    curriculum = Curriculum(corpus, [Phase(9, 4, 65)])

    assert corpus.partial_columns == ["loss_mask"]
    message = r"web_\w+_000.rox: the shard has no column 'loss_mask'; append it"
    with pytest.raises(ShardError, match=message):
        curriculum.sampler(1, fields=FIELDS)
    # Without the field, the column has no use.
    assert curriculum.sampler(1).fields == ("tokens",)


def test_hints_reach_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(tmp_path, np.ones(4000, np.uint8))
    sampler = Curriculum(corpus, [Phase(9, 4, 65)]).sampler(1, fields=FIELDS)
    hints: list[Any] = []

    def noted(_: Any, starts: Any, length: int) -> None:
        hints.append((sorted(starts.tolist()), length))

    monkeypatch.setattr(type(corpus.column("loss_mask")), "will_need", noted)
    sampler.will_need(3)

    assert hints == [(sorted(sampler.windows(3).start.tolist()), 65)]


def test_prompts_are_not_learned_and_completions_are(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "chat_*.rox")
    rows = [
        {"prompt": "2+2=", "completion": "4"},
        {"prompt": "hi ", "completion": "hello"},
    ]
    corpus.write(rows, separator=0, prompt="prompt", completion="completion")
    curriculum = Curriculum(corpus, [Phase(1, 1, 14)])

    batch = curriculum.sampler(0, fields=FIELDS).batch(0)

    assert bytes(batch["tokens"][0].tolist()) == b"2+2=4\0hi hello"
    mask = [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    assert batch["loss_mask"].tolist() == [mask]


@pytest.mark.parametrize("fields", [("tokens",), FIELDS])
def test_a_new_run_as_read_has_no_column_that_the_run_does_not_read(
    fields: tuple[Any, ...], tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path)
    curriculum = Curriculum(corpus, [Phase(9, 4, 65)])
    state = curriculum.sampler(1, fields=fields).state(9)

    corpus.write_column("loss_mask", np.zeros(4000, np.uint8))

    now = Curriculum(corpus, [Phase(9, 4, 65)])
    again = now.as_read(state)
    assert not now.sampler(1, fields=FIELDS).batch(3)["loss_mask"].any()
    for past in (None, again.sampler(1, fields=fields).state(2)):
        found = again.sampler(1, past, FIELDS)
        assert all(found.batch(step)["loss_mask"].all() for step in range(9))
