from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError

from .helpers import corpus_of, documents_of, line_of, manifest_of, with_manifest

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

    with pytest.raises(ShardError, match="the corpus was replaced, or the fingerprint"):
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


class Slotted(Shifted):
    __slots__ = ("__secret", "unset", "word")

    def reveal(self) -> str:
        return self.__secret

    def keep(self, secret: str) -> None:
        self.__secret = secret


def test_a_pickled_or_copied_subclass_keeps_its_slots(tmp_path: Path) -> None:
    corpus_of(tmp_path, DOCUMENTS)
    slotted = Slotted(tmp_path)
    slotted.shift, slotted.word = 5, "kept"
    slotted.keep("kept too")

    for other in (
        unpickled(slotted),
        copy.copy(slotted),
        copy.deepcopy(slotted),
        slotted.with_check("blocks"),
        slotted.with_version(slotted.fingerprint),
    ):
        assert (other.shift, other.word, other.reveal()) == (5, "kept", "kept too")
        assert not hasattr(other, "unset")


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

    with pytest.raises(ShardError, match="one of these was appended to or replaced"):
        _ = both.num_tokens
