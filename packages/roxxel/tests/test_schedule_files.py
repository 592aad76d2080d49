"""Schedules load from TOML as well as from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from roxxel.config import ConfigError, load_schedule, parse_schedule, schedule_from
from roxxel_curriculum import Curriculum, Phase, Policy, Schedule
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from pathlib import Path

OFF = " or None (false in TOML)"

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
        ("phase = []", "the file has no key 'phase'; did you mean 'phases'?"),
        ("colour = 3", "the file has no key 'colour'; it has phases, longest"),
        (
            "[[phases]]\nsteps = 1\nbatch_sise = 2\nseq_len = 3",
            "phases.0 has no key 'batch_sise'; did you mean 'batch_size'?",
        ),
        ("[[phases]]\nsteps = 1\nseq_len = 3", "phases.0 has no batch_size; write"),
        (
            "[[phases]]\nsteps = 0\nbatch_size = 2\nseq_len = 3",
            f"phases.0.steps must be an integer of 1 or more{OFF}, got 0",
        ),
        (
            "[policies]\na = { epoch = 2 }",
            "[policies.a] has no key 'epoch'; did you mean 'epochs'?",
        ),
        (
            "[policies]\na = { epochs = 0 }",
            "policies.a.epochs must be an integer of 1 or more",
        ),
        ("skips = [[1, 2, 3]]", "skips.0 must be a pair [at, count], at from 0"),
        ("phases = [", "not TOML"),
        ("primary = 3", "primary must be a non-empty string, got 3"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schedule(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"phases": 3}, "phases must be a list, each entry a Phase"),
        ({"phases": [3]}, "phases.0 must be a Phase (a table in TOML), got 3"),
        ({"policies": [1]}, "policies must be a table, got [1]"),
        ({"skips": 3}, "skips must be a list"),
        (
            {"phases": [{"steps": "many", "batch_size": 1, "seq_len": 1}]},
            f"phases.0.steps must be an integer of 1 or more{OFF}, got 'many'",
        ),
        (None, "the file must be a table, got None"),
        (
            {"longest": "1"},
            f"longest must be an integer of 1 or more{OFF}, got",
        ),
        (
            {"max_epochs": 1.5},
            f"max_epochs must be an integer of 1 or more{OFF}",
        ),
        (
            {"phases": [], "without": {"web": 3}},
            "must be integers, ranges, an array, or the path of",
        ),
        (
            {"phases": [], "without": {"web": ["3"]}},
            "of source 'web' must be integers, ",
        ),
        ({"phases": [], "without": {"web": [3.0]}}, "must be integers, ranges, pairs "),
        ({"overlap": True}, "overlap must be 0 or 1, got True"),
        ({"overlap": 2}, "overlap must be 0 or 1, got 2"),
        ({"skips": [["a", 1]]}, "skips.0.0 must be an integer of 0 or more, got 'a'"),
        ({"policies": {"code": 1.5}}, "policies.code must be"),
        (
            {"policies": {"code": {"epochs": 1.5}}},
            f"policies.code.epochs must be an integer of 1 or more{OFF}",
        ),
    ],
)
def test_a_wrong_type_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schedule_from(table)
    assert message in str(caught.value)


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("phases = 3")

    with pytest.raises(ConfigError, match=r"broken\.toml: phases must be a list"):
        load_schedule(path)
    path.write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match=r"broken\.toml: is not text in UTF-8"):
        load_schedule(path)
    with pytest.raises(ConfigError, match=r"missing\.toml: no such file; give a sched"):
        load_schedule(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="is a folder; give a schedule"):
        load_schedule(tmp_path)


def test_a_schedule_s_paths_are_relative_to_its_file(tmp_path: Path) -> None:
    text = """
        primary = "docs"
        tokenizers = { web = "gpt2" }

        [without]
        web = [3, [10, 12]]
        docs = "ids.txt"

        [[phases]]
        steps = 9
        batch_size = 4
        seq_len = 129
        weights = { docs = 1, web = 0 }
    """
    (tmp_path / "ids.txt").write_text("7\n")
    (tmp_path / "schedule.toml").write_text(text)

    schedule = load_schedule(tmp_path / "schedule.toml")

    web = PositionReader(50_000, "web")
    found = schedule.curriculum(PositionReader(100_000), {"web": web})
    counts = {each.source: each.documents for each in found.plan().withdrawn}
    assert counts == {"docs": 1, "web": 3}
    assert parse_schedule(text).without["web"] == [3, [10, 12]]
    assert parse_schedule(text).tokenizers == {"web": "gpt2"}
