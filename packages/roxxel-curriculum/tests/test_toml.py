"""Schedules load from TOML as well as from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    Phase,
    Policy,
    Schedule,
    load_schedule,
    parse_schedule,
    schedule_from,
)
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
longest = 257
max_epochs = 4
overlap = 1
skips = [[12, 3]]

[policies]
code = "drop"
math = { epochs = 2, then = "stop" }
web = 3

[[phases]]
steps = 20
batch_size = 4
seq_len = 65
weights = { self = 1, web = 0 }

[[phases]]
epochs = 0.25
batch_size = 2
seq_len = 257
weights = { self = 0.7, code = 0.2, math = 0.1 }

[[phases]]
tokens = 100_000
batch_size = 2
seq_len = 33
"""


def test_a_file_says_what_python_says(tmp_path: Path) -> None:
    path = tmp_path / "schedule.toml"
    path.write_text(TEXT)

    found = load_schedule(path)

    assert found == Schedule(
        phases=(
            Phase(20, 4, 65, {"self": 1, "web": 0}),
            Phase(
                epochs=0.25,
                batch_size=2,
                seq_len=257,
                weights={"self": 0.7, "code": 0.2, "math": 0.1},
            ),
            Phase(tokens=100_000, batch_size=2, seq_len=33),
        ),
        longest=257,
        policies={"code": "drop", "math": Policy(2, "stop"), "web": 3},
        max_epochs=4,
        overlap=1,
        skips=((12, 3),),
    )
    mix = {name: PositionReader(50_000, name) for name in ("code", "math", "web")}
    loaded = found.curriculum(PositionReader(100_000), mix)
    declared = Curriculum(
        PositionReader(100_000),
        found.phases,
        mix,
        longest=257,
        policies=found.policies,
        max_epochs=4,
        overlap=1,
        skips=[(12, 3)],
    )
    assert not loaded.plan().diff(declared.plan())
    path.write_text(TEXT, encoding="utf-8-sig")
    assert load_schedule(path) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("phase = []", "a schedule has no key 'phase'; did you mean 'phases'?"),
        ("colour = 3", "a schedule has no key 'colour'; it has phases, longest"),
        (
            "[[phases]]\nsteps = 1\nbatch_sise = 2\nseq_len = 3",
            "phase 0 has no key 'batch_sise'; did you mean 'batch_size'?",
        ),
        ("[[phases]]\nsteps = 1\nseq_len = 3", "phase 0 has no batch_size"),
        (
            "[[phases]]\nsteps = 0\nbatch_size = 2\nseq_len = 3",
            "phase 0: steps of a phase must be at least 1, got 0",
        ),
        ("[policies]\na = { epoch = 2 }", "no key 'epoch'; did you mean 'epochs'?"),
        ("[policies]\na = { epochs = 0 }", "must be at least 1, got 0"),
        ("skips = [[1, 2, 3]]", r"a skip is a pair \[at, count\]"),
        ("phases = [", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(CurriculumError, match=message.replace("?", r"\?")):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"phases": 3}, "phases must be a list"),
        ({"phases": [3]}, "phase 0 must be a table"),
        ({"policies": [1]}, "policies must be a table"),
        ({"skips": 3}, "skips must be a list"),
        (
            {"phases": [{"steps": "many", "batch_size": 1, "seq_len": 1}]},
            "phase 0: steps of a phase must be an integer",
        ),
        (None, "a schedule must be a table"),
        ({"longest": "1"}, "longest must be an integer or None, got '1'"),
        ({"max_epochs": 1.5}, "max_epochs must be an integer or None, got 1.5"),
        ({"without": {"web": 3}}, "must be integers, ranges, an array, or the path of"),
        ({"without": {"web": ["3"]}}, "of source 'web' must be integers, .* got '3'"),
        ({"without": {"web": [3.0]}}, "must be integers, ranges or pairs .* got 3.0"),
        ({"overlap": True}, "overlap must be 0 or 1 tokens, got True"),
        ({"skips": [["a", 1]]}, "a skip is a pair of integers"),
        ({"policies": {"code": 1.5}}, "the policy of source 'code' is a float"),
        (
            {"policies": {"code": {"epochs": 1.5}}},
            "'code': epochs of a policy must be an integer, got 1.5",
        ),
    ],
)
def test_a_wrong_type_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        schedule_from(table)


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("phases = 3")

    with pytest.raises(CurriculumError, match=r"broken\.toml: phases must be a list"):
        load_schedule(path)
    path.write_bytes(b"# caf\xe9")
    with pytest.raises(CurriculumError, match=r"broken\.toml: 'utf-8' codec"):
        load_schedule(path)
    with pytest.raises(FileNotFoundError):
        load_schedule(tmp_path / "missing.toml")
