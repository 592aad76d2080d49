"""What a curriculum refuses, and what it works out, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    Phase,
    TokenReader,
    repeat,
)
from roxxel_curriculum._order.rounds import cut_spans
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from collections.abc import Iterator


class Endless:
    """Has items as a corpus has, and no end of them."""

    def __getitem__(self, index: int) -> int:
        return index


SMALL: dict[str, Any] = {"batch_size": 4, "seq_len": 65}


def test_a_phase_lasts_steps_epochs_or_tokens() -> None:
    reader = PositionReader(100_000)

    curriculum = Curriculum(
        reader,
        [
            Phase(7, 4, 65),
            Phase(tokens=4 * 65 * 9 + 3, batch_size=4, seq_len=65),
            Phase(epochs=0.5, batch_size=4, seq_len=65),
        ],
    )

    assert [phase.steps for phase in curriculum.phases[:2]] == [7, 9]
    windows = cut_spans(100_000, longest=65, overlap=0).windows_per_epoch(65)
    assert curriculum.phases[2].steps == windows // 2 // 4
    assert curriculum.total_steps == sum(phase.steps for phase in curriculum.phases)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of steps, epochs and tokens, got none"),
        ({"steps": 1, "epochs": 1}, "got steps and epochs"),
        ({"steps": 0}, r"steps must be an integer of 1 or more or None \(.*, got 0"),
        ({"steps": 1, "batch_size": 0}, "batch_size must be .* got 0"),
        ({"steps": 1, "seq_len": -5}, "seq_len must be .* got -5"),
        ({"epochs": 0}, "epochs must be a finite number above 0"),
        ({"epochs": float("nan")}, "epochs must be .* got nan"),
        ({"tokens": 259}, "tokens=259 is less than one step of 4 x 65 = 260 tokens"),
        ({"steps": 1, "weights": {"self": -1}}, "weights.self must be .* got -1"),
        (
            {"steps": 1, "weights": {"self": float("inf")}},
            "weights.self .* got inf",
        ),
        ({"steps": 1, "weights": {"self": 0}}, "all zero"),
        ({"steps": 1, "weights": {}}, "all zero"),
    ],
)
def test_a_phase_out_of_range_says_which_value(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CurriculumError, match=message):
        Phase(**{**SMALL, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 1.5},
        {"steps": True},
        {"steps": "3"},
        {"epochs": "1"},
        {"steps": 1, "weights": [1, 2]},
        {"steps": 1, "weights": {"self": "much"}},
        {"steps": 1, "weights": {"self": "0.5"}},
        {"steps": 1, "weights": {"self": [0.5]}},
        {"steps": 1, "weights": {"self": True}},
        {"steps": 1, "weights": {1: 1}},
    ],
)
def test_a_phase_of_wrong_types_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Phase(**{**SMALL, **fields})


def reader(num_tokens: int = 10_000, **options: Any) -> PositionReader:
    return PositionReader(num_tokens, **options)


@pytest.mark.parametrize(
    ("phases", "options", "message"),
    [
        ([], {}, "at least one phase"),
        ([Phase(1, 1, 9, {"kode": 1})], {}, "unknown source 'kode'; the sources are"),
        ([Phase(1, 1, 9)], {"policies": {"kode": "drop"}}, "policies name unknown"),
        (
            [Phase(1, 1, 9)],
            {"policies": {"code": "dorp"}},
            "policies.code .*'dorp'",
        ),
        ([Phase(1, 1, 9)], {"overlap": 2}, "overlap must be 0 or 1"),
        ([Phase(1, 1, 1)], {"overlap": 1}, "needs at least 2 tokens"),
        ([Phase(1, 1, 9)], {"longest": 0}, "longest must be an integer of 1 or more"),
        ([Phase(1, 1, 9)], {"max_epochs": 0}, "max_epochs must be an integer of 1 or"),
        (
            [Phase(1, 1, 9)],
            {"skips": [(5, 1)]},
            "a skip is at step 5 but the run has",
        ),
        ([Phase(1, 1, 9)], {"skips": [(0, 0)]}, "skips.0.1 must be an integer of 1"),
        (
            [Phase(1, 1, 10_001)],
            {},
            "whole source 'self' has 10000 tokens; use at most 10000, or give it more",
        ),
        (
            [Phase(1, 1, 5000)],
            {"longest": 100},
            "cut for longest=100; use at most 500",
        ),
        (
            [Phase(1, 1, 900, {"self": 1, "code": 1})],
            {},
            "whole source 'code' has 600 tokens; use at most 600, .* leave the source",
        ),
        (
            [Phase(1000, 4, 100, {"code": 1})],
            {},
            "its sources .code. run out after 1 steps; use at most 1",
        ),
        (
            [Phase(1000, 4, 100)],
            {"max_epochs": 1},
            "'self' for 40 epochs with max_epochs=1; at most 25 steps fit",
        ),
        (
            [Phase(epochs=3, batch_size=4, seq_len=100)],
            {"policies": {"self": 2}},
            "300 samples, but the primary's policy .repeat 2. leaves 200;",
        ),
        (
            [Phase(epochs=1, batch_size=4, seq_len=100, weights={"code": 1})],
            {},
            "which has no weight in the phase",
        ),
        (
            [Phase(epochs=1, batch_size=400, seq_len=100)],
            {},
            "no whole step",
        ),
        (
            [Phase(1, 1, 9, {"self": 1, "code": 1e-13})],
            {},
            "below 1e-12 of the total",
        ),
        ([Phase(1, 400, 100)], {"policies": {"self": "stop"}}, "has no whole step"),
    ],
)
def test_what_cannot_be_met_is_an_error_with_the_numbers(
    phases: list[Phase], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CurriculumError, match=message):
        Curriculum(reader(), phases, {"code": reader(600)}, **options)


@pytest.mark.parametrize(
    ("phases", "unread"),
    [
        ([Phase(3, 2, 9), Phase(2, 2, 9)], "'code', 'math'"),
        ([Phase(3, 2, 9), Phase(2, 2, 9, {"self": 1, "code": 1})], "'math'"),
        ([Phase(3, 2, 9, {"self": 1, "math": 1})], "'code'"),
        ([Phase(3, 2, 9, {"code": 1, "math": 1})], "'self'"),
    ],
)
def test_a_source_that_no_phase_reads_is_an_error_that_names_it(
    phases: list[Phase], unread: str
) -> None:
    mix = {"code": reader(name="c"), "math": reader(name="m")}

    with pytest.raises(CurriculumError, match=f"no phase reads .*{unread}.*; give "):
        Curriculum(reader(), phases, mix)


def test_the_weight_0_keeps_a_source_unread() -> None:
    phases = [Phase(3, 2, 9, {"self": 1, "code": 0})]

    curriculum = Curriculum(reader(), phases, {"code": reader(name="c")})

    assert curriculum.plan().sources[1].tokens == 0


def test_sources_of_another_kind_tokenizer_or_type_are_refused() -> None:
    phases = [Phase(1, 1, 9)]

    with pytest.raises(ValueError, match=r"floating-point tokens \(float32\)"):
        Curriculum(reader(), phases, {"code": reader(dtype=np.float32)})
    with pytest.raises(ValueError, match=r"'code' .*tokenizer 'b' .*'self' .*'a'"):
        Curriculum(reader(tokenizer="a"), phases, {"code": reader(tokenizer="b")})
    with pytest.raises(ValueError, match="holds 0 tokens"):
        Curriculum(reader(0), phases)
    with pytest.raises(TypeError, match="a ndarray, which is no roxxel_format"):
        Curriculum(np.zeros(9), phases)  # pyright: ignore[reportArgumentType] - the point
    with pytest.raises(ValueError, match="named 'self', which names the primary"):
        Curriculum(reader(), phases, {"self": reader()})
    with pytest.raises(TypeError, match=r"phases\.0 must be a Phase"):
        Curriculum(reader(), [(1, 1, 9)])  # pyright: ignore[reportArgumentType] - the point


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phases": None}, "phases must be a list, each entry a Phase"),
        ({"phases": Phase(1, 1, 9)}, r"a Phase \(a table in TOML\), got Phase"),
        ({"phases": Endless()}, "phases must be a list, each .*got .*Endless"),
        ({"phases": reader()}, "phases must be a list, each .*got .*PositionReader"),
        ({"mix_streamers": [1]}, "mix_streamers must map names to token readers"),
        ({"mix_streamers": {"": 1}}, "name must be a non-empty str"),
        ({"policies": ["drop"]}, "policies must be a table"),
        ({"policies": {"self": 1.5}}, "policies.self must be .* got 1.5"),
        ({"skips": 3}, "skips must be a list, each entry a pair"),
        ({"skips": Endless()}, "skips must be a list, each entry a pair"),
        ({"skips": [(True, 1)]}, "skips.0.0 must be an integer"),
        ({"overlap": 1.0}, "overlap must be 0 or 1, got 1.0"),
        ({"skips": [3]}, "skips.0 must be a pair"),
        ({"longest": 1.5}, "longest must be an integer of 1 or more or None"),
        ({"max_epochs": True}, "max_epochs must be an integer of 1 or more or None"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(
    arguments: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"phases": [Phase(1, 1, 9)], **arguments}

    with pytest.raises(TypeError, match=message):
        Curriculum(reader(), **given)


@pytest.mark.parametrize("name", ["phases", "skips"])
def test_an_error_of_what_gives_an_argument_stays_its_own(name: str) -> None:
    def broken() -> Iterator[Any]:
        yield from ()
        raise TypeError("its own")

    given: dict[str, Any] = {"phases": [Phase(1, 1, 9)], name: broken()}

    with pytest.raises(TypeError, match=r"^its own$"):
        Curriculum(reader(), **given)


def test_a_policy_of_a_fraction_of_an_epoch_is_refused() -> None:
    for epochs in (1.5, "2", True):
        wrong: Any = epochs
        with pytest.raises(TypeError, match="epochs must be an integer"):
            repeat(wrong)


def test_a_seed_must_be_an_integer() -> None:
    curriculum = Curriculum(reader(), [Phase(1, 1, 9)])

    for seed in ("3", 3.0, True):
        wrong: Any = seed
        with pytest.raises(TypeError, match="seed must be an integer"):
            curriculum.sampler(wrong)


def test_a_batch_larger_than_a_block_holds_every_row_once() -> None:
    curriculum = Curriculum(
        reader(10**6),
        [Phase(4, 40_000, 3, {"self": 1, "code": 1})],
        {"code": reader(10**6)},
    )
    windows = curriculum.sampler(1).windows(2)

    assert windows.start.size == 40_000
    assert np.bincount(windows.source).tolist() == [20_000, 20_000]
    assert np.unique(windows.start * 2 + windows.source).size == 40_000


def test_an_epochs_phase_without_a_whole_step_is_refused_beside_a_stop() -> None:
    phases = [Phase(epochs=0.1, batch_size=90, seq_len=100), Phase(1, 1, 9)]

    with pytest.raises(ValueError, match="phase 0 has no whole step"):
        Curriculum(reader(), phases, policies={"self": "stop"})


def test_a_source_that_stops_the_run_shortens_it() -> None:
    curriculum = Curriculum(
        reader(),
        [Phase(10, 4, 100), Phase(1000, 4, 100), Phase(5, 1, 50)],
        policies={"self": "stop"},
    )
    sampler = curriculum.sampler(1)

    assert curriculum.total_steps == 25
    assert [phase.steps for phase in curriculum.phases] == [10, 15]
    assert curriculum.plan(1).ended == (
        "source 'self' runs out in phase 1 and its policy stops the run before step 25 "
        "of the 1,015 declared"
    )
    with pytest.raises(IndexError, match="source 'self' runs out in phase 1"):
        sampler.batch(25)


def test_repeats_are_counted_and_the_largest_fitting_step_count_fits() -> None:
    phases = [Phase(50, 4, 100, {"code": 1, "self": 1})]
    twice = Curriculum(reader(), phases, {"code": reader(600)}, policies={"code": 2})

    plan = twice.plan(1).phases[0].sources[0]

    assert plan.name == "code"
    assert plan.samples == 12
    assert repeat(2).epochs == 2
    Curriculum(reader(), [Phase(100, 1, 100)], max_epochs=1)
    with pytest.raises(ValueError, match="at most 100 steps fit"):
        Curriculum(reader(), [Phase(101, 1, 100)], max_epochs=1)


def test_the_step_count_that_an_error_offers_fits_every_limit() -> None:
    weights = {"self": 1, "code": 1, "math": 3}
    mix = {"code": reader(2000), "math": reader(600)}
    policies: dict[str, Any] = {"self": 5, "code": 5, "math": 5}
    options: dict[str, Any] = {"policies": policies, "max_epochs": 2}

    for steps in (10_000, 100):
        phases = [Phase(steps, 4, 100, weights)]
        with pytest.raises(ValueError, match=r"at most 5\b"):
            Curriculum(reader(), phases, mix, **options)
    Curriculum(reader(), [Phase(5, 4, 100, weights)], mix, **options)
    with pytest.raises(ValueError, match="at most 5 steps fit"):
        Curriculum(reader(), [Phase(6, 4, 100, weights)], mix, **options)


def test_a_curriculum_gives_back_the_streamers_it_was_given() -> None:
    web, code = reader(), reader()
    given = {"code": code}

    curriculum = Curriculum(web, [Phase(3, 2, 9, {"self": 1, "code": 1})], given)
    given.clear()

    assert curriculum.primary_streamer is web
    assert curriculum.mix_streamers == {"code": code}
    assert Curriculum(web, [Phase(3, 2, 9)]).mix_streamers == {}
    wrong: Any = curriculum
    with pytest.raises(AttributeError):
        wrong.primary_streamer = code


def test_arguments_of_a_phase_have_the_order_of_the_tutorial() -> None:
    positional = Phase(3, 2, 9, {"self": 1.0})

    assert positional == Phase(steps=3, batch_size=2, seq_len=9, weights={"self": 1.0})


def test_steps_of_the_phases_add_up_to_those_of_the_run() -> None:
    phases = [Phase(3, 2, 9), Phase(4, 1, 17)]
    curriculum = Curriculum(reader(), phases)

    assert sum(phase.steps for phase in phases if phase.steps) == 7
    assert sum(phase.steps for phase in curriculum.phases) == 7
    assert curriculum.total_steps == 7


def test_steps_outside_the_run_and_wrong_rows_are_named() -> None:
    sampler = Curriculum(reader(), [Phase(3, 2, 9)]).sampler(1)

    for method in (sampler.batch, sampler.windows, sampler.shape, sampler.phase):
        for step in (-1, 3):
            with pytest.raises(IndexError, match=f"step {step} is outside the run"):
                method(step)
    with pytest.raises(IndexError, match=r"row 2 is outside the batch's rows \[0, 2\)"):
        sampler.rows(0, [2])
    with pytest.raises(IndexError, match="row -1 is outside"):
        sampler.locate(0, -1)
    with pytest.raises(IndexError, match="step 4 is outside"):
        sampler.state(4)
    with pytest.raises(TypeError, match="one-dimensional array of integers, got 1 d"):
        sampler.rows(0, [0.5])
    with pytest.raises(ValueError, match="slice without a step"):
        sampler.rows(0, slice(None), slice(0, 9, 2))
    wrong: Any = 5
    with pytest.raises(TypeError, match="columns must be a slice or None, got 5"):
        sampler.rows(0, slice(None), wrong)


def test_curriculum_and_sampler_describe_themselves() -> None:
    phases = [Phase(3, 2, 9), Phase(2, 2, 9, {"code": 1})]
    curriculum = Curriculum(reader(), phases, {"code": reader()})

    assert repr(curriculum) == "Curriculum(2 phases, 5 steps, sources self, code)"
    assert repr(curriculum.sampler(7)) == ("Sampler(seed=7, total_steps=5, longest=9)")


def test_counters_hold_at_ten_to_the_fourteenth() -> None:
    size = 10**14
    curriculum = Curriculum(
        PositionReader(size, "a"),
        [Phase(3 * 10**8, 256, 1025, {"self": 0.75, "code": 0.25}), Phase(9, 1, 32769)],
        {"code": PositionReader(size, "b")},
        longest=32769,
    )
    sampler = curriculum.sampler(2**80)

    for step in (0, 2**31 // 256, 2**28, 3 * 10**8 - 1, 3 * 10**8, 3 * 10**8 + 8):
        windows = sampler.windows(step)
        assert windows.start.min() >= 0
        assert windows.stop.max() <= size
        assert np.unique(windows.start).size == windows.start.size
        expected = windows.start[:, None] + np.arange(sampler.shape(step)[1])
        assert np.array_equal(sampler.batch(step), expected & (2**31 - 1))
    plan = curriculum.plan(0)
    assert sum(source.samples for source in plan.phases[0].sources) == 3 * 10**8 * 256


def test_locate_names_source_tokens_and_documents() -> None:
    curriculum = Curriculum(reader(document_tokens=50), [Phase(3, 2, 120)])
    sampler = curriculum.sampler(1)

    location = sampler.locate(1, 1)

    assert location.source == "self"
    assert location.stop - location.start == 120
    first, last = location.start // 50, (location.stop - 1) // 50
    assert location.documents == tuple(range(first, last + 1))


def test_a_reader_that_inherits_nothing_is_told_the_line_to_add() -> None:
    class Other:
        """A reader with every member, whose fingerprint is expensive."""

        def __init__(self) -> None:
            self._whole = reader()

        def __getattr__(self, name: str) -> Any:
            assert name != "fingerprint"
            return getattr(self._whole, name)

    other: Any = Other()
    message = (
        r"source 'code' is a Other, which is no roxxel_format\.TokenReader; open a "
        r"corpus with Roxxel\(filepath\), or .*`class NAME\(TokenReader\):`"
    )
    with pytest.raises(TypeError, match=message):
        Curriculum(reader(), [Phase(1, 1, 2)], {"code": other})


def test_a_reader_of_two_members_is_trained_on() -> None:
    class Squares(TokenReader):
        @property
        def num_tokens(self) -> int:
            return 1000

        def read(
            self, starts: Any, length: int, dtype: Any = None, out: Any = None
        ) -> Any:
            assert out is None
            index = np.asarray(starts)[:, None] + np.arange(length)
            return (index**2).astype(dtype or np.uint32)

    fields = ("tokens", "segment_ids", "positions", "loss_mask")
    curriculum = Curriculum(Squares(), [Phase(4, 4, 50)])
    sampler = curriculum.sampler(1, fields=fields)
    sampler.will_need(0, 4)

    for step in range(4):
        batch, start = sampler.batch(step), sampler.windows(step).start
        expected = (start[:, None] + np.arange(50)) ** 2
        assert np.array_equal(batch["tokens"], expected)
        assert (batch["segment_ids"] == 1).all()
        assert (batch["loss_mask"] == 1).all()
        assert sampler.locate(step, 0).documents == (0,)
    assert sampler.dtype == np.int32
    assert curriculum.sampler(1, sampler.state(2)).total_steps == 4
    with pytest.raises(ValueError, match=r"'self' .* a Squares has no checksums"):
        curriculum.sampler(1, check="blocks")


def test_a_position_reader_is_a_token_reader() -> None:
    positions = reader(250, document_tokens=100)

    assert isinstance(positions, TokenReader)
    out = np.zeros((2, 3), np.int16)
    assert positions.read([5, 247], 3, out=out) is out
    assert out.tolist() == [[5, 6, 7], [247, 248, 249]]
    with pytest.raises(IndexError, match="a window leaves the corpus of 250 tokens"):
        positions.read([248], 3)
    assert len(positions.documents) == 3
    assert positions.documents[-1].tolist() == list(range(200, 250))
    assert [each.size for each in positions.documents] == [100, 100, 50]
    spans = positions.document_spans(0, 250)
    for number, start, stop in spans.tolist():
        document = positions.documents[int(number)]
        assert document.tolist() == list(range(start, stop))


def test_will_need_hints_at_the_windows_of_the_steps_to_come() -> None:
    source = reader()
    sampler = Curriculum(source, [Phase(3, 2, 120)]).sampler(1)

    sampler.will_need(1, 10)

    expected = [*sampler.windows(1).start, *sampler.windows(2).start]
    ((starts, length),) = source.hints
    assert starts.tolist() == expected
    assert length == 120
