"""Reads corpora under mutated manifests; expects the right tokens, or a ShardError.

Some mutations change bytes of the manifest; the checksum of the manifest must detect
them. The others (`_manifest_mutations.py`) have a correct checksum: values are deleted,
swapped, duplicated or replaced, rows of all lists change together, numbers are off by
one or huge, and names are outside the folder. The shards are undamaged, so reading them
must reveal every false value. Each method of reading reads the whole corpus with a new
reader, because a reader of a part opens only some shards, and cannot find false values
of the others. Every error is one sentence on one line that names a file. Reading one
manifest may use 20 seconds and 1 GiB of address space; a failure prints its seed.

    python tests-integration/benchmarks/manifest_fuzz.py                 # 500 files
    python tests-integration/benchmarks/manifest_fuzz.py --files 10000   # the campaign
"""

from __future__ import annotations

import collections
import contextlib
import random
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import format_fuzz
import numpy as np
from _manifest_mutations import of_json, of_text
from roxxel_format import Roxxel, ShardError
from roxxel_store.screen import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    import numpy.typing as npt

MANIFEST = "c_manifest.json"
COLUMN = "mark"
SECONDS = 20
MOST_BYTES = 1 << 30
MOST_CHARACTERS = 1000


def main() -> None:
    limit_address_space()
    format_fuzz.command(__doc__, run, 500)


def limit_address_space() -> None:
    """Make huge allocations fail, on systems that have `/proc`."""
    with contextlib.suppress(FileNotFoundError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(
            resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1])
        )


@dataclass(frozen=True)
class Sample:
    """A corpus and its right content.

    Attributes:
        folder: Folder of the corpus `c_*.rox`.
        manifest: Its manifest.
        versions: Documents of each version by fingerprint, oldest first.
        columns: Values and digest of the column of each version, by fingerprint.
    """

    folder: Path
    manifest: bytes
    versions: dict[str, list[npt.NDArray[np.uint16]]]
    columns: dict[str, tuple[npt.NDArray[np.uint8], str]]

    @property
    def pattern(self) -> str:
        """The pattern that names the corpus."""
        return f"{self.folder}/c_*.rox"

    def documents(self, fingerprint: str) -> list[npt.NDArray[np.uint16]]:
        """Return the documents of a version.

        For other fingerprints the list is empty: no read may return tokens of them.
        """
        return self.versions.get(fingerprint, [])

    def write(self, manifest: bytes) -> None:
        """Put another manifest next to the shards."""
        (self.folder / MANIFEST).write_bytes(manifest)


def samples(folder: Path) -> list[Sample]:
    """Write the corpora whose manifests are mutated."""
    rng = np.random.default_rng(1)

    def made(lengths: list[int]) -> list[npt.NDArray[np.uint16]]:
        return [rng.integers(0, 60_000, length, np.uint16) for length in lengths]

    return [
        sample(folder / "one", [made([300, 0, 777, 900, 2000, 5])]),
        sample(folder / "long", [made([12_000, 4, 9000])]),
        sample(
            folder / "grown",
            [made([500, 500, 1500]), made([3]), made([2000, 2000])],
            has_column=True,
        ),
    ]


def sample(
    folder: Path,
    parts: list[list[npt.NDArray[np.uint16]]],
    *,
    has_column: bool = False,
) -> Sample:
    """Write a corpus in several versions, and a column that each version extends."""
    folder.mkdir()
    corpus = Roxxel(folder / "c_*.rox")
    versions: dict[str, list[npt.NDArray[np.uint16]]] = {}
    columns: dict[str, tuple[npt.NDArray[np.uint8], str]] = {}
    documents: list[npt.NDArray[np.uint16]] = []
    for part in parts:
        before = corpus.num_tokens if versions else 0
        corpus.write(
            part,
            separator=7,
            block_size=512,
            max_shard_bytes=10_000,
            exist="append",
            without_columns=[COLUMN],
        )
        documents = [*documents, *part]
        versions[corpus.fingerprint] = documents
        if has_column:
            values = (np.arange(corpus.num_tokens) % 251).astype(np.uint8)
            exist = "append" if versions.keys() - {corpus.fingerprint} else "error"
            corpus.write_column(COLUMN, values[before:], exist=exist)
            columns[corpus.fingerprint] = values, corpus.column(COLUMN).digest
    return Sample(folder, (folder / MANIFEST).read_bytes(), versions, columns)


def line(documents: list[npt.NDArray[np.uint16]]) -> npt.NDArray[np.uint16]:
    """Return documents as one line of tokens."""
    separator = np.array([7], np.uint16)
    parts = [part for each in documents for part in (each, separator)]
    return np.concatenate([separator[:0], *parts])


def run(folder: Path, num_files: int, seed: int) -> collections.Counter[str]:
    """Mutate and read; return the count of each kind and result."""
    print(f"{num_files} manifests from seed {seed}")
    corpora = samples(folder)
    for corpus in corpora:
        assert outcome(corpus) == "right", "the manifest that was written"
    manifests = [corpus.manifest for corpus in corpora]
    started = time.perf_counter()
    found: collections.Counter[str] = collections.Counter()
    for number in range(seed, seed + num_files):
        chance = random.Random(number)
        corpus = chance.choice(corpora)
        kind = chance.choice((*OF_BYTES, of_json, of_json, of_json, of_text))
        mutated = kind(corpus.manifest, chance, manifests)
        corpus.write(mutated)
        try:
            with at_most(SECONDS):
                result = outcome(corpus)
            is_damaged = kind in OF_BYTES and mutated != corpus.manifest
            assert not is_damaged or result == "refused", "damage that was not found"
            assert mutated != corpus.manifest or result == "right", (
                "refused a whole one"
            )
        except BaseException:
            print(f"seed {number}, {kind.__name__}, {corpus.folder}", file=sys.stderr)
            print(f"{mutated[:3000]!r}", file=sys.stderr)
            raise
        finally:
            corpus.write(corpus.manifest)
        found[f"{kind.__name__} {result}"] += 1
    print(f"{time.perf_counter() - started:.0f} s")
    return found


class TooSlowError(BaseException):
    """Reading under a manifest took longer than allowed."""


@contextlib.contextmanager
def at_most(seconds: int) -> Generator[None]:
    """Raise TooSlowError if the block takes longer."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(sample: Sample) -> str:
    """Read a corpus in every way. Each read must be right, or raise ShardError."""
    refused = 0
    for check in ("headers", "blocks"):
        for way in WAYS:
            try:
                with Roxxel(sample.pattern, check=check) as corpus:
                    is_right = way(corpus, sample)
            except ShardError as error:
                refused += 1
                check_sentence(str(error), sample)
            else:
                assert is_right, f"{way.__name__}: something else than was written"
    return "refused" if refused else "right"


def check_sentence(message: str, sample: Sample) -> None:
    """Check that an error is one sentence in one line, and names a file."""
    assert printable(message) == message, f"not one line: {message!r}"
    assert len(message) <= MOST_CHARACTERS, f"too long: {message!r}"
    assert str(sample.folder) in message, f"names no file: {message!r}"
    assert "Error(" not in message, f"not a sentence: {message!r}"


def reads_tokens(corpus: Roxxel, sample: Sample) -> bool:
    """Read all tokens as a slice."""
    tokens = corpus.tokens[:]
    return any(np.array_equal(tokens, line(each)) for each in sample.versions.values())


def reads_window(corpus: Roxxel, sample: Sample) -> bool:
    """Read one window that is as long as the corpus should be."""
    right = line(sample.documents(corpus.fingerprint))
    length = min(corpus.num_tokens, len(right))
    return np.array_equal(corpus.read([0], length, np.int32)[0], right[:length])


def reads_documents(corpus: Roxxel, sample: Sample) -> bool:
    """Read all documents."""
    right = sample.documents(corpus.fingerprint)
    ours = [
        corpus.documents[index]
        for index in range(min(len(corpus.documents), len(right) + 1))
    ]
    return len(ours) == len(right) and all(map(np.array_equal, ours, right))


def reads_spans(corpus: Roxxel, sample: Sample) -> bool:
    """Read the document spans of all tokens."""
    right = sample.documents(corpus.fingerprint)
    stops = np.cumsum([len(each) + 1 for each in right])
    spans = corpus.document_spans(0, min(corpus.num_tokens, len(line(right))))
    return np.array_equal(spans[:, 2], stops)


def reads_column(corpus: Roxxel, sample: Sample) -> bool:
    """Read the column of every version, if the manifest still has it.

    The fingerprint does not cover columns. If a manifest gives a shard another column
    file, the digest of the column differs, and a run compares that digest when it
    resumes.
    """
    for version, (right, digest) in sample.columns.items():
        column = corpus.with_version(version).column(COLUMN)
        if column.digest != digest:
            continue
        values = column[0 : min(len(column), len(right))]
        if column.per != "token" or not np.array_equal(values, right[: len(values)]):
            return False
    return True


def reads_versions(corpus: Roxxel, sample: Sample) -> bool:
    """Read every version by its fingerprint."""
    return all(
        np.array_equal(
            Roxxel(sample.pattern, version=version).tokens[:],
            line(sample.documents(version)),
        )
        for version in corpus.versions
    )


def reads_facts(corpus: Roxxel, _sample: Sample) -> bool:
    """Get every property, and verify. Only errors count, not the values."""
    facts = (
        corpus.dtype,
        corpus.dtype_name,
        corpus.block_size,
        corpus.num_documents,
        corpus.num_shards,
        corpus.paths,
        corpus.token_range_seen,
        corpus.tokenizer,
        corpus.metadata,
        corpus.document_lengths(),
        corpus.leftovers(),
    )
    corpus.verify()
    return all(str(fact) for fact in facts)


WAYS: tuple[Callable[[Roxxel, Sample], bool], ...] = (
    reads_tokens,
    reads_window,
    reads_documents,
    reads_spans,
    reads_column,
    reads_versions,
    reads_facts,
)
OF_BYTES = (
    format_fuzz.flip_bits,
    format_fuzz.truncate,
    format_fuzz.extend,
    format_fuzz.cut_out,
    format_fuzz.overwrite,
    format_fuzz.splice,
)


if __name__ == "__main__":
    main()
