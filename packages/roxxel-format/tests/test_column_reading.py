from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError

from .helpers import column_of, corpus_of, documents_of, with_manifest

DOCUMENTS = documents_of(900, 0, 7000, 900)
MASK = (np.arange(8800) % 7 < 3).astype(np.uint8)
IDS = np.array([b"first", b"", b"third", b"4"])


@pytest.fixture
def corpus(tmp_path: Path) -> Roxxel:
    """Return a corpus whose third document is larger than a shard, with columns."""
    written = corpus_of(tmp_path, DOCUMENTS, max_shard_bytes=9000)
    assert written.num_shards > 2
    counts = [Roxxel(path).num_tokens for path in written.paths]
    mask = np.split(MASK, np.cumsum(counts)[:-1])
    documents = [Roxxel(path).num_documents for path in written.paths]
    ids = np.split(IDS, np.cumsum(documents)[:-1])
    columns = {
        "loss_mask": column_of(tmp_path, "token", mask, "loss_mask"),
        "id": column_of(tmp_path, "document", ids, "id"),
        "half": column_of(tmp_path, "token", [mask[0], *[None] * (len(mask) - 1)], "h"),
    }
    return with_manifest(written, columns=columns)


@pytest.mark.parametrize("start", [0, 880, 5000, 8700])
def test_a_column_per_token_is_read_as_tokens_are(corpus: Roxxel, start: int) -> None:
    mask = corpus.column("loss_mask")

    assert (mask.name, mask.per, mask.dtype) == ("loss_mask", "token", np.uint8)
    assert len(mask) == corpus.num_tokens
    assert np.array_equal(mask[start : start + 100], MASK[start : start + 100])
    assert mask[start] == MASK[start]
    windows = mask.read([start, 3], 100)
    assert np.array_equal(windows, [MASK[start : start + 100], MASK[3:103]])
    out = np.zeros((1, 100), np.uint8)
    assert mask.read([start], 100, out) is out
    assert np.array_equal(out[0], MASK[start : start + 100])
    with pytest.raises(IndexError, match="leaves the corpus of 8800 tokens"):
        mask.read([8701], 100)
    with pytest.raises(ValueError, match="out has shape"):
        mask.read([start], 100, np.zeros((2, 100), np.uint8))


def test_a_column_per_document_is_a_sequence(corpus: Roxxel) -> None:
    ids = corpus.column("id")

    assert len(ids) == corpus.num_documents == 4
    assert [ids[number] for number in range(-4, 4)] == [*IDS, *IDS]
    assert ids[1:3].tolist() == [b"", b"third"]
    with pytest.raises(IndexError, match="item of column 'id' 4 is out of range"):
        ids[4]
    with pytest.raises(TypeError, match="column 'id' is per document and has no windo"):
        ids.read([0], 1)


def test_a_digest_tells_one_column_from_another(corpus: Roxxel) -> None:
    mask, ids = corpus.column("loss_mask"), corpus.column("id")

    assert len({mask.digest, ids.digest}) == 2
    again: Any = pickle.loads(pickle.dumps(corpus))  # noqa: S301 - our own bytes
    assert again.column("loss_mask").digest == mask.digest


def test_a_shard_without_the_column_is_named(corpus: Roxxel) -> None:
    with pytest.raises(ShardError, match=r"c_\w+_001\.rox: the shard has no colum"):
        corpus.column("half")
    with pytest.raises(ShardError, match="has no column 'url', its columns are: 'loss"):
        corpus.column("url")
    with pytest.raises(ShardError, match="has no column 'url', its columns are: none"):
        Roxxel(corpus.paths[0]).column("url")


def test_damaged_and_missing_files_of_columns_are_named(corpus: Roxxel) -> None:
    path = Path(corpus.paths[1]).with_name("c_00001.loss_mask")
    data = path.read_bytes()
    mask = corpus.column("loss_mask")
    assert np.array_equal(mask[:], MASK)
    mask.release()

    path.write_bytes(data[:-1] + b"\7")
    with pytest.raises(ShardError, match=r"c_00001.loss_mask: does not match its dige"):
        _ = mask[:]
    damage = [str(error) for error in corpus.verify().errors]
    assert ["00001.loss_mask: does not match" in each for each in damage] == [True]
    path.write_bytes(data[:-1])
    with pytest.raises(ShardError, match="values of uint8 need"):
        _ = mask[:]
    path.unlink()
    with pytest.raises(ShardError, match="loss_mask: the file is missing"):
        _ = mask[:]
    path.write_bytes(data)
    assert np.array_equal(mask[:], MASK)


def test_a_column_of_pointers_is_refused(tmp_path: Path) -> None:
    written = corpus_of(tmp_path, documents_of(10))
    table = column_of(tmp_path, "token", [np.zeros(10)])

    with pytest.raises(ShardError, match="column 'x' has dtype 'O', which this reader"):
        with_manifest(written, columns={"x": table | {"dtype": "O"}}).column("x")
