"""A plan says, over every step, whether one reads what a scan has found."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel.cli import main
from roxxel.cli._arguments import scans_of
from roxxel.config import load_config, open_sampler
from roxxel.runs.scans import reads_of
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel
from roxxel_format.scans import Evals, Scan
from roxxel_train import RunFolderError

from .runs import MODEL

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from roxxel_curriculum import Sampler

CONFIG = """\
model = "tiny:make"
save_path = "run"
primary = "web"

[sources]
web = "web_*.rox"
books = "books.rox"

[[phases]]
steps = 30
batch_size = 4
seq_len = 65
weights = { web = 0.5, books = 0.5 }

[trainer]
fields = ["tokens", "loss_mask"]
"""


def words(number: int, seed: object) -> str:
    chosen = random.Random(str(seed))
    return " ".join("".join(chosen.choices("aeioulnr", k=7)) for _ in range(number))


LEAK = words(20, "leak")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two corpora, of which web has the leak in two documents."""
    monkeypatch.chdir(tmp_path)
    texts = [words(40, n) for n in range(20)]
    texts[4] += f" {LEAK.upper()} {words(9, 'a')}"
    texts[11] = LEAK.replace(" ", "\n")
    Roxxel("web_*.rox").write(texts, tokenizer="bytes")
    Roxxel("books.rox").write([words(40, f"b{n}") for n in range(9)], tokenizer="bytes")
    (tmp_path / "exam.jsonl").write_text(json.dumps({"question": LEAK, "answer": "no"}))
    (tmp_path / "tiny.py").write_text(MODEL)
    (tmp_path / "run.toml").write_text(CONFIG)
    assert main(["scan", "web_*.rox", "--against", "exam.jsonl"]) == 0
    return tmp_path


def forward(sampler: Sampler, source: str, ranges: list[tuple[int, int]]) -> set[int]:
    """Return the steps whose windows hold some of the tokens, one after another."""
    index = sampler.source_names.index(source)
    found: set[int] = set()
    for step in range(sampler.total_steps):
        windows = sampler.windows(step)
        mine = windows.source == index
        for start, stop in ranges:
            overlaps = (windows.start[mine] < stop) & (windows.stop[mine] > start)
            if overlaps.any():
                found.add(step)
    return found


def test_without_the_receipt_the_plan_counts_the_steps_and_with_it_there_are_none(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, scan = project / "run.toml", Scan.read("web_scan.json")
    assert len(scan.found) == 2
    expected = forward(open_sampler(load_config(config)), "web", scan.ranges)
    assert len(expected) > 3

    assert main(["plan", "run.toml", "--scan", "web_scan.json"]) == 3

    out, err = capsys.readouterr()
    assert f"web: {len(expected)} steps read 13-grams of exam.jsonl: " in out
    assert "name the receipt under [without]" in err
    assert main(["plan", "run.toml", "--scan", "web_scan.json", "--json"]) == 3
    [shown] = json.loads(capsys.readouterr().out)["scans"]
    assert set(shown["steps"]) == expected
    config.write_text(CONFIG + '\n[without]\nweb = ["web_scan.json", 3]\n')
    assert main(["plan", "run.toml"]) == 0
    out = capsys.readouterr().out
    assert "web: no step reads 13-grams of exam.jsonl (" in out
    assert "in 2 places are left out); 1 of 2 texts were too short" in out
    # The claim, looked at in the batches: no byte of the leak is in any row.
    sampler = open_sampler(load_config(config))
    leaks = {word.encode() for word in LEAK.split()} | {
        word.encode() for word in LEAK.upper().split()
    }
    for step in range(sampler.total_steps):
        rows: npt.NDArray[np.int32] = sampler.batch(step)["tokens"]
        text = b"\n".join(row.clip(0, 255).astype(np.uint8).tobytes() for row in rows)
        assert not any(word in text for word in leaks)


def test_a_corpus_that_has_grown_since_its_scan_is_not_clean(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "run.toml").write_text(CONFIG + '\n[without]\nweb = "web_scan.json"\n')
    size = Roxxel("web_*.rox").num_tokens
    Roxxel("web_*.rox").write([LEAK], tokenizer="bytes", exist="append")

    assert main(["plan", "run.toml"]) == 3

    assert f"tokens [{size}, {size + len(LEAK) + 1}) came after" in (
        capsys.readouterr().out
    )
    assert main(["scan", "web_*.rox", "--against", "exam.jsonl"]) == 0
    assert main(["plan", "run.toml"]) == 0


def test_a_scan_of_another_corpus_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del project
    Roxxel("other.rox").write([LEAK], tokenizer="bytes")
    assert main(["scan", "other.rox", "--against", "exam.jsonl"]) == 0
    capsys.readouterr()

    assert main(["plan", "run.toml", "--scan", "other_scan.json"]) == 1

    assert "is of none of the sources 'web', 'books'" in capsys.readouterr().err


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_steps_are_those_of_the_batches_whatever_is_left_out_from_when_on(
    data: st.DataObject,
) -> None:
    reader, other = PositionReader(3000), PositionReader(900, "o")
    edges = st.lists(st.integers(0, 3000), min_size=4, max_size=8, unique=True)
    bounds = sorted(data.draw(edges))
    ranges = [*zip(bounds[::2], bounds[1::2], strict=False)]
    rows = np.array([[*each, 0, 0] for each in ranges], np.int64)
    evals = Evals(("exam.jsonl",), "0f", num_texts=1, num_short=0)
    scan = Scan(reader.fingerprint, 3000, evals, 13, "words", rows)
    phases = [Phase(40, 3, 33), Phase(30, 2, 65, {"self": 1, "o": 1})]

    def declared(left_out: list[tuple[int, int]]) -> Curriculum:
        without = {"self": [f"tokens:[{a},{b})" for a, b in left_out]}
        return Curriculum(reader, phases, {"o": other}, without=without)

    before = data.draw(st.lists(st.sampled_from(ranges), unique=True))
    after = data.draw(st.lists(st.sampled_from(ranges), unique=True))
    at, until = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))
    fields = ("tokens", "loss_mask")
    state = declared(before).sampler(1, fields=fields).state(at)
    sampler = declared(after).sampler(None, state, fields)

    [reads] = reads_of(sampler, {"self": reader, "o": other}, [scan], until)

    expected: set[int] = set()
    for step in range(until):
        left_out = before if step < at else after
        rest = [each for each in ranges if each not in left_out]
        windows = sampler.windows(step)
        mine = windows.source == 0
        for start, stop in rest:
            overlaps = (windows.start[mine] < stop) & (windows.stop[mine] > start)
            if overlaps.any():
                expected.add(step)
    assert set(reads.steps) == expected
    assert reads.is_clean == (not expected)
    with pytest.raises(RunFolderError, match="none of the sources 'o'"):
        reads_of(sampler, {"o": other}, [scan])


def test_a_run_that_was_copied_without_its_receipt_says_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "run.toml").write_text(CONFIG + '\n[without]\nweb = "web_scan.json"\n')
    config = load_config("run.toml")
    assert len(scans_of(config, [])) == 1
    (project / "web_scan.json").rename(project / "moved.json")

    assert scans_of(config, []) == []

    assert "web_scan.json: is gone" in capsys.readouterr().err
    assert len(scans_of(config, ["moved.json"])) == 1
