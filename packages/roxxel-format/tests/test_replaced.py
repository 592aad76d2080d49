"""A corpus that changes while it is open is an error from every method."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError
from roxxel_format.foreign import FlatTokens

from .helpers import corpus_of, documents_of, with_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTS = documents_of(900, 900, 900)

METHODS: dict[str, Callable[[Roxxel], object]] = {
    "read": lambda corpus: corpus.read([0, 950], 10),
    "tokens": lambda corpus: corpus.tokens[950:960],
    "block": lambda corpus: corpus[4],
    "documents": lambda corpus: corpus.documents[1],
    "iteration": lambda corpus: list(corpus.documents),
    "document_spans": lambda corpus: corpus.document_spans(950, 960),
    "document_lengths": lambda corpus: corpus.document_lengths(),
    "will_need": lambda corpus: corpus.will_need([950], 10),
    "verify": lambda corpus: corpus.verify().raise_if_damaged(),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("change", ["gone", "other"])
@pytest.mark.parametrize("check", ["headers", "blocks"])
def test_a_replaced_corpus_is_an_error_from_every_method(
    method: str, change: str, check: str, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS, max_shard_bytes=9000)
    corpus = corpus.with_check(check)  # pyright: ignore[reportArgumentType] - a str
    assert corpus.num_tokens == 2700
    path = Path(corpus.paths[1])
    if change == "gone":
        path.unlink()
    else:
        turned = [each[::-1].copy() for each in DOCUMENTS]
        other = corpus_of(tmp_path / "other", turned, max_shard_bytes=9000)
        Path(other.paths[1]).replace(path)

    with pytest.raises(ShardError, match=r"c_\w+_001\.rox: .*the corpus was replaced"):
        METHODS[method](corpus)


@pytest.mark.parametrize("ending", ["00000_000.rox", ".bin"])
def test_a_copy_names_the_file_that_is_missing(ending: str, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    corpus.write_column("id", [1, 2, 3], "document")
    gone = next(path for path in tmp_path.iterdir() if path.name.endswith(ending))
    gone.unlink()

    with pytest.raises(ShardError, match=rf"{gone.name}: .*corpus.*restore the file"):
        corpus.copy_to(tmp_path / "other_*.rox")

    assert not (tmp_path / "other_manifest.json").exists()


def test_a_shard_that_is_mapped_stays_what_it_was(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    before = corpus.read([0, 500], 300)

    shutil.rmtree(tmp_path)

    assert np.array_equal(corpus.read([0, 500], 300), before)


TRUNCATED = """
import os, sys, time
from pathlib import Path
from roxxel_format import Roxxel, ShardError
from roxxel_format.foreign import FlatTokens

clock = time.monotonic
kind, folder = sys.argv[1:]
corpus = FlatTokens(folder + "/flat.npy") if kind == "flat" else Roxxel(folder)
num_tokens = corpus.num_tokens
corpus.read([0, num_tokens - 10], 10), corpus.tokens[0], corpus.documents[0]
if kind == "column":
    corpus = corpus.column("mask")
    corpus.read([0, num_tokens - 10], 10)
suffix = {"flat": "npy", "column": "mask"}.get(kind, "rox")
for path in Path(folder).glob("*." + suffix):
    os.truncate(path, 100)
# The check of a size holds for 10 ms; this clock says that they have passed.
time.monotonic = lambda: clock() + 1
accesses = [
    lambda: corpus.read([0, num_tokens - 10], 10),
    lambda: corpus[5:10] if kind == "column" else corpus.tokens[5:10],
]
if kind != "column":
    accesses += [lambda: corpus.documents[0]]
if kind == "corpus":
    accesses += [lambda: corpus.document_spans(0, num_tokens)]
for access in accesses:
    try:
        access()
    except ShardError as error:
        assert "was changed after it was opened" in str(error), error
        assert folder in str(error), error
    else:
        sys.exit("no error")
"""


@pytest.mark.parametrize("kind", ["corpus", "column", "flat"])
def test_a_truncated_file_does_not_end_the_process(kind: str, tmp_path: Path) -> None:
    from .helpers import column_of

    corpus = corpus_of(tmp_path, DOCUMENTS, max_shard_bytes=9000)
    counts = [Roxxel(path).num_tokens for path in corpus.paths]
    mask = [np.zeros(count, np.uint8) for count in counts]
    with_manifest(corpus, columns={"mask": column_of(tmp_path, "token", mask, "mask")})
    np.save(tmp_path / "flat.npy", DOCUMENTS[0])

    command = [sys.executable, "-c", TRUNCATED, kind, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (child.returncode, child.stderr) == (0, "")


def test_a_truncated_mapped_shard_is_found_by_the_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    corpus = corpus_of(tmp_path, DOCUMENTS, max_shard_bytes=9000)
    expected = corpus.read([0, 1000], 50)
    data = Path(corpus.paths[1]).read_bytes()

    # Longer by a byte: no page of the map goes away, so reading it stays safe.
    os.truncate(corpus.paths[1], len(data) + 1)
    now[0] += 0.009
    assert np.array_equal(corpus.read([0, 1000], 50), expected)
    now[0] += 0.002
    with pytest.raises(ShardError, match=r"c_\w+_001\.rox: the file was changed after"):
        corpus.read([0, 1000], 50)


def test_a_pickled_foreign_reader_refuses_other_files(tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "a.bin"
    DOCUMENTS[0].tofile(path)
    data = pickle.dumps(FlatTokens(path, "uint16"))
    DOCUMENTS[1].tofile(path)

    with pytest.raises(ShardError, match=r"a\.bin: the corpus was replaced"):
        pickle.loads(data)  # noqa: S301 - our own bytes
