"""Every benchmark of the curriculum runs once, small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    curriculum_batch,
    curriculum_index,
    curriculum_scale,
    curriculum_seek,
    curriculum_where,
    curriculum_withdrawn,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpora = {
        name: curriculum_batch.write(tmp_path / f"{name}.rox", 2**20)
        for name in ("self", "a", "b")
    }

    curriculum_batch.compare(corpora, batch_size=512, seq_len=65, rounds=1)

    assert capsys.readouterr().out.startswith("3 sources, 512x65: bare read")


def test_more_sources_and_more_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curriculum_batch.split(tmp_path, 2**19, 4, 65, rounds=1, counts=(1, 3))

    assert "  3 sources,   4x65: tokens" in capsys.readouterr().out


def test_index_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    curriculum_index.compare_sizes(steps=8, rounds=1)
    curriculum_index.declare_and_plan(rounds=1, sizes=[(20, 10)])
    curriculum_index.memory()

    lines = capsys.readouterr().out.splitlines()
    assert [line[:13] for line in lines[:3]] == [
        "1e+08 tokens:",
        "1e+10 tokens:",
        "1e+13 tokens:",
    ]
    assert "declared in" in lines[3]
    assert all("KiB held" in line for line in lines[4:])


def test_a_run_of_many_sources_phases_and_hosts(tmp_path: Path) -> None:
    size = curriculum_scale.Size(5, 3, 10**9, 64, 129, 16)

    lines = curriculum_scale.table(size, rounds=2, folder=tmp_path).splitlines()

    assert lines[0] == "| 5 sources, 3 phases, 1 x 10^9 tokens, 16 hosts | |"
    assert lines[4].startswith("| a host's 4 x 129 tokens of the next step | ")
    assert lines[-1].endswith("opened before the first step | 1 |")


def test_seeking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = curriculum_seek.write_sparse(tmp_path, 2, num_tokens=10**8)

    curriculum_seek.compare(pattern, rounds=2)

    out = capsys.readouterr().out
    assert out.startswith("2.00e+08 tokens in 2 shards")
    assert "difference in turn" in out


def test_the_inverse(capsys: pytest.CaptureFixture[str]) -> None:
    curriculum_where.compare(rounds=2)

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ms")[0].rsplit(" ", 1)[0] for line in lines] == [
        "1e+08 tokens: where",
        "1e+10 tokens: where",
        "1e+13 tokens: where",
    ]


def test_withdrawn_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curriculum_withdrawn.compare(tmp_path, withdrawn=2000, rounds=2)

    assert "times one with segment_ids" in capsys.readouterr().out
