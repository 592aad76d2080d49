"""Reads corpora under mutated manifests: the right tokens, or a ShardError.

Half of the manifests have changed bytes. The others are JSON again with a checksum
that is right, as an attacker would make them: values deleted, swapped, duplicated or
replaced, rows of all lists at once, numbers off by one or huge, names that leave the
folder. The shards are whole, so a manifest that lies about them must be found out.
Each corpus is read whole in every way, each time by a new reader. (Reading only a part
opens only some shards, and cannot find a lie about the others.) Every refusal is one
sentence in one line that names a file. A manifest may take 20 seconds and 1 GiB of
address space; a failure names its seed.

    python tests-integration/benchmarks/manifest_fuzz.py                 # 500 files
    python tests-integration/benchmarks/manifest_fuzz.py --files 10000   # the campaign
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import resource
import signal
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import format_fuzz
import numpy as np
from roxxel_format import Roxxel, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import FrameType

    import numpy.typing as npt

MANIFEST = "c_manifest.json"
COLUMN = "mark"
SECONDS = 20
MOST_BYTES = 1 << 30
MOST_CHARACTERS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--folder", type=Path, help="best in memory, as /dev/shm")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    limit_address_space()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = run(Path(folder), options.files, seed)
    print("\n".join(f"{kind}: {count}" for kind, count in sorted(found.items())))


def limit_address_space() -> None:
    """Let huge allocations fail, where the system says how much is in use."""
    with contextlib.suppress(FileNotFoundError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(
            resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1])
        )


@dataclass(frozen=True)
class Sample:
    """A corpus and what it must give.

    Attributes:
        folder: Of the corpus `c_*.rox`.
        manifest: Its manifest.
        versions: Documents of each version by fingerprint, oldest first.
        column: A value for each token.
        column_digest: Digest of the column.
    """

    folder: Path
    manifest: bytes
    versions: dict[str, list[npt.NDArray[np.uint16]]]
    column: npt.NDArray[np.uint8] | None
    column_digest: str | None

    @property
    def pattern(self) -> str:
        """The pattern that names the corpus."""
        return f"{self.folder}/c_*.rox"

    def write(self, manifest: bytes) -> None:
        """Put another manifest beside the shards."""
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
    """Write a corpus in several versions."""
    folder.mkdir()
    corpus = Roxxel(folder / "c_*.rox")
    versions: dict[str, list[npt.NDArray[np.uint16]]] = {}
    documents: list[npt.NDArray[np.uint16]] = []
    for part in parts:
        corpus.write(
            part, separator=7, block_size=512, max_shard_bytes=10_000, exist="append"
        )
        documents = [*documents, *part]
        versions[corpus.fingerprint] = documents
    column = digest = None
    if has_column:
        column = (np.arange(corpus.num_tokens) % 251).astype(np.uint8)
        corpus.write_column(COLUMN, column, per="token")
        digest = corpus.column(COLUMN).digest
    return Sample(folder, (folder / MANIFEST).read_bytes(), versions, column, digest)


def line(documents: list[npt.NDArray[np.uint16]]) -> npt.NDArray[np.uint16]:
    """Return documents as one line of tokens."""
    separator = np.array([7], np.uint16)
    return np.concatenate([part for each in documents for part in (each, separator)])


def run(folder: Path, num_files: int, seed: int) -> collections.Counter[str]:
    """Mutate and read; return how many of each kind were refused or read right."""
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
    """A manifest keeps a reader longer than it may."""


@contextlib.contextmanager
def at_most(seconds: int) -> Generator[None]:
    """Raise TooSlowError where the block takes longer."""

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
    """Read a corpus in every way; each must be right, or raise ShardError."""
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
    assert message.isprintable(), f"not one line: {message!r}"
    assert len(message) <= MOST_CHARACTERS, f"too long: {message!r}"
    assert str(sample.folder) in message, f"names no file: {message!r}"
    assert "Error(" not in message, f"not a sentence: {message!r}"


def reads_tokens(corpus: Roxxel, sample: Sample) -> bool:
    """Read all tokens as a slice."""
    tokens = corpus.tokens[:]
    return any(np.array_equal(tokens, line(each)) for each in sample.versions.values())


def reads_window(corpus: Roxxel, sample: Sample) -> bool:
    """Read one window that is as long as the corpus should be."""
    right = line(sample.versions[corpus.fingerprint])
    length = min(corpus.num_tokens, len(right))
    return np.array_equal(corpus.read([0], length, np.int32)[0], right[:length])


def reads_documents(corpus: Roxxel, sample: Sample) -> bool:
    """Read all documents."""
    right = sample.versions[corpus.fingerprint]
    ours = [
        corpus.documents[index]
        for index in range(min(len(corpus.documents), len(right) + 1))
    ]
    return len(ours) == len(right) and all(map(np.array_equal, ours, right))


def reads_spans(corpus: Roxxel, sample: Sample) -> bool:
    """Look the documents of all tokens up."""
    right = sample.versions[corpus.fingerprint]
    stops = np.cumsum([len(each) + 1 for each in right])
    spans = corpus.document_spans(0, min(corpus.num_tokens, len(line(right))))
    return np.array_equal(spans[:, 2], stops)


def reads_column(corpus: Roxxel, sample: Sample) -> bool:
    """Read a column, if the manifest still has it.

    A column is no part of the fingerprint. A manifest that gives shards other files of
    a column gives the column another digest, which a run compares when it resumes.
    """
    if sample.column is None:
        return True
    try:
        column = corpus.column(COLUMN)
    except KeyError:
        return True
    if column.digest != sample.column_digest:
        return True
    right = sample.column
    values = column[0 : min(len(column), len(right))]
    return column.per == "token" and np.array_equal(values, right[: len(values)])


def reads_versions(corpus: Roxxel, sample: Sample) -> bool:
    """Read every version by its fingerprint."""
    return all(
        np.array_equal(
            Roxxel(sample.pattern, version=version).tokens[:],
            line(sample.versions[version]),
        )
        for version in corpus.versions
    )


def reads_facts(corpus: Roxxel, _sample: Sample) -> bool:
    """Ask for all that is known without reading; a lie that no shard tells passes."""
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
    corpus.verify(threads=1)
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


def sealed(body: bytes) -> bytes:
    """Return a manifest of an object whose end, the brace, is left out."""
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def of_json(manifest: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Change some values, and make the checksum right again."""
    table = json.loads(manifest)
    del table["crc32"]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice(CHANGES)(table, chance, [json.loads(each) for each in others])
    text = json.dumps(table, ensure_ascii=chance.random() < 0.1, separators=(",", ":"))
    return sealed(text[:-1].encode(errors="surrogatepass"))


def of_text(manifest: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Spell a value or a key as Python would not, and make the checksum right again."""
    body = manifest[: manifest.rindex(b',"crc32"')]
    places = [at for at in range(1, len(body)) if body[at - 1] in b":,[{"]
    at = chance.choice(places)
    new = chance.choice(SPELLINGS)
    return sealed(body[:at] + new + body[at:])


SPELLINGS = (
    b'"dtype":"uint8",',
    b'"shards":{},',
    b'"versions":[],',
    b'"tokens":[1],',
    b" ",
    b"\n\t",
    b"1e400,",
    b"NaN,",
    b"-",
    b"0",
    b"0.0",
    b"9" * 5000,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'"\\ud800",',
    b"\xff",
    b"\x00",
)


def nodes(value: Any) -> Iterator[Any]:
    """Yield all lists and objects of a JSON value, the outermost first."""
    if isinstance(value, dict | list):
        yield value
        members = cast("dict[str, Any] | list[Any]", value)
        for member in members.values() if isinstance(members, dict) else members:
            yield from nodes(member)


def entries(value: Any) -> list[tuple[Any, Any]]:
    """Return every list or object, with each index or key of it."""
    return [
        (node, key)
        for node in nodes(value)
        for key in (node if isinstance(node, dict) else range(len(node)))
    ]


def tables(value: Any) -> list[list[list[Any]]]:
    """Return the lists of each object that has several of one length, not empty."""
    found: list[list[list[Any]]] = []
    for node in nodes(value):
        if not isinstance(node, dict):
            continue
        members = cast("dict[str, Any]", node).values()
        lists = [cast("list[Any]", each) for each in members if isinstance(each, list)]
        if len(lists) > 1 and len({*map(len, lists)}) == 1 and lists[0]:
            found.append(lists)
    return found


def replace_value(table: Any, chance: random.Random, _others: list[Any]) -> None:
    node, key = chance.choice(entries(table))
    node[key] = chance.choice(HOSTILE)


def change_number(table: Any, chance: random.Random, _others: list[Any]) -> None:
    numbers = [(node, key) for node, key in entries(table) if type(node[key]) is int]
    if numbers:
        node, key = chance.choice(numbers)
        old = node[key]
        new = (old + 1, old - 1, old * 2, old // 2, -old, 0, 1, 2**31, 2**40, 2**63 - 1)
        node[key] = chance.choice(new)


def change_text(table: Any, chance: random.Random, _others: list[Any]) -> None:
    texts = [(node, key) for node, key in entries(table) if type(node[key]) is str]
    node, key = chance.choice(texts)
    old = node[key] or "x"
    at = chance.randrange(len(old))
    node[key] = chance.choice(
        (
            old[:at] + chance.choice("0f_./\\é") + old[at + 1 :],
            old[:at],
            old + old,
            old.upper(),
            f"../{old}",
            f"sub/{old}",
            f"/{old}",
        )
    )


def delete_entry(table: Any, chance: random.Random, _others: list[Any]) -> None:
    node, key = chance.choice(entries(table))
    del node[key]


def duplicate_entry(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = [(node, key) for node, key in entries(table) if isinstance(node, list)]
    if lists:
        node, key = chance.choice(lists)
        node.insert(chance.randint(0, len(node)), node[key])


def swap_values(table: Any, chance: random.Random, _others: list[Any]) -> None:
    leaves = [
        (node, key)
        for node, key in entries(table)
        if not isinstance(node[key], dict | list)
    ]
    (one, a), (two, b) = chance.choices(leaves, k=2)
    one[a], two[b] = two[b], one[a]


def swap_in_list(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = [node for node in nodes(table) if isinstance(node, list) and len(node) > 1]
    if lists:
        chosen = cast("list[Any]", chance.choice(lists))
        a, b = chance.sample(range(len(chosen)), 2)
        chosen[a], chosen[b] = chosen[b], chosen[a]


def shuffle_list(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = [node for node in nodes(table) if isinstance(node, list) and len(node) > 1]
    if lists:
        chance.shuffle(cast("list[Any]", chance.choice(lists)))


def delete_row(table: Any, chance: random.Random, _others: list[Any]) -> None:
    """Delete the same entry of all lists of an object: a shard, say."""
    lists = chance.choice(tables(table) or [[[0]]])
    at = chance.randrange(len(lists[0]))
    for each in lists:
        del each[at]


def duplicate_row(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = chance.choice(tables(table) or [[[0]]])
    at, to = chance.randrange(len(lists[0])), chance.randint(0, len(lists[0]))
    for each in lists:
        each.insert(to, each[at])


def swap_rows(table: Any, chance: random.Random, _others: list[Any]) -> None:
    lists = chance.choice(tables(table) or [[[0]]])
    a, b = chance.choices(range(len(lists[0])), k=2)
    for each in lists:
        each[a], each[b] = each[b], each[a]


def take_from_other(table: Any, chance: random.Random, others: list[Any]) -> None:
    """Put a member of another manifest in."""
    other = chance.choice(others)
    key = chance.choice(list(table))
    if key in other:
        table[key] = other[key]


def move_tokens(table: Any, chance: random.Random, _others: list[Any]) -> None:
    """Move some of a count from one entry of a list to another, the sum unchanged."""
    lists = [
        cast("list[Any]", node)
        for node in nodes(table)
        if isinstance(node, list)
        and len(node) > 1
        and {*map(type, cast("list[Any]", node))} == {int}
    ]
    if lists:
        counts = chance.choice(lists)
        a, b = chance.sample(range(len(counts)), 2)
        moved = chance.choice((1, counts[a] // 2, counts[a]))
        counts[a] -= moved
        counts[b] += moved


CHANGES: tuple[Callable[[Any, random.Random, list[Any]], None], ...] = (
    replace_value,
    change_number,
    change_text,
    delete_entry,
    duplicate_entry,
    swap_values,
    swap_in_list,
    shuffle_list,
    delete_row,
    duplicate_row,
    swap_rows,
    take_from_other,
    move_tokens,
)
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", "x", [], {}, [[]], [None], {"": None}),
    *(0, 1, -1, 2, 7, 512, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400),
    *(0.5, 1.0, -0.0, 1e300, float("nan"), float("inf")),
    *("uint8", "int16", "uint32", "float32", "bfloat16", "object", "U999999999"),
    *("../c_00000.rox", "/etc/passwd", "c_00000.rox", "c_manifest.json", ".", ".."),
    *("\0", "a\nb", "\ud800", "0" * 64, "f" * 64, "0" * 32, "x" * 100_000),
    *(list(range(10_000)), {str(number): number for number in range(10_000)}),
)


if __name__ == "__main__":
    main()
