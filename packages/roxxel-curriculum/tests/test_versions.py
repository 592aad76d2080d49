"""A run that resumes reads the versions of its corpora that it started with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, CurriculumError, Phase, StateMismatch
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ShardError, TokenReader


class Growing(PositionReader):
    """A corpus that was appended to, with its earlier versions by fingerprint."""

    def __init__(self, *sizes: int, name: str = "web") -> None:
        super().__init__(sizes[-1], name)
        self._name = name
        self._versions = {
            PositionReader(size, name).fingerprint: sizes[: number + 1]
            for number, size in enumerate(sizes)
        }

    def with_version(self, fingerprint: str) -> Growing:
        if fingerprint not in self._versions:
            raise ShardError(f"no version {fingerprint}")
        return Growing(*self._versions[fingerprint], name=self._name)


def blend(web: Any, code: Any, steps: int = 20, **options: Any) -> Curriculum:
    phases = [
        Phase(10, 4, 33, {"self": 3, "code": 1}),
        Phase(steps, 2, 65, {"self": 1, "code": 1}),
    ]
    return Curriculum(web, phases, {"code": code}, **options)


def saved(curriculum: Curriculum, step: int) -> dict[str, Any]:
    return json.loads(json.dumps(curriculum.sampler(7).state(step)))


@pytest.mark.parametrize("step", [0, 1, 10, 15, 29])
def test_a_run_resumes_on_the_versions_it_started_with(step: int) -> None:
    web, code = Growing(20_000), Growing(4000, name="code")
    started = blend(web, code)
    grown = blend(Growing(20_000, 50_000), Growing(4000, 4100, 9000, name="code"))
    state = saved(started, step)

    resumed = grown.sampler(7, state)

    expected = started.sampler(7)
    for later in range(30):
        assert np.array_equal(resumed.batch(later), expected.batch(later))
    assert resumed.state(step) == state
    resumed.check(state)
    again = grown.sampler(7, json.loads(json.dumps(resumed.state(step))))
    assert np.array_equal(again.batch(29), expected.batch(29))
    assert not started.plan(7).diff(grown.plan(7, state))
    assert grown.plan(7).sources[0].num_tokens == 50_000


def test_a_phase_of_epochs_keeps_its_steps_when_the_corpus_has_grown() -> None:
    phase = Phase(epochs=1, batch_size=4, seq_len=33)
    started = Curriculum(Growing(20_000), [phase])
    grown = Curriculum(Growing(20_000, 50_000), [phase])
    assert grown.total_steps > 2 * started.total_steps

    resumed = grown.sampler(7, saved(started, 3))

    assert resumed.total_steps == started.total_steps


def test_a_new_run_reads_the_newest_version() -> None:
    grown = Curriculum(Growing(20_000, 50_000), [Phase(9, 4, 33)]).sampler(7)
    plain = Curriculum(PositionReader(50_000, "web"), [Phase(9, 4, 33)]).sampler(7)

    assert np.array_equal(grown.batch(3), plain.batch(3))


def test_a_version_that_is_gone_is_refused_with_the_difference() -> None:
    code = Growing(4000, name="code")
    state = saved(blend(Growing(20_000), code), 15)

    with pytest.raises(StateMismatch, match="source 'self' holds other data") as info:
        blend(Growing(30_000, 50_000), code).sampler(7, state)
    assert len(info.value.differences) == 1
    with pytest.raises(StateMismatch, match="source 'self' holds other data"):
        blend(PositionReader(50_000, "web"), code).sampler(7, state)


class Shifted(TokenReader):
    """Adds one to the tokens of a reader, and has none of its other members."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    @property
    def num_tokens(self) -> int:
        return self._reader.num_tokens

    def read(self, *arguments: Any, **options: Any) -> Any:
        return self._reader.read(*arguments, **options) + 1


def test_a_wrapper_never_gives_way_to_the_reader_inside() -> None:
    code = Growing(4000, name="code")
    before = blend(Shifted(Growing(20_000)), code)
    state = saved(before, 15)

    with pytest.raises(StateMismatch, match="source 'self' holds other data"):
        blend(Shifted(Growing(20_000, 50_000)), code).sampler(7, state)
    with pytest.raises(CurriculumError, match="a Shifted has no checksums"):
        before.sampler(7, check="blocks")


def test_a_source_that_the_past_did_not_read_keeps_its_version_too() -> None:
    phases = [Phase(10, 4, 33), Phase(9, 2, 33, {"self": 1, "code": 1})]

    def of(code: Any) -> Curriculum:
        return Curriculum(Growing(20_000), phases, {"code": code})

    started = of(Growing(4000, name="code"))
    state = saved(started, 5)

    resumed = of(Growing(4000, 9000, name="code")).sampler(7, state)
    assert np.array_equal(resumed.batch(18), started.sampler(7).batch(18))
    # Another corpus may take its name until the run reads it.
    assert of(Growing(5000, name="code")).sampler(7, state).total_steps == 19


def test_a_new_run_as_read_has_the_data_of_the_run_of_a_state() -> None:
    started = blend(Growing(20_000), Growing(4000, name="code"))
    grown = blend(Growing(20_000, 50_000), Growing(4000, 9000, name="code"))

    again = grown.as_read(saved(started, 30))

    found, expected = again.sampler(7), started.sampler(7)
    assert found.state(30) == expected.state(30)
    assert again.primary_streamer.num_tokens == 20_000
    assert again.mix_streamers["code"].num_tokens == 4000
    for step in range(30):
        assert np.array_equal(found.batch(step), expected.batch(step))
    with pytest.raises(StateMismatch):
        grown.as_read({**saved(started, 30), "step": 3})


@pytest.mark.parametrize("step", [0, 2, 5, 8])
@pytest.mark.parametrize("phase", [Phase(40, 8, 33), Phase(None, 8, 33, epochs=0.5)])
def test_a_proxy_resumes_on_the_part_it_started_with(phase: Phase, step: int) -> None:
    def proxy(web: Any, code: Any, *more: Phase) -> Curriculum:
        weighted = replace(phase, weights={"self": 3, "code": 1})
        policies = {"code": "repeat"}
        whole = Curriculum(web, [weighted, *more], {"code": code}, policies=policies)
        return whole.proxy(scale=0.25, seed=5).curriculum

    small = (Growing(20_000), Growing(4000, name="code"))
    started = proxy(*small)
    grown = proxy(Growing(20_000, 90_000), Growing(4000, 9000, name="code"))
    longer = proxy(
        Growing(20_000, 90_000), Growing(4000, 9000, name="code"), Phase(20, 4, 65)
    )
    expected = started.sampler(7)
    state = saved(started, step)

    for curriculum in (grown, longer):
        resumed = curriculum.sampler(7, state)
        assert resumed.state(step) == state
        for later in range(expected.total_steps):
            assert np.array_equal(resumed.batch(later), expected.batch(later))
    assert grown.sampler(7, state).total_steps == expected.total_steps
    assert longer.sampler(7, state).total_steps == expected.total_steps + 5
    again = grown.as_read(saved(started, expected.total_steps)).sampler(7)
    assert again.state(8) == expected.state(8)
    assert grown.primary_streamer.num_tokens > 4 * started.primary_streamer.num_tokens


def test_a_part_and_its_whole_are_other_data() -> None:
    whole = Curriculum(Growing(20_000), [Phase(40, 8, 33)])
    part = whole.proxy(scale=0.25).curriculum

    for one, other in ((whole, part), (part, whole)):
        with pytest.raises(StateMismatch, match="source 'self' holds other data"):
            one.sampler(7, saved(other, 5))
