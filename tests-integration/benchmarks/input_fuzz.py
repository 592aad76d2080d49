"""Writes corpora from damaged input files: right documents, or a one-sentence error.

Files of many formats (text, lines, jsonl, npy, parquet), plain and compressed (gz,
zst; several members of each), are truncated, extended or overwritten, or bits are
flipped. Then `roxxel-prepare write` replaces a corpus by their documents. The command
passes with one of these results:

- `right`: exit code 0, and exactly the documents of the whole file.
- `refused`: exit code 1, one sentence on one line that begins with the file, and an
  unchanged old corpus. The sentence about a compressed file names the bytes, and the
  sentence about a text names the line or byte.
- `undetectable`: exit code 0, and other documents. Only files without a checksum may
  give this result: plain texts, lines and JSON lines, the items of a plain `.npy`,
  the metadata of Parquet, and a compressed file without some whole members.
  If such a text was only truncated, its documents are a part of the right text, and all
  lines and JSON lines except the last are right. A truncated plain file of any other
  format must be detected.

Writing from one file may use 20 seconds and 1 GiB of address space; a failure prints
its seed. Needs the extras `parquet` and `zstd`.

    python tests-integration/benchmarks/input_fuzz.py                  # 500 files
    python tests-integration/benchmarks/input_fuzz.py --files 2000     # the campaign
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import io
import itertools
import random
import re
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import format_fuzz
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from manifest_fuzz import SECONDS, at_most, limit_address_space
from roxxel_format import Roxxel
from roxxel_prepare.cli import main as command
from roxxel_store.screen import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST_CHARACTERS = 1000
BEFORE = "the corpus before"


def main() -> None:
    format_fuzz.command(__doc__, run, 500)


@dataclass(frozen=True)
class Sample:
    """An input file and its right documents.

    Attributes:
        form: Format of the file, as `--format` spells it.
        compression: `plain`, `gz` or `zst`.
        field: Column or name of the documents.
        members: The members of a compressed file; a plain file has one.
        documents: Their bytes.
    """

    form: str
    compression: str
    field: str
    members: list[bytes]
    documents: list[bytes]

    @property
    def content(self) -> bytes:
        """The whole file."""
        return b"".join(self.members)

    @property
    def name(self) -> str:
        """The name of the file."""
        suffix = {"plain": "", "gz": ".gz", "zst": ".zst"}[self.compression]
        return f"input.{self.form}{suffix}"

    def may_change(self, given: list[bytes], mutated: bytes, kind: str) -> bool:
        """Whether a mutated file may give other documents without an error."""
        if self.compression != "plain":
            some = itertools.product([True, False], repeat=len(self.members))
            return any(
                mutated == b"".join(itertools.compress(self.members, each))
                for each in some
            )
        if kind != "truncate":
            return True
        if self.form == "text":
            return len(given) == 1 and self.documents[0].startswith(given[0])
        if self.form == "jsonl":
            return given == self.documents[: len(given)]
        if self.form == "lines":
            whole, last = given[:-1], given[-1:]
            return whole == self.documents[: len(whole)] and all(
                right.startswith(cut)
                for cut, right in zip(last, self.documents[len(whole) :], strict=False)
            )
        return False


def samples() -> list[Sample]:
    """Return a file of each format, plain and compressed."""
    rng = np.random.default_rng(1)
    texts = [
        " ".join(f"word{number % 97}" for number in range(first, first + 40))
        for first in range(0, 6000, 60)
    ]
    words = [text.encode() for text in texts]
    table = rng.integers(0, 60_000, (50, 30), np.uint16)
    lists = [row[: 1 + row[0] % 30].tolist() for row in table]
    plain: list[tuple[str, str, bytes, list[bytes]]] = [
        ("text", "text", b"\n".join(words), [b"\n".join(words)]),
        ("lines", "text", b"\n".join(words) + b"\n", words),
        ("jsonl", "text", as_json_lines(texts), words),
        ("npy", "text", as_npy(table), [row.tobytes() for row in table]),
        ("parquet", "text", as_parquet({"text": texts}), words),
        (
            "parquet",
            "ids",
            as_parquet({"ids": pa.array(lists, pa.list_(pa.uint16()))}),
            [np.array(each, np.uint16).tobytes() for each in lists],
        ),
    ]
    return [
        Sample(form, compression, field, compress(content), documents)
        for form, field, content, documents in plain
        for compression, compress in COMPRESSIONS.items()
    ]


def as_json_lines(texts: list[str]) -> bytes:
    return "".join(f'{{"text": "{text}"}}\n' for text in texts).encode()


def as_npy(table: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, table)
    return file.getvalue()


def as_parquet(columns: dict[str, Any]) -> bytes:
    """Return a table in several row groups, whose pages have checksums."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=20, write_page_checksum=True)
    return file.getvalue()


def in_members(compress: Callable[[bytes], bytes], text: bytes) -> list[bytes]:
    """Compress a text in three members."""
    third = len(text) // 3
    parts = text[:third], text[third : 2 * third], text[2 * third :]
    return list(map(compress, parts))


COMPRESSIONS: dict[str, Callable[[bytes], list[bytes]]] = {
    "plain": lambda text: [text],
    "gz": partial(in_members, partial(gzip.compress, mtime=0)),
    "zst": partial(in_members, zstandard.ZstdCompressor(write_checksum=True).compress),
}


def run(folder: Path, num_files: int, seed: int) -> collections.Counter[str]:
    """Mutate and write; return the count of each format, kind and result."""
    print(f"{num_files} inputs from seed {seed}")
    whole = samples()
    contents = [sample.content for sample in whole]
    for sample in whole:
        assert outcome(folder, sample, sample.content, "none") == "right"
    limit_address_space()
    started = time.perf_counter()
    found: collections.Counter[str] = collections.Counter()
    for number in range(seed, seed + num_files):
        chance = random.Random(number)
        sample = chance.choice(whole)
        kind = chance.choice(KINDS)
        mutated = kind(sample.content, chance, contents)
        name = kind.__name__
        try:
            with at_most(SECONDS):
                result = outcome(folder, sample, mutated, name)
            assert mutated != sample.content or result == "right", (
                "refused a whole file"
            )
        except BaseException:
            print(f"seed {number}, {name}, {sample.name}", file=sys.stderr)
            raise
        found[f"{sample.form} {sample.compression} {name} {result}"] += 1
    results = collections.Counter({"right": 0, "refused": 0, "undetectable": 0})
    for what, count in found.items():
        results[what.split()[-1]] += count
    print(f"{time.perf_counter() - started:.0f} s, {dict(results)}")
    return found


def outcome(folder: Path, sample: Sample, content: bytes, kind: str) -> str:
    """Replace a corpus by the documents of an input, and check the result."""
    corpus = folder / "corpus" / "c_*.rox"
    Roxxel(corpus).write([BEFORE], exist="replace")
    path = folder / sample.name
    path.write_bytes(content)
    code, error = written(corpus, path, sample)
    with Roxxel(corpus) as written_corpus:
        given = [each.tobytes() for each in written_corpus.documents]
    if code == 1:
        assert given == [BEFORE.encode()], "committed something"
        check_sentence(error, path, sample)
        return "refused"
    assert (code, error) == (0, "")
    if given == sample.documents:
        return "right"
    assert sample.may_change(given, content, kind), "other documents, without an error"
    return "undetectable"


def written(corpus: Path, path: Path, sample: Sample) -> tuple[int, str]:
    """Run `roxxel-prepare write`; return its exit code and its error."""
    error = io.StringIO()
    options = ["--format", sample.form, "--exist", "replace", "--separator", "none"]
    if sample.form in {"jsonl", "parquet"}:
        options += ["--field", sample.field]
    with (
        contextlib.redirect_stderr(error),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = command(["write", str(corpus), str(path), *options])
    return code, error.getvalue()


def check_sentence(error: str, path: Path, sample: Sample) -> None:
    """Check that an error is one sentence in one line that names file and position."""
    assert error.endswith("\n")
    message = error[:-1]
    assert printable(message) == message, f"not one line: {message!r}"
    assert len(message) <= MOST_CHARACTERS, f"too long: {message!r}"
    assert message.startswith(f"roxxel-prepare: {path}"), f"no file: {message!r}"
    problem = message.removeprefix(f"roxxel-prepare: {path}")
    assert "Error" not in problem, f"not a sentence: {message!r}"
    if sample.compression != "plain" or sample.form in {"text", "lines", "jsonl"}:
        assert POSITION.search(problem), f"no position: {message!r}"


POSITION = re.compile(
    r"^:\d+: |bytes? \d+|document \d+|row \d+|is empty|holds no documents"
)


def empty(_data: bytes, _chance: random.Random, _others: list[bytes]) -> bytes:
    return b""


KINDS = (
    format_fuzz.truncate,
    format_fuzz.truncate,
    format_fuzz.truncate,
    format_fuzz.extend,
    format_fuzz.flip_bits,
    format_fuzz.cut_out,
    format_fuzz.overwrite,
    format_fuzz.splice,
    empty,
)


if __name__ == "__main__":
    main()
