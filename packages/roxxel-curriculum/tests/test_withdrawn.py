"""What is withdrawn is masked from a step on, and nothing else of a batch changes."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from bisect import bisect_right
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    IndexSet,
    Phase,
    Schedule,
    StateMismatch,
    recorded_sampler,
)
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ShardError
from roxxel_format.scans import Evals, Scan

from .helpers import declarations

if TYPE_CHECKING:
    from roxxel_curriculum import Sampler

    from .helpers import Declared

FIELDS = ("tokens", "segment_ids", "positions", "source", "loss_mask")
LAW = settings(max_examples=30, deadline=None)


Without = dict[str, list[Any]]
"""Numbers of documents, and ranges of tokens as texts, by source."""


def drawn(data: st.DataObject, declared: Declared) -> Without:
    """Draw documents and ranges of tokens to withdraw of some sources."""
    return {
        name: [
            *data.draw(st.sets(st.integers(0, len(reader.documents) - 1))),
            *data.draw(st.lists(_texts(reader.num_tokens), max_size=3)),
        ]
        for name, reader in declared.readers.items()
        if data.draw(st.booleans())
    }


def _texts(num_tokens: int) -> st.SearchStrategy[str]:
    bounds = st.sets(st.integers(0, num_tokens), min_size=2, max_size=2)
    return bounds.map(lambda each: f"tokens:[{min(each)},{max(each)})")


def in_ranges(items: list[Any]) -> set[int]:
    """Return the tokens in the ranges among these items."""
    texts = [each[8:-1].split(",") for each in items if isinstance(each, str)]
    return {at for start, stop in texts for at in range(int(start), int(stop))}


def expected(
    sampler: Sampler, declared: Declared, without: Without, step: int
) -> tuple[Any, Any]:
    """Return `loss_mask` of a step, and 0 where its tokens are not read."""
    windows = sampler.windows(step)
    at = windows.start[:, None] + np.arange(sampler.shape(step)[1])
    mask, is_read = np.ones(at.shape, np.int32), np.ones(at.shape, np.int32)
    for name, items in without.items():
        size = declared.readers[name].document_tokens
        numbers = [item for item in items if isinstance(item, int)]
        rows = windows.source == sampler.source_names.index(name)
        mask[rows] = ~np.isin(at[rows] // size, numbers)
        is_read[rows] = ~np.isin(at[rows], [*in_ranges(items)])
    return mask * is_read, is_read


@LAW
@given(data=st.data(), declared=declarations())
def test_a_withdrawn_token_is_never_a_target_and_nothing_else_changes(
    data: st.DataObject, declared: Declared
) -> None:
    without = drawn(data, declared)
    plain = declared.curriculum().sampler(3, fields=FIELDS)
    sampler = declared.curriculum(without=without).sampler(3, fields=FIELDS)
    step = data.draw(st.integers(0, sampler.total_steps - 1))

    before, batch = plain.batch(step), sampler.batch(step)

    assert np.array_equal(before.pop("loss_mask"), np.ones(plain.shape(step)))
    kept, is_read = expected(sampler, declared, without, step)
    assert batch["loss_mask"].dtype == np.int32
    assert np.array_equal(batch["loss_mask"], kept)
    assert np.array_equal(batch["tokens"], before.pop("tokens") * is_read)
    for name in before:
        assert np.array_equal(before[name], batch[name])
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, kept.shape[1])] * 2)))
    rows = data.draw(st.lists(st.integers(0, kept.shape[0] - 1)))
    part = sampler.rows(step, rows, slice(start, stop))
    for name in ("loss_mask", "tokens"):
        assert np.array_equal(part[name], batch[name][rows, start:stop])


@LAW
@given(data=st.data(), declared=declarations())
def test_what_is_withdrawn_never_changes_which_windows_are_read(
    data: st.DataObject, declared: Declared
) -> None:
    plain = declared.curriculum().sampler(3)
    sampler = declared.curriculum(without=drawn(data, declared)).sampler(
        3, fields=FIELDS
    )

    assert sampler.phases == plain.phases
    for step in range(plain.total_steps):
        one, other = plain.windows(step), sampler.windows(step)
        assert np.array_equal(one.source, other.source)
        assert np.array_equal(one.start, other.start)


@LAW
@given(data=st.data(), declared=declarations())
def test_documents_and_ranges_together_mask_what_each_masks_alone(
    data: st.DataObject, declared: Declared
) -> None:
    parts = [drawn(data, declared) for _ in range(2)]
    names = {name for part in parts for name in part}
    union = {name: [*chain(*(part.get(name, ()) for part in parts))] for name in names}

    one, other, both = (
        declared.curriculum(without=each).sampler(3, fields=FIELDS)
        for each in (*parts, union)
    )

    step = data.draw(st.integers(0, both.total_steps - 1))
    first, second, found = (each.batch(step) for each in (one, other, both))
    masks = first["loss_mask"] * second["loss_mask"]
    assert np.array_equal(found["loss_mask"], masks)
    tokens = np.minimum(first["tokens"], second["tokens"])
    assert np.array_equal(found["tokens"], tokens)


@LAW
@given(data=st.data(), declared=declarations())
def test_an_edit_holds_from_the_step_at_which_a_run_resumes(
    data: st.DataObject, declared: Declared
) -> None:
    total = declared.curriculum().total_steps
    edits = [drawn(data, declared) for _ in range(3)]
    marks = sorted(data.draw(st.tuples(*[st.integers(0, total)] * 2)))
    steps = [0, *marks, total]
    state: dict[str, Any] | None = None
    sampler: Any = None

    for without, stop in zip(edits, steps[1:], strict=True):
        curriculum = declared.curriculum(without=without)
        sampler = curriculum.sampler(3, state, fields=FIELDS)
        if state is not None:
            sampler.check(state)
        state = json.loads(json.dumps(sampler.state(stop)))

    assert state is not None
    plain = declared.curriculum().sampler(3)
    past = recorded_sampler(state, declared.readers, fields=FIELDS)
    unmasked = recorded_sampler(state, declared.readers)
    sampler.check(past.state(total))
    for step in data.draw(st.sets(st.integers(0, total - 1), max_size=4)):
        without = edits[bisect_right(marks, step)]
        mask, is_read = expected(sampler, declared, without, step)
        tokens = plain.batch(step) * is_read
        for each in (sampler, past):
            assert np.array_equal(each.batch(step)["loss_mask"], mask)
            assert np.array_equal(each.batch(step)["tokens"], tokens)
        assert np.array_equal(unmasked.batch(step), tokens)
    name = data.draw(st.sampled_from(sorted(declared.readers)))
    reader = declared.readers[name]
    document = data.draw(st.integers(0, len(reader.documents) - 1), label="document")
    masked = [step for steps in past.masked_steps(name, document) for step in steps]
    assert masked == [
        step
        for index, without in enumerate(edits)
        if document in without.get(name, ())
        for step in range(steps[index], steps[index + 1])
    ]
    token = data.draw(st.integers(0, reader.num_tokens - 1), label="token")
    ranges = past.masked_ranges(name, token, token + 1)
    assert [step for each in ranges.get((token, token + 1), ()) for step in each] == [
        step
        for index, without in enumerate(edits)
        if token in in_ranges(without.get(name, []))
        for step in range(steps[index], steps[index + 1])
    ]


@pytest.mark.parametrize("document", [-1, 5, 2**70])
def test_steps_of_a_document_that_does_not_exist_are_an_error(document: int) -> None:
    corpus = PositionReader(500, document_tokens=100)
    for without in ({}, {"self": [4]}):
        sampler = Curriculum(corpus, [Phase(2, 2, 9)], without=without).sampler(
            0, fields=FIELDS
        )
        message = (
            f"source 'self' has no document {document}; it has the documents [0, 5)"
        )
        with pytest.raises(IndexError, match=re.escape(message)):
            sampler.masked_steps("self", document)
        assert sampler.masked_steps("self", 3) == ()


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))),
    far=st.integers(0, 2**40),
)
def test_a_set_of_indices_is_a_set(ranges: list[tuple[int, int]], far: int) -> None:
    numbers = {far + n for start, stop in ranges for n in range(start, stop)}
    found = IndexSet([far + a for a, _ in ranges], [far + b for _, b in ranges])

    assert len(found) == len(numbers)
    asked = np.arange(far - 3, far + 70)
    assert found.holds(asked).tolist() == [n in numbers for n in asked.tolist()]
    assert found.touches(asked, 5).tolist() == [
        not numbers.isdisjoint(range(n, n + 5)) for n in asked.tolist()
    ]
    parts = found.within(far + 10, far + 30)
    clipped = numbers & {*range(far + 10, far + 30)}
    assert [n for start, stop in parts for n in range(start, stop)] == sorted(clipped)
    again = IndexSet.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert hash(again) == hash(found)
    array = np.array(sorted(numbers), np.int64)
    assert IndexSet(array, array + 1) == found


def reader(name: str = "", documents: int = 100) -> PositionReader:
    return PositionReader(documents * 100, name, document_tokens=100)


def curriculum(**options: Any) -> Curriculum:
    return Curriculum(
        reader(),
        [Phase(9, 4, 129, {"self": 1, "web": 1})],
        {"web": reader("w")},
        **options,
    )


def masked(without: Any) -> list[int]:
    sampler = curriculum(without={"web": without}).sampler(1, fields=["loss_mask"])
    (withdrawal,) = sampler.withdrawals
    assert (withdrawal.step, withdrawal.source) == (0, "web")
    return np.flatnonzero(withdrawal.documents.holds(np.arange(100))).tolist()


def test_documents_are_numbers_ranges_pairs_arrays_and_files(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("5\n3\n\n")
    np.save(tmp_path / "numbers.npy", np.array([3, 5], np.uint64))

    for given_ in (
        [3, 5],
        {5, 3},
        (n for n in (5, 3, 3)),
        [range(3, 4), [5, 6]],
        np.array([5, 3], np.int16),
        [np.int32(3), np.uint8(5)],
        numbers,
        str(numbers),
        tmp_path / "numbers.npy",
        [3, str(numbers)],
        [tmp_path / "numbers.npy"],
    ):
        assert masked(given_) == [3, 5]
    assert masked(range(3, 6)) == [3, 4, 5]


@pytest.mark.parametrize(
    "given_",
    [
        "tokens:[512,1024)",
        ["tokens:[ 512 , 600 )", "tokens:[600,1024)", 3],
        Path("items.txt"),
    ],
)
def test_ranges_of_tokens_stand_alone_or_in_lists_and_files(
    given_: Any, tmp_path: Path
) -> None:
    (tmp_path / "items.txt").write_text("3\ntokens:[512,1024)\n")
    if isinstance(given_, Path):
        given_ = tmp_path / given_

    sampler = curriculum(without={"web": given_}).sampler(1, fields=["loss_mask"])

    (withdrawal,) = sampler.withdrawals
    assert withdrawal.tokens == IndexSet([512], [1024])
    assert len(withdrawal.documents) == (given_ != "tokens:[512,1024)")


def scan_of(corpus: str, found: list[list[int]], num_tokens: int = 10_000) -> Scan:
    """Return the receipt of a scan that has found these rows."""
    evals = Evals(("exam.jsonl",), "0f", num_texts=2, num_short=0)
    rows = np.array(found, np.int64).reshape(-1, 4)
    return Scan(corpus, num_tokens, evals, 13, "words", rows)


def test_a_receipt_of_a_scan_withdraws_its_tokens_beside_other_items(
    tmp_path: Path,
) -> None:
    path, fingerprint = tmp_path / "web_scan.json", reader("w").fingerprint
    scan_of(fingerprint, [[512, 530, 5, 0], [600, 613, 6, 1]]).write(path)

    sampler = curriculum(without={"web": [str(path), 3]}).sampler(
        1, fields=["loss_mask"]
    )

    (withdrawal,) = sampler.withdrawals
    assert withdrawal.tokens == IndexSet([512, 600], [530, 613])
    assert masked([str(path), 3]) == [3]
    assert masked(path) == []


def test_a_receipt_of_another_corpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scan.json"
    scan_of("0123", [[512, 530, 5, 0]]).write(path)

    with pytest.raises(CurriculumError, match=r"scan\.json: .*0123.*scan this source"):
        curriculum(without={"web": path})


@pytest.mark.parametrize(
    "found", [[[9, 3, 0, 0]], [[0, 9, 0, 0], [3, 12, 0, 0]], [[0, 10_001, 0, 0]]]
)
def test_a_receipt_whose_ranges_cannot_be_is_refused(
    found: list[list[int]], tmp_path: Path
) -> None:
    path = tmp_path / "scan.json"
    scan_of(reader("w").fingerprint, found).write(path)

    with pytest.raises(ShardError, match=r"scan\.json: is no receipt of a scan \(its"):
        curriculum(without={"web": str(path)})
    path.write_bytes(path.read_bytes().replace(b"exam", b"axam"))
    with pytest.raises(ShardError, match=r"scan\.json: .*damaged"):
        Scan.read(path)


@pytest.mark.parametrize("without", [None, {}, {"web": []}, {"web": range(0)}])
def test_nothing_withdrawn_is_a_plain_run(without: Any) -> None:
    sampler = curriculum(without=without).sampler(1)

    assert sampler.withdrawals == ()
    assert sampler.state(9) == curriculum().sampler(1).state(9)


@pytest.mark.parametrize(
    ("without", "error", "message"),
    [
        ({"code": [1]}, CurriculumError, "unknown source 'code'; the sources are"),
        ({"web": [100]}, CurriculumError, "document 100 of source 'web', which has"),
        ({"web": [-1]}, CurriculumError, "document -1 of source 'web', which has the"),
        ({"web": [3, 2**63]}, CurriculumError, "'web' have .* more than 64 bits; give"),
        ({"web": range(2**62)}, CurriculumError, "of source 'web', which has the"),
        ({"web": [[5, 3]]}, CurriculumError, r"the falling range \[5, 3\); give"),
        (
            {"web": [[5]]},
            CurriculumError,
            r"pairs \[start, stop\], paths of .*, got \[5\]",
        ),
        ({"web": [range(0, 9, 2)]}, CurriculumError, "give a range with step 1"),
        ({"web": [1.5]}, TypeError, "must be integers, ranges, pairs"),
        ({"web": b"7"}, TypeError, "must be integers, ranges, an array, or the path"),
        ({"web": 7}, TypeError, "must be integers, ranges, an array, or the path"),
        ({"web": np.zeros((2, 2), int)}, TypeError, "2 dimensions of int64"),
        ({"web": np.zeros(2)}, TypeError, "1 dimensions of float64"),
        ({"web": ["tokens:[9,10001)"]}, CurriculumError, "token 10000 of source 'web'"),
        ({"web": ["tokens:[9,9)"]}, CurriculumError, r"tokens:\[9,9\).*no token; give"),
        ({"web": ["tokens:9-12"]}, CurriculumError, r"write a range .*tokens:\[512,"),
        ({"web": "tokens:9-12"}, CurriculumError, r"write a range .*tokens:\[512,1024"),
        ({"web": ["ids"]}, TypeError, r"'tokens:\[512,1024\)', got 'ids'"),
        ({"web": [3, "ids.txt"]}, FileNotFoundError, "ids.txt: does not exist"),
        ([1], TypeError, "without must be a table"),
    ],
)
def test_wrong_documents_are_one_sentence(
    without: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        curriculum(without=without)


def test_a_file_that_is_not_a_list_of_documents_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    for line in ("x", "3,4", "3 # a comment", "3.0", "1_0", "\u0663"):
        path.write_text(f"3\n{line}\n", encoding="utf-8")
        with pytest.raises(CurriculumError, match=r"ids\.txt: line 2 is '.*which is"):
            curriculum(without={"web": path})
    name = "file:///usr/share/man/man1/gcloud_beta_compute_instances.1"
    path.write_text(f"{name}\n")
    with pytest.raises(CurriculumError, match=f"line 1 is '{name}', "):
        curriculum(without={"web": path})
    path.write_text("3\n99999999999999999999\n")
    with pytest.raises(CurriculumError, match=r"ids\.txt: line 2 is '9999"):
        curriculum(without={"web": path})
    path.write_bytes(b"\xef\xbb\xbf3\r\n 5 \r\n")
    assert masked(path) == [3, 5]


@pytest.mark.parametrize("name", ["gone.txt", "gone.npy"])
def test_a_file_of_documents_that_does_not_exist_is_one_sentence(
    name: str, tmp_path: Path
) -> None:
    message = (
        f"{tmp_path / name}: does not exist, but should list the withdrawn documents "
        "of source 'web'; correct the path, or write the file with one number on each "
        "line"
    )
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        curriculum(without={"web": tmp_path / name})


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.npy", "/dev/zero"])
def test_a_file_of_documents_ends(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if "pipe" in name:
        os.mkfifo(path)

    with pytest.raises(CurriculumError, match=f"^{path}: is a .*one number on each"):
        curriculum(without={"web": path})


def test_an_array_that_is_not_a_list_of_documents_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    for array in (np.zeros((2, 2), int), np.zeros(2), np.array([True])):
        np.save(path, array)
        with pytest.raises(CurriculumError, match=r"ids\.npy: is not a list of docum"):
            curriculum(without={"web": path})
    for size in (0, 60, 130):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(CurriculumError, match=r"ids\.npy: is not a list of docum"):
            curriculum(without={"web": path})


def test_batches_that_do_not_say_what_is_withdrawn_are_refused() -> None:
    """A loop that never sees the mask would learn the documents silently."""
    withdrawing = curriculum(without={"web": [3]})

    with pytest.raises(CurriculumError, match=r"fields = \['tokens', 'loss_mask'\]"):
        withdrawing.sampler(1)


def test_a_state_with_another_withdrawal_is_not_the_past_of_a_sampler() -> None:
    fields = ("tokens", "loss_mask")
    state = curriculum(without={"web": [3]}).sampler(1, fields=fields).state(5)
    plain = curriculum().sampler(1)

    with pytest.raises(StateMismatch, match="step 0 on: nothing instead of 1 document"):
        plain.check(state)
    with pytest.raises(StateMismatch, match="on: 2 documents instead of 1 document"):
        curriculum(without={"web": [3, 4]}).sampler(1, fields=fields).check(state)


def test_plan_and_diff_say_from_which_step_what_is_withdrawn() -> None:
    state = curriculum().sampler(1).state(5)
    edited = curriculum(without={"web": [3, 4]})

    plan = edited.plan(1, state)
    diff = curriculum().plan(1, state).diff(plan)

    assert "from step 5 on, 2 documents of web are withdrawn" in str(plan)
    assert plan.to_dict()["withdrawn"][0]["step"] == 5
    assert diff.step == 5
    assert diff.changes == (
        "withdrawn of source 'web' from step 5 on: 2 documents instead of nothing",
    )
    other = curriculum(without={"web": [3, 5]}).plan(1, state)
    assert plan.diff(other).changes == (
        "withdrawn of source 'web' from step 5 on: 2 documents instead of others",
    )
    assert not plan.diff(edited.plan(1, state))
    ranged = curriculum(without={"web": [3, "tokens:[0,1024)"]}).plan(1, state)
    assert "from step 5 on, 1 document and 1,024 tokens of web are" in str(ranged)
    assert ranged.to_dict()["withdrawn"][0]["tokens"] == 1024
    moved = curriculum(without={"web": [3, "tokens:[1,1025)"]}).plan(1, state)
    assert ranged.diff(moved).step == 5


def test_a_plan_says_that_a_withdrawn_source_is_not_read() -> None:
    never = Curriculum(
        reader(),
        [Phase(9, 4, 129, {"self": 1, "web": 0})],
        {"web": reader("w")},
        without={"web": [3]},
    )

    assert "the run reads no tokens of this source then" in str(never.plan())
    assert (
        Curriculum(reader(), [Phase(9, 4, 129)]).plan().diff(never.plan()).step is None
    )


@pytest.mark.parametrize("name", ["ids.npy", "ids.txt"])
def test_a_file_of_many_documents_takes_little_memory(
    tmp_path: Path, name: str
) -> None:
    numbers = np.arange(0, 400_000, 2)
    path = tmp_path / name
    np.save(path, numbers) if name == "ids.npy" else np.savetxt(path, numbers, "%d")
    tracemalloc.start()

    with pytest.raises(CurriculumError, match="document 399998 of source 'web'"):
        curriculum(without={"web": path})

    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 150 * numbers.size


def test_many_withdrawn_documents_are_a_small_state() -> None:
    """At most 2 bytes for each number that is spread evenly."""
    numbers = np.sort(np.random.default_rng(0).choice(10**7, 10**5, replace=False))
    found = IndexSet(numbers, numbers + 1)

    entry = found.to_json()

    assert len(json.dumps(entry)) < 2 * 10**5
    assert IndexSet.from_json(entry) == found


def test_a_schedule_withdraws_documents_of_a_file_in_its_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "ids.txt").write_text("7\n")
    phase = Phase(9, 4, 129, {"self": 1, "web": 0})
    items = [3, [10, 12], "tokens:[5,9)"]
    schedule = Schedule((phase,), without={"web": items, "self": "ids.txt"})

    found = schedule.relative_to(tmp_path).curriculum(reader(), {"web": reader("w")})

    amounts = {each.source: each.amount for each in found.plan().withdrawn}
    assert amounts == {"self": "1 document", "web": "3 documents and 4 tokens"}
    ranged = Schedule((phase,), without={"self": "tokens:[5,9)"})
    assert ranged.relative_to(tmp_path).without == ranged.without


def test_a_schedule_withdraws_what_an_iterator_gives_from_each_curriculum() -> None:
    schedule = Schedule(
        (Phase(9, 4, 129),), without={"self": iter([3, "tokens:[5,9)"])}
    )

    for _ in range(2):
        [found] = schedule.curriculum(reader()).plan().withdrawn
        assert found.amount == "1 document and 4 tokens"


def test_a_source_that_was_never_read_may_go_with_what_is_withdrawn_of_it() -> None:
    fields = ("tokens", "loss_mask")
    later = [Phase(5, 2, 10), Phase(5, 2, 10, {"self": 1, "web": 1})]
    began = Curriculum(
        reader(), later, {"web": reader("w")}, without={"web": [3], "self": [0]}
    )
    state = began.sampler(0, fields=fields).state(3)

    without = {"self": [0]}
    edited = Curriculum(reader(), [Phase(10, 2, 10)], without=without)

    before = began.sampler(0, fields=fields)
    for sampler in (
        edited.sampler(state=state, fields=fields),
        recorded_sampler(state, {"self": reader()}, fields),
    ):
        sampler.check(state)
        for step in range(3):
            for name, values in sampler.batch(step).items():
                np.testing.assert_array_equal(values, before.batch(step)[name])
    assert "web" in str(edited.plan(state=state))
