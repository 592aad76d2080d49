from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError

from .conformance.reader import read_corpus
from .helpers import (
    corpus_of,
    documents_of,
    line_of,
    listed,
    manifest_of,
    with_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTS = documents_of(900, 900, 900)


class Shifted(Roxxel):
    """Reads every token one higher."""

    shift = 1

    def read(self, *arguments: Any, **named: Any) -> Any:
        return super().read(*arguments, **named) + self.shift


def unpickled(corpus: Any) -> Any:
    return pickle.loads(pickle.dumps(corpus))  # noqa: S301 - our own bytes


def closed(corpus: Roxxel) -> Roxxel:
    corpus.close()
    return corpus


@pytest.fixture
def grown(tmp_path: Path) -> Roxxel:
    """Return a corpus of three shards and two versions: of two and of three shards."""
    corpus = corpus_of(tmp_path, DOCUMENTS, max_shard_bytes=9000)
    return with_manifest(corpus, [2, 3])


def test_each_version_is_the_corpus_as_it_was(grown: Roxxel) -> None:
    first, second = grown.versions

    old = Roxxel(grown.filepath, version=first)

    assert (old.fingerprint, grown.fingerprint) == (first, second)
    assert np.array_equal(old.tokens[:], line_of(DOCUMENTS[:2]))
    assert np.array_equal(grown.tokens[:], line_of(DOCUMENTS))
    assert old.num_documents == 2
    again = grown.with_version(first)
    assert again.paths == old.paths == grown.paths[:2]
    assert again.with_version(second).num_tokens == 2700
    with pytest.raises(IndexError, match="leaves the corpus of 1800 tokens"):
        old.read([1795], 10)


def test_a_version_may_end_with_documents_without_tokens(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    fingerprints: list[str] = []
    for sizes in ([2], [0, 0], [1]):
        corpus.write([np.full(n, 300, np.uint16) for n in sizes], exist="append")
        fingerprints.append(corpus.fingerprint)

    found = corpus.with_version(fingerprints[1])

    assert [each.size for each in found.documents] == [2, 0, 0]
    with pytest.raises(TypeError, match="of values 300 to 300"):
        found.read([0], 2, np.uint8)


def test_an_unknown_version_is_an_error_that_names_the_current_one(
    grown: Roxxel,
) -> None:
    with pytest.raises(ShardError, match=f"no version {'0' * 32}: the corpus"):
        grown.with_version("0" * 32)
    with pytest.raises(ShardError, match=f"its current version {grown.fingerprint}"):
        _ = Roxxel(grown.filepath, version="f" * 32).num_tokens


def test_an_open_reader_keeps_its_version_when_the_corpus_grows(grown: Roxxel) -> None:
    folder = Path(grown.paths[0]).parent
    data = manifest_of(grown.paths[:2])
    (folder / "c_manifest.json").write_bytes(data)
    reader = Roxxel(grown.filepath)
    before = pickle.dumps(reader)
    assert reader.num_tokens == 1800

    with_manifest(grown, [2, 3])

    assert reader.num_tokens == 1800
    assert unpickled(reader).num_tokens == copy.copy(reader).num_tokens == 1800
    reader.close()
    assert reader.num_tokens == 1800
    assert reader.with_check("blocks").num_tokens == 1800
    assert Roxxel(grown.filepath).num_tokens == 2700
    # A reader that was not open when it was pickled has no version to keep.
    never_opened: Roxxel = pickle.loads(before)  # noqa: S301 - our own bytes
    assert never_opened.num_tokens == 2700


@pytest.mark.parametrize("reopen", [unpickled, closed])
@pytest.mark.parametrize("manifest", [False, True])
def test_a_reader_of_a_replaced_corpus_refuses_the_new_one(
    reopen: Callable[[Roxxel], Roxxel], *, manifest: bool, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    if manifest:
        corpus = with_manifest(corpus)
    assert corpus.num_tokens == 2700
    (tmp_path / "c_manifest.json").unlink(missing_ok=True)
    other = Roxxel(tmp_path / "c_*.rox")
    other.write([each[::-1].copy() for each in DOCUMENTS], exist="replace")

    with pytest.raises(ShardError, match="the corpus was replaced, "):
        _ = reopen(corpus).num_tokens


def test_a_pickled_or_copied_subclass_stays_the_subclass(tmp_path: Path) -> None:
    corpus_of(tmp_path, DOCUMENTS)
    shifted = Shifted(tmp_path, check="blocks")
    shifted.shift = 5
    expected = shifted.read([7], 20, np.int64)

    for other in (
        unpickled(shifted),
        copy.copy(shifted),
        shifted.with_check("headers"),
        shifted.with_version(shifted.fingerprint),
    ):
        assert type(other) is Shifted
        assert other.shift == 5
        assert np.array_equal(other.read([7], 20, np.int64), expected)


def test_the_writer_of_a_corpus_reads_what_it_wrote_last(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    assert corpus.num_tokens == 2700

    corpus.write(DOCUMENTS[:1], exist="append")

    assert corpus.num_tokens == 3600


def test_a_list_has_no_version_of_before_an_append(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Roxxel(tmp_path / f"{name}_*.rox").write([[1]])
    both = Roxxel([tmp_path / "a_*.rox", tmp_path / "b_*.rox"])
    assert both.num_tokens == 2
    Roxxel(tmp_path / "a_*.rox").write([[2]], exist="append")
    both.close()

    with pytest.raises(ShardError, match="one of a list was appended to"):
        _ = both.num_tokens


@pytest.mark.parametrize("options", [{}, {"separator": 7}, {"pack": 16}])
def test_an_append_leaves_what_is_before_the_last_part_of_the_manifest(
    options: dict[str, Any], tmp_path: Path
) -> None:
    documents = documents_of(*[size % 19 + 1 for size in range(36)])
    corpus, path = Roxxel(tmp_path / "c_*.rox"), tmp_path / "c_manifest.json"
    after = len(b'\n],"crc32":"00000000"}\n')
    before, sizes = b"", list[tuple[int, int]]()
    given: dict[str, Any] = {"dtype": "uint16", "document_id": "id", **options}
    for number, document in enumerate(documents):
        row = {"text": document, "id": str(number)}
        corpus.write([row], exist="append", **given)
        data = path.read_bytes()
        assert data.startswith(before[: before[:-after].rfind(b"\n") + 1])
        before = data
        sizes.append((corpus.num_tokens, corpus.num_documents))

    assert before.count(b"\n") > 3  # several parts
    assert listed(tmp_path)["versions"]["tokens"] == [tokens for tokens, _ in sizes]
    for fingerprint, size in zip(corpus.versions, sizes, strict=True):
        old = corpus.with_version(fingerprint)
        assert (old.num_tokens, old.num_documents) == size
        assert len(old.column("id")) == old.num_documents
    assert corpus.verify().ok
    if "pack" not in options:
        tokens, found = read_corpus(path, -1)
        assert np.array_equal(corpus.tokens[:], tokens)
        assert [each.tolist() for each in found] == [x.tolist() for x in documents]
        assert corpus.column("id")[:].tolist() == [*map(str, range(36))]
        assert Roxxel(corpus.paths).fingerprint == corpus.fingerprint
    versions = corpus.versions
    corpus.compact()
    corpus.write([{"text": documents[0], "id": "36"}], exist="append", **given)
    assert corpus.versions[:-1] == versions
