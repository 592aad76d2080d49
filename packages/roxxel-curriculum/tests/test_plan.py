"""The plan: known before the first step, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from matplotlib.text import Text
from roxxel_curriculum import Curriculum, Phase, PlanDiff, Policy
from roxxel_curriculum.testing import PositionReader

from .helpers import Declared, declarations, digest

# Notebooks call `_repr_html_`.
# pyright: reportPrivateUsage=false

if TYPE_CHECKING:
    from pathlib import Path

BLEND = {"self": 0.6, "code": 0.3, "math": 0.1}


def example(*phases: Phase, **options: Any) -> Curriculum:
    first, *later = phases or (Phase(200, 64, 65), Phase(200, 16, 129, BLEND))
    # The weight 0 keeps a source unread, which a schedule must declare.
    weights = dict.fromkeys(BLEND, 0) | dict(first.weights or {"self": 1})
    return Curriculum(
        PositionReader(2 * 10**6, "web"),
        [replace(first, weights=weights), *later],
        {"code": PositionReader(10**6, "c"), "math": PositionReader(30_000, "m")},
        **options,
    )


def test_the_table_has_every_source_of_every_phase_and_what_runs_out() -> None:
    text = str(example(skips=[(5, 3)]).plan(7))

    assert (
        text.splitlines()[0] == "400 steps, 1.245 M tokens, 2 phases, 3 sources, seed 7"
    )
    for part in (
        "64 x 65",
        "200-399",
        "math runs out in step",
        "before step 5 the data of 3 steps is skipped",
        "repeat",
        "drop",
    ):
        assert part in text


def test_more_than_one_epoch_is_said_in_plain_view() -> None:
    plan = example(Phase(1000, 64, 65)).plan()

    assert "self is read 2.0" in str(plan)


@pytest.mark.parametrize(("steps", "is_noted"), [(39, False), (41, True)])
def test_more_than_four_epochs_are_called_too_many(steps: int, is_noted: bool) -> None:
    plan = Curriculum(PositionReader(1000), [Phase(steps, 1, 100)]).plan()

    text = " ".join(str(plan).split())
    assert "self is read " in text
    for words in ("arXiv 2305.16264", "add text", "max_epochs"):
        assert (words in text) == is_noted


def test_waste_is_a_share_of_each_pass_and_a_large_one_is_pointed_out() -> None:
    plan = Curriculum(PositionReader(4000), [Phase(10, 2, 2049)]).plan()

    (source,) = plan.sources
    assert source.epochs > 19
    assert source.waste_share == pytest.approx(1951 / 4000, rel=0.06)
    assert f"({100 * source.waste_share:.2f} %)" in str(plan)
    assert "unread, because it is small for sequences" in " ".join(str(plan).split())


def test_a_source_that_gives_nothing_in_a_phase_shows_no_epochs_there() -> None:
    first = Phase(400, 16, 65, BLEND)
    second = Phase(100, 16, 129, {**BLEND, "math": 1})
    plan = example(first, second, skips=[(0, 1)]).plan()

    math, again = plan.phases[0].sources[1], plan.phases[1].sources[1]
    assert (math.name, again.name) == ("math", "math")
    assert (again.samples, again.skipped) == (0, 0)
    assert again.epochs == math.epochs > 0.9
    rows = [line.split() for line in str(plan).splitlines() if line[:4] == "math"]
    assert rows[1] == ["math", "0.5263", "0", "0", "-", "-", "0"]
    assert f"{math.epochs:.3f}" in rows[0]
    assert f"{math.epochs:.3f}" in rows[2]


def test_samples_longer_than_the_run_was_laid_out_for_are_pointed_out() -> None:
    plan = example(Phase(10, 8, 33), Phase(10, 2, 500), longest=100).plan()

    assert (
        "phase 1 has sequences of 500 tokens, longer than longest=100, which is fixed"
        in " ".join(str(plan).split())
    )


@pytest.mark.parametrize(("changes", "is_noted"), [(4, False), (5, True)])
def test_many_changes_of_length_are_pointed_out(changes: int, is_noted: bool) -> None:
    lengths = [33, 65] * 3
    phases = [Phase(10, 8, seq_len) for seq_len in lengths[: changes + 1]]

    note = f"the sequence length changes {changes} times, and each change leaves a"
    assert (note in " ".join(str(example(*phases).plan()).split())) == is_noted


def test_a_source_with_nothing_left_is_pointed_out() -> None:
    phase = Phase(300, 16, 129, {"self": 1, "math": 1})

    assert "phase 1: math has run out" in str(example(phase, phase).plan())


def test_a_plan_goes_through_json() -> None:
    plan = example().plan(7)

    found = json.loads(json.dumps(plan.to_dict()))

    assert found == plan.to_dict()
    assert found["phases"][1]["sources"][0]["name"] == "code"
    assert found["total_steps"] == 400


def test_text_and_notebooks_show_the_same_cells() -> None:
    plan = example(skips=[(5, 3)]).plan(7)

    text, html = str(plan), plan._repr_html_()

    assert html == f"<pre>{text}</pre>"
    for cell in ("64 x 65", "12,800", "200-399", "math runs out in step", "3 steps is"):
        assert cell in " ".join(text.split())


def test_a_plan_has_no_skip_that_a_run_ends_before() -> None:
    skips = [(3, 2), (23, 2), (30, 4)]
    curriculum = Curriculum(
        PositionReader(1000), [Phase(50, 4, 10)], policies={"self": "stop"}, skips=skips
    )

    plan = curriculum.plan()

    assert plan.total_steps == 23
    assert plan.skips == ((3, 2),)
    assert str(plan).count("is skipped") == 1


def test_usual_plans_fit_a_terminal_of_80_columns() -> None:
    weights = {"self": 0.7, "openwebmath": 0.2, "wikipedia": 0.1}
    curriculum = Curriculum(
        PositionReader(10**12),
        [
            Phase(100_000, 512, 8193),
            Phase(20_000, 128, 32769, weights),
            Phase(30_000, 256, 131_072, weights),
        ],
        {"openwebmath": PositionReader(10**10), "wikipedia": PositionReader(4 * 10**9)},
        policies={"openwebmath": Policy(12, "stop"), "wikipedia": 24},
        longest=32769,
    )
    text = str(curriculum.plan(42))

    assert max(map(len, text.splitlines())) <= 80
    assert "phase 1: steps 100,000-119,999 of 128 x 32769\n" in text
    assert "100,000-119,999  " in text
    assert "stop after 12" in text


def test_a_name_cannot_inject_markup() -> None:
    curriculum = Curriculum(
        PositionReader(1000),
        [Phase(1, 1, 9, {"self": 1, "[red]<b>": 1})],
        {"[red]<b>": PositionReader(1000)},
    )

    assert "[red]<b>" in str(curriculum.plan())
    assert "<b>" not in curriculum.plan()._repr_html_()


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_is_drawn_and_saved(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"plan.{ending}"

    figure = example().plan().plot(path)

    assert path.stat().st_size > 10_000
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "math runs out" in texts
    assert any("phase 1" in text for text in texts)


def test_the_picture_shows_the_name_of_the_primary() -> None:
    phases = [Phase(20, 64, 65), Phase(20, 64, 65, {"web": 2, "code": 1})]
    reader, code = PositionReader(2 * 10**6, "web"), PositionReader(10**6, "c")
    curriculum = Curriculum(reader, phases, {"code": code}, primary="web")
    figure = curriculum.plan().plot()

    texts = [text.get_text() for text in figure.findobj(Text)]
    assert any("web" in text for text in texts)
    assert not any("self" in text for text in texts)


def test_without_matplotlib_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "roxxel_curriculum._plan.picture", raising=False)

    with pytest.raises(ModuleNotFoundError, match=r"needs matplotlib; .*plot"):
        example().plan().plot()


def test_importing_the_package_loads_numpy_and_the_format_alone() -> None:
    program = (
        "import sys, roxxel_curriculum as r\n"
        "from roxxel_curriculum.testing import PositionReader\n"
        "c = r.Curriculum(PositionReader(9999), [r.Phase(3, 2, 9)])\n"
        "print(c.plan()); c.sampler(1).batch(0)\n"
        "heavy = {'matplotlib', 'jax', 'tomllib', 'pandas', 'scipy'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )

    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_equal_plans_have_no_difference() -> None:
    found = example().plan(7).diff(example().plan(7))

    assert not found
    assert found == PlanDiff(None, ())
    assert str(found) == "every batch is the same"


@pytest.mark.parametrize(
    ("edited", "step", "change"),
    [
        (example(Phase(200, 64, 65), longest=129), 200, "phase 1 is gone"),
        (
            example(Phase(250, 64, 65), Phase(200, 16, 129, BLEND)),
            200,
            "phase 0 has 250 steps instead of 200",
        ),
        (
            example(Phase(200, 64, 65), Phase(200, 8, 129, BLEND)),
            200,
            "batch_size of phase 1 is 8 instead of 16",
        ),
        (
            example(Phase(200, 64, 65), Phase(200, 16, 129, {"self": 1})),
            200,
            "weights of phase 1 are self 1 instead of self 0.6, code 0.3, math 0.1",
        ),
        (example(skips=[(50, 2)]), 50, "before step 50 the data of 2 steps is skipped"),
        (example(longest=500), 0, "longest is 500 instead of 129"),
        (
            example(policies={"math": "repeat"}),
            344,
            "source 'math' runs out in no step of phase 1 instead of step 344",
        ),
    ],
)
def test_a_difference_says_what_changes_and_from_which_step(
    edited: Curriculum, step: int, change: str
) -> None:
    found = example().plan().diff(edited.plan())

    assert found.step == step
    assert change in str(found)
    assert any(change in each for each in found.causes)
    assert not [each for each in found.causes if " gives " in each]


def test_a_phase_that_a_run_edits_twice_is_compared_with_itself() -> None:
    def declared(weights: dict[str, float]) -> Curriculum:
        web, code = PositionReader(10**5, "web"), PositionReader(1500, "c")
        phases = [Phase(90, 4, 9, weights), Phase(5, 2, 9)]
        return Curriculum(web, phases, {"code": code}, policies={"code": "drop"})

    first, second = declared({"self": 1, "code": 1}), declared({"self": 4, "code": 1})
    state = first.sampler(5).state(20)
    state = second.sampler(5, state).state(60)

    whole, edited = first.plan(5), first.plan(state=state)
    old, new = "self 0.5, code 0.5", "self 0.8, code 0.2"
    since = "from step 20 on, the weights of phase 0 are"
    spent = (
        "source 'code' runs out in no step of phase 0 instead of step 80 (161 samples)"
    )

    assert [phase.index for phase in edited.phases] == [0, 0, 0, 1]
    found, back = whole.diff(edited), edited.diff(whole)
    assert found.step == back.step == 20
    assert found.changes[:2] == (f"{since} {new} instead of {old}", spent)
    assert back.changes[0] == f"{since} {old} instead of {new}"
    assert not edited.diff(first.plan(state=state))


def test_weights_that_look_alike_are_shown_exactly() -> None:
    first, second = (
        example(Phase(9, 1, 65, {"self": part, "code": 1_000_000 - part}))
        for part in (500_001, 500_002)
    )

    assert (
        "weights of phase 0 are {'code': 249999, 'self': 250001} instead of "
        "{'code': 499999, 'self': 500001}"
    ) in str(first.plan().diff(second.plan()))


def test_the_epochs_of_a_phase_are_named_as_the_epochs_so_far() -> None:
    corpus = PositionReader(65 * 64 * 10, "web")
    plan = Curriculum(corpus, [Phase(5, 64, 65), Phase(4, 64, 65)]).plan()
    header = ["source", "share", "samples", "tokens", "epochs", "so", "far"]

    lines = str(plan).splitlines()

    assert [phase.sources[0].epochs for phase in plan.phases] == [0.5, 0.9]
    assert sum(line.split()[:7] == header for line in lines) == 1
    rows = [line.split() for line in lines if line.startswith("self")]
    assert [row[5] for row in rows[:2]] == ["0.500", "0.900"]


def test_both_tables_have_the_sources_in_one_order() -> None:
    lines = str(example().plan()).splitlines()

    of_phase = next(i for i, line in enumerate(lines) if line.startswith("phase 1:"))
    of_run = next(i for i, line in enumerate(lines) if "holds" in line)
    for rows in (lines[of_phase + 1 :], lines[of_run + 2 :]):
        assert [row.split()[0] for row in rows[:3]] == ["self", "code", "math"]


def test_a_source_that_is_spent_no_more_changes_where_its_phase_begins() -> None:
    before, after = (
        Curriculum(
            PositionReader(10**5),
            # The first phase leaves the last round of `code` unfinished.
            [Phase(7, 1, 50, {"code": 1}), Phase(5, 1, 9, {"self": 5, "code": 1})],
            {"code": PositionReader(600)},
            policies={"code": policy},
            longest=100,
        )
        for policy in ("drop", "repeat")
    )

    assert [source.is_spent for source in before.plan().phases[1].sources] == [
        True,
        False,
    ]
    found = before.plan().diff(after.plan())
    assert found.step == 7
    spent = "source 'code' runs out in no step of phase 1 instead of step 7 (0 samples)"
    assert spent in str(found)
    back = after.plan().diff(before.plan())
    assert "runs out in step 7 (0 samples) of phase 1 instead of no step" in str(back)


def test_a_source_that_is_added_or_removed_changes_from_its_first_step() -> None:
    first, second = Phase(200, 64, 65), Phase(200, 16, 129)
    web, math = PositionReader(2 * 10**6, "web"), PositionReader(30_000, "m")
    without = Curriculum(web, [first, second])
    mixed = Phase(200, 16, 129, {"self": 3, "math": 1})
    with_math = Curriculum(web, [first, mixed], {"math": math})

    added = without.plan().diff(with_math.plan())
    removed = with_math.plan().diff(without.plan())

    assert added.step == removed.step == 200
    assert "source 'math' is new" in added.changes
    assert "source 'math' is gone" in str(removed)


def test_another_source_changes_from_where_it_is_first_read() -> None:
    other = Curriculum(
        PositionReader(2 * 10**6, "web"),
        [Phase(200, 64, 65), Phase(200, 16, 129, BLEND)],
        {"code": PositionReader(10**6, "c"), "math": PositionReader(40_000, "m")},
    )

    found = example().plan().diff(other.plan())

    assert found.step == 200
    assert "source 'math' holds other data: 40,000 tokens instead of 30,000" in str(
        found
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(declared=declarations(), data=st.data())
def test_no_batch_before_the_step_of_a_difference_changes(
    declared: Declared, data: st.DataObject
) -> None:
    curriculum = declared.curriculum()
    phases = list(declared.phases)
    number = data.draw(st.integers(0, len(phases) - 1))
    old = phases[number]
    phases[number] = Phase(
        data.draw(st.sampled_from([old.steps, 3, 7])),
        data.draw(st.sampled_from([old.batch_size, 4])),
        data.draw(st.sampled_from([old.seq_len, 11])),
        data.draw(st.sampled_from([old.weights, None])),
    )
    policies: dict[str, Any] = {
        name: data.draw(st.sampled_from([policy, "repeat", "drop"]))
        for name, policy in declared.policies.items()
    }
    try:
        edited = declared.curriculum(
            phases=phases,
            policies=policies,
            longest=data.draw(st.sampled_from([curriculum.longest, None])),
            skips=data.draw(st.sampled_from([declared.skips, ()])),
        )
    except ValueError:
        assume(False)
        return
    found = curriculum.plan().diff(edited.plan())

    before, after = curriculum.sampler(5), edited.sampler(5)
    same = found.step
    if same is None:
        assert before.total_steps == after.total_steps
        same = before.total_steps
    for step in range(same):
        assert digest(before, step) == digest(after, step)


def test_twenty_sources_ten_phases_and_ten_to_the_thirteenth_tokens_are_planned() -> (
    None
):
    names = [f"s{number:02}" for number in range(19)]
    weights = {"self": 1.0, **{name: 0.5**i for i, name in enumerate(names)}}
    curriculum = Curriculum(
        PositionReader(5 * 10**12),
        [Phase(10**6, 512, 1025 + 512 * number, weights) for number in range(10)],
        {
            name: PositionReader(5 * 10**12 // 19 // (i + 1))
            for i, name in enumerate(names)
        },
    )

    plan = curriculum.plan()

    assert plan.total_tokens == sum(
        10**6 * 512 * (1025 + 512 * number) for number in range(10)
    )
    assert sum(source.tokens for source in plan.sources) == plan.total_tokens


def test_diff_names_a_source_that_runs_out_later_in_the_same_step() -> None:
    web, code = PositionReader(9_000, "web"), PositionReader(100, "code")
    phases = [Phase(3, 40, 10, {"self": 1, "code": 1})]  # 10 samples of `code` an epoch
    once, twice = (
        Curriculum(web, phases, {"code": code}, policies={"code": epochs})
        for epochs in (1, 2)
    )

    diff = once.plan().diff(twice.plan())

    changed = once.sampler(0).batch(0) != twice.sampler(0).batch(0)
    assert changed.any()
    assert diff.step == 0
    assert any("10" in change and "20" in change for change in diff.changes)
