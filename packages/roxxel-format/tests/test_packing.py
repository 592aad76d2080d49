"""Packed corpora: documents whole in bins of equally many tokens."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError
from roxxel_format.cli import main

from .conformance.reader import seal
from .helpers import corpus_of, listed, window_rows

if TYPE_CHECKING:
    from pathlib import Path

QUICK = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def documents_of(sizes: list[int]) -> list[Any]:
    """Return documents whose first token is their number."""
    return [np.arange(size, dtype=np.uint16) + 1 + n for n, size in enumerate(sizes)]


def packed_corpus(folder: Path, sizes: list[int], **options: Any) -> Roxxel:
    arguments: dict[str, Any] = {"separator": 0, "vocab_size": 9000, "pack": 10}
    return corpus_of(folder, documents_of(sizes), **(arguments | options))


def spans_of(corpus: Roxxel) -> list[list[int]]:
    return corpus.document_spans(0, corpus.num_tokens).tolist()


@QUICK
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    unit=st.integers(2, 24),
    separator=st.sampled_from((0, b"\7\0\10\0", None)),
)
def test_documents_are_whole_in_one_bin_unless_they_are_longer(
    sizes: list[int], unit: int, separator: int | bytes | None, tmp_path: Path
) -> None:
    documents = documents_of(sizes)
    end = [7, 8] if isinstance(separator, bytes) else [0] * (separator == 0)
    texts: list[list[int]] = [each.tolist() + end for each in documents]
    if not any(texts):
        return
    corpus = packed_corpus(
        tmp_path, sizes, separator=separator, pack=unit, exist="replace"
    )
    assert (corpus.unit, corpus.num_tokens % unit) == (unit, 0)
    spans = spans_of(corpus)
    padding = [row for row in spans if row[0] < 0]
    parts = [row for row in spans if row[0] >= 0]
    # Padding ends its bin, and the parts of documents have all other tokens.
    assert all(
        stop % unit == 0 and start // unit != stop // unit for _, start, stop in padding
    )
    assert all(not corpus.tokens[start:stop].any() for _, start, stop in padding)
    assert sum(stop - start for _, start, stop in padding) == corpus.num_padding
    assert [row[0] for row in parts] == [*range(corpus.num_documents)]
    assert all(start // unit == (stop - 1) // unit for _, start, stop in parts)
    # Whole bins and a rest of each document, each once.
    expected = Counter(
        tuple(text[at : at + unit])
        for text in texts
        for at in range(0, len(text), unit)
    )
    assert expected == Counter(
        tuple(corpus.tokens[start:stop].tolist()) for _, start, stop in parts
    )
    assert corpus.num_cut == sum(len(text) > unit for text in texts)
    for number, start, stop in parts:
        assert corpus.document_range(number) == (start, stop, 0)
        assert corpus.documents[number].tolist() == corpus.tokens[start:stop].tolist()


def rooms_of(sizes: list[int], unit: int) -> list[int]:
    """Return the room that best-fit decreasing leaves in each bin, sorted."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        room = min((room for room in rooms if room >= size), default=unit)
        if room in rooms:
            rooms.remove(room)
        rooms.append(room - size)
    return sorted(rooms)


@QUICK
@given(sizes=st.lists(st.integers(1, 23), min_size=1, max_size=60))
def test_each_part_goes_into_the_fullest_bin_that_has_room(
    sizes: list[int], tmp_path: Path
) -> None:
    corpus = packed_corpus(tmp_path, sizes, separator=None, pack=24, exist="replace")
    rooms = [0] * (corpus.num_tokens // 24)
    for document, start, stop in spans_of(corpus):
        if document < 0:
            rooms[start // 24] = stop - start
    assert sorted(rooms) == rooms_of(sizes, 24)


@QUICK
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=80), data=st.data())
def test_spans_of_a_part_are_those_of_all_clipped(
    sizes: list[int], data: st.DataObject, tmp_path: Path
) -> None:
    corpus = packed_corpus(tmp_path, sizes, exist="replace")
    start = data.draw(st.integers(0, corpus.num_tokens - 1))
    stop = data.draw(st.integers(start, corpus.num_tokens))
    clipped = [[d, max(a, start), min(b, stop)] for d, a, b in spans_of(corpus)]
    expected = [row for row in clipped if row[1] < row[2]]
    for each in (corpus, corpus.with_check("blocks"), Roxxel(corpus.paths)):
        assert each.document_spans(start, stop).tolist() == expected


@QUICK
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=80),
    starts=st.lists(st.integers(0, 10**6), max_size=9),
    length=st.integers(0, 40),
)
def test_spans_of_windows_are_those_of_each(
    sizes: list[int], starts: list[int], length: int, tmp_path: Path
) -> None:
    corpus = packed_corpus(tmp_path, sizes, exist="replace")
    length = min(length, corpus.num_tokens)
    begins = [start % (corpus.num_tokens - length + 1) for start in starts]
    expected = [
        [window, *row]
        for window, start in enumerate(begins)
        for row in corpus.document_spans(start, start + length).tolist()
    ]
    for each in (corpus, corpus.with_check("blocks")):
        assert window_rows(each, begins, length) == expected


def test_bins_are_full_where_concatenation_would_cut_documents(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sizes = np.clip(random.lognormal(3, 1, 3000), 1, 255).astype(int).tolist()
    corpus = packed_corpus(tmp_path, sizes, pack=256)
    assert corpus.num_padding < 2 * 256
    assert corpus.num_cut == 0


def test_bins_keep_the_order_of_their_first_documents(tmp_path: Path) -> None:
    corpus = packed_corpus(tmp_path, [3, 8, 4, 9, 2])
    starts = [corpus.tokens[start] for _, start, _ in spans_of(corpus)]
    # With separators: 4 + 5 (2 of padding are less than 3), 9, 10, 3.
    assert [int(token) for token in starts] == [1, 3, 0, 2, 0, 4, 5, 0]


def test_shards_of_a_packed_corpus_hold_whole_bins(tmp_path: Path) -> None:
    corpus = packed_corpus(tmp_path, [7, 3, 12, 25, 1] * 400)
    table = listed(tmp_path)
    assert len(table["shards"]["tokens"]) > 2
    assert all(tokens % 10 == 0 for tokens in table["shards"]["tokens"])
    assert table["unit"] == 10
    assert sum(table["shards"]["padding"]) == corpus.num_padding
    assert sum(table["shards"]["cut"]) == corpus.num_cut == 800
    assert corpus.verify().ok


@pytest.mark.parametrize(("length", "pack"), [(8000, 9999), (4000, 4500)])
def test_a_bin_that_does_not_fit_has_a_shard_of_its_own(
    tmp_path: Path, length: int, pack: int
) -> None:
    packed_corpus(tmp_path, [length] * 2, pack=pack, max_shard_bytes=20_000)
    assert listed(tmp_path)["shards"]["tokens"] == [pack, pack]


def test_columns_move_with_their_documents(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    rows: list[dict[str, Any]] = [
        {"q": "a" * size, "a": chr(98 + n % 20) * (n % 30), "n": n}
        for n, size in enumerate(random.integers(0, 9, 200).tolist())
    ]
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(
        rows, separator=1, pack=16, prompt="q", completion="a", document_id="n"
    )
    mask, ids = corpus.column("loss_mask"), corpus.column("id")
    assert len(ids) == corpus.num_documents
    found: dict[int, list[tuple[int, int]]] = {}
    for document, start, stop in spans_of(corpus):
        learned = mask[start:stop].tolist()
        if document < 0:
            assert not any(learned)
        else:
            pairs = zip(corpus.tokens[start:stop].tolist(), learned, strict=True)
            found.setdefault(int(ids[document]), []).extend(pairs)
    for row in rows:
        prompt, completion = row["q"].encode(), row["a"].encode()
        expected = [(each, 0) for each in prompt]
        expected += [(each, 1) for each in (*completion, 1)]
        # A long document is cut in the order of its tokens.
        assert sorted(found[row["n"]]) == sorted(expected)
    values = np.arange(corpus.num_documents)
    corpus.write_column("score", values, per="document")
    assert corpus.column("score")[:].tolist() == values.tolist()


def test_an_append_with_another_unit_names_both(tmp_path: Path) -> None:
    packed_corpus(tmp_path / "p", [3, 8])
    with pytest.raises(ValueError, match="its pack is 10, but 12 of the new"):
        packed_corpus(tmp_path / "p", [3], pack=12, exist="append")
    with pytest.raises(ValueError, match="its pack is 10, but None of the new"):
        packed_corpus(tmp_path / "p", [3], pack=None, exist="append")
    packed_corpus(tmp_path / "d", [3, 8], pack=None)
    with pytest.raises(ValueError, match="its pack is None, but 10 of the new"):
        packed_corpus(tmp_path / "d", [3], exist="append")
    with pytest.raises(FileExistsError, match="pack is 10 in the corpus, 12 given"):
        packed_corpus(tmp_path / "p", [3, 8], pack=12)


def test_an_append_adds_bins_and_keeps_the_earlier_version(tmp_path: Path) -> None:
    corpus = packed_corpus(tmp_path, [3, 8, 25])
    before = corpus.num_padding, spans_of(corpus)
    packed_corpus(tmp_path, [1, 1, 12], exist="append")
    grown = Roxxel(tmp_path / "c_*.rox")
    assert grown.num_padding > before[0]
    assert grown.num_cut == 2
    old = grown.with_version(corpus.fingerprint)
    assert (old.num_padding, spans_of(old)) == before


def test_a_copy_and_an_adopted_corpus_keep_their_bins(tmp_path: Path) -> None:
    corpus = packed_corpus(tmp_path / "a", [3, 8, 25, 9] * 300)
    corpus.copy_to(tmp_path / "b" / "c_*.rox")
    Roxxel(corpus.paths).copy_to(tmp_path / "e" / "c_*.rox")
    before = listed(tmp_path / "a")
    (tmp_path / "a" / "c_manifest.json").unlink()
    Roxxel(tmp_path / "a" / "c_*.rox").adopt()
    for folder in "abe":
        after = listed(tmp_path / folder)
        for name in ("unit", "separator"):
            assert after[name] == before[name]
        for name in ("padding", "cut"):
            assert after["shards"][name] == before["shards"][name]


def test_shards_of_different_units_are_no_corpus(tmp_path: Path) -> None:
    one = packed_corpus(tmp_path / "a", [3, 8])
    two = packed_corpus(tmp_path / "b", [3, 8], pack=12)
    paths = [*one.paths, *two.paths]
    with pytest.raises(ShardError, match=r"b.c_\w+.rox.* 12 .*a.c_\w+.rox.* 10 "):
        Roxxel(paths).num_documents  # noqa: B018 - opens the corpus


@pytest.mark.parametrize(
    "change",
    [
        {"unit": 1},
        {"unit": 7},
        {"unit": "10"},
        {"shards": {"padding": [0, 0]}},
        {"shards": {"padding": [99]}},
        {"shards": {"cut": None}},
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    packed_corpus(tmp_path, [3, 8])
    path = tmp_path / "c_manifest.json"
    table = listed(tmp_path)
    change = {**change, "shards": table["shards"] | change.get("shards", {})}
    path.write_bytes(seal(table | change))
    with pytest.raises(ShardError, match="contradicts itself"):
        Roxxel(tmp_path).num_tokens  # noqa: B018 - opens the corpus


def test_bins_that_no_document_ends_are_refused(tmp_path: Path) -> None:
    packed_corpus(tmp_path, [5, 13, 13])
    path = tmp_path / "c_manifest.json"
    table = listed(tmp_path)
    table["versions"]["documents"] = [1]  # 9 ends, of which 8 were those of bins.
    path.write_bytes(seal(table | {"unit": 5}))
    with pytest.raises(ShardError, match=r"c_\w+_000.rox.* bins of 5 tokens"):
        Roxxel(tmp_path).document_spans(0, 5)


def test_a_value_out_of_range_names_its_document(tmp_path: Path) -> None:
    documents = [*documents_of([5] * 9), np.array([4, 1000])]
    corpus = Roxxel(tmp_path / "c_*.rox")
    with pytest.raises(ValueError, match=r"document 9: value 1000 .*vocab_size"):
        corpus.write(documents, vocab_size=1000, pack=10)
    with pytest.raises(ValueError, match="pack must be at least 2, got 1"):
        corpus.write(documents, pack=1)
    with pytest.raises(ValueError, match=r"one\.rox: is one file.*pack=10"):
        Roxxel(tmp_path / "one.rox").write(documents, pack=10)


def test_documents_of_several_dtypes_are_packed_in_one(tmp_path: Path) -> None:
    """The separator 300 does not fit the dtype of the second document."""
    kinds = np.int64, np.uint8, np.float64, np.uint64
    documents = [np.arange(n, dtype=kind) for n, kind in enumerate(kinds, 3)]
    documents[2] = documents[2][:0]
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(documents, separator=300, dtype="uint16", pack=9)
    assert [each.tolist() for each in corpus.documents] == [
        [0, 1, 2, 300],
        [0, 1, 2, 3, 300],
        [300],
        [0, 1, 2, 3, 4, 5, 300],
    ]


def test_an_array_that_is_used_again_is_packed_as_it_was(tmp_path: Path) -> None:
    buffer = np.zeros(4, np.uint16)

    def documents() -> Any:
        for number in range(1, 6):
            buffer[:] = number
            yield buffer

    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(documents(), pack=8)
    assert corpus.tokens[:].tolist() == [n for n in (1, 2, 3, 4, 5, 0) for _ in "four"]


def test_info_says_bins_padding_and_cut_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = packed_corpus(tmp_path, [3, 8, 25])
    assert main(["info", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    bins = corpus.num_tokens // 10
    assert (facts["bins"], facts["unit"], facts["cut"]) == (bins, 10, 1)
    assert facts["padding"] == corpus.num_padding
    assert facts["lengths"]["max"] == 10
    assert facts["documents"] == corpus.num_documents == 5
    assert main(["info", str(tmp_path)]) == 0
    assert f"padding      {corpus.num_padding}\n" in capsys.readouterr().out


def test_a_list_of_packed_corpora_of_several_shards_is_copied(tmp_path: Path) -> None:
    pack: Any = {"pack": 4, "separator": 0, "dtype": "uint16"}
    one, other = Roxxel(tmp_path / "a_*.rox"), Roxxel(tmp_path / "b_*.rox")
    one.write([[1, 2]], **pack)
    one.write([[3]], exist="append", **pack)
    other.write([[4]], **pack)
    both = Roxxel([str(tmp_path / "a_*.rox"), str(tmp_path / "b_*.rox")])

    both.copy_to(tmp_path / "new" / "c_*.rox")

    copied = Roxxel(tmp_path / "new" / "c_*.rox")
    assert [each.tolist() for each in copied.documents] == [
        each.tolist() for each in both.documents
    ]
    assert copied.num_tokens == both.num_tokens == 12
