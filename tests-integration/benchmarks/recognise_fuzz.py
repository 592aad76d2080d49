"""Writes corpora from 22 kinds of inputs: right documents, or a one-sentence error.

Each kind has files with their right ending, with the ending of another kind or none;
damaged or empty; plain or compressed; alone, or with others in a folder with a README,
a `_SUCCESS` and a hidden file. `roxxel-prepare write` gets no `--format`. It passes
with one of these results:

- `right`: exit code 0, and exactly the documents of the files that are data.
- `refused`: exit code 1, one sentence of one line, and no corpus.
- `undetectable`: exit code 0, and other documents. Only a damaged file without a
  checksum, and a table or lines with the ending of text, may give this result.

A document is never markup, a JSON object, a file that is not data, or bytes with a NUL,
unless a damaged array of tokens contains the bytes. A failure prints its seed. Needs
the extras `parquet` and `zstd`.

    python tests-integration/benchmarks/recognise_fuzz.py                # 300 inputs
    python tests-integration/benchmarks/recognise_fuzz.py --inputs 3000  # the campaign
"""

from __future__ import annotations

import argparse
import bz2
import collections
import contextlib
import csv
import gzip
import io
import json
import lzma
import random
import shutil
import struct
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zstandard
from input_fuzz import KINDS as MUTATIONS
from input_fuzz import as_npy, as_parquet
from manifest_fuzz import SECONDS, at_most
from roxxel_format import Roxxel
from roxxel_prepare.cli import main as command
from roxxel_store.screen import printable

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = [
    " ".join(f'wörd{n % 17} "x", [y]' for n in range(first, first + 20))
    for first in range(0, 400, 20)
]
WORDS = [text.encode() for text in TEXTS]
TABLE = np.random.default_rng(1).integers(0, 60_000, (50, 30), np.uint16)
ROWS = [row.tobytes() for row in TABLE]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
NO_DATA = ("README.md", "LICENSE", "_SUCCESS", ".hidden.jsonl", "part.crc")


@dataclass(frozen=True)
class Kind:
    """A kind of file: its endings, its content, and its documents.

    Attributes:
        name: Name of the kind, for the counts.
        endings: Its right endings; none if the files must be refused. content: Content
            of one file. documents: Documents of the file.
        is_plain: Whether damage may be undetectable.
        texts: Documents of the file if its ending says that it is text; None if such a
            text must be refused.
    """

    name: str
    endings: tuple[str, ...]
    content: bytes
    documents: list[bytes]
    is_plain: bool = True
    texts: bytes | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=300)
    parser.add_argument("--seed", type=int, help="default: a new one")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"{options.inputs} inputs of {len(kinds())} kinds from seed {seed}")
    started = time.perf_counter()
    found: collections.Counter[str] = collections.Counter()
    for number in range(seed, seed + options.inputs):
        with tempfile.TemporaryDirectory() as folder:
            try:
                with at_most(SECONDS):
                    found[one(Path(folder), random.Random(number))] += 1
            except BaseException:
                print(f"seed {number}", file=sys.stderr)
                raise
    results = collections.Counter({"right": 0, "refused": 0, "undetectable": 0})
    for what, count in found.items():
        results[what.split()[-1]] += count
    print(f"{time.perf_counter() - started:.0f} s, {dict(results)}")
    print("\n".join(f"{kind}: {count}" for kind, count in sorted(found.items())))


def kinds() -> list[Kind]:
    """Return a file of each kind."""
    text = b"\n".join(WORDS)
    lines = b"".join(json.dumps({"text": each}).encode() + b"\n" for each in TEXTS)
    array = json.dumps([{"text": each} for each in TEXTS], indent=1).encode()
    pretty = json.dumps({"text": TEXTS}, indent=1).encode()
    markup = b"<!DOCTYPE html>\n<html><body>" + text + b"</body></html>"
    xml = b'<?xml version="1.0"?>\n<a>' + text + b"</a>"
    ids = TABLE.tobytes()
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.txt", text)
    arrays = io.BytesIO()
    np.savez(arrays, TABLE)
    wide = text.decode().encode("utf-16")
    narrow = struct.pack("<256i", 20240520, 1, TABLE.size, *[0] * 253) + ids
    return [
        Kind("text", (".txt", ".text", ".md", ".rst"), text, [text], texts=text),
        Kind("code", (".py", ".c", ".jl", ".rs"), text, [text], texts=text),
        Kind("marked", (".txt", ".md"), b"\xef\xbb\xbf" + text, [text], texts=text),
        Kind("jsonl", (".jsonl", ".jsonlines", ".ndjson", ".json"), lines, WORDS),
        Kind("strings", (".jsonl", ".json"), as_strings(), WORDS, texts=as_strings()),
        Kind("array", (".json",), array, WORDS),
        Kind("csv", (".csv",), as_csv(), WORDS, texts=as_csv()),
        Kind("tsv", (".tsv",), as_tsv(), WORDS, texts=as_tsv()),
        Kind("parquet", (".parquet", ".pq"), as_parquet({"text": TEXTS}), WORDS),
        Kind("arrow", (".arrow", ".feather"), as_arrow(pa.ipc.new_file), WORDS),
        Kind("stream", (".arrow",), as_arrow(pa.ipc.new_stream), WORDS),
        Kind("npy", (".npy",), as_npy(TABLE), ROWS),
        Kind("object", (), pretty, []),
        Kind("html", (), markup, []),
        Kind("xml", (), xml, []),
        Kind("bin", (), ids, []),
        Kind("llm.c", (), narrow, []),
        Kind("npz", (), arrays.getvalue(), []),
        Kind("zip", (), zipped.getvalue(), []),
        Kind("utf-16", (), wide, []),
        Kind("pdf", (), b"%PDF-1.7\n" + text, []),
        Kind("sqlite", (), b"SQLite format 3\0" + bytes(100) + text, []),
    ]


def as_strings() -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in TEXTS)


def as_csv() -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("id", "text"), *enumerate(TEXTS)])
    return file.getvalue().encode()


def as_tsv() -> bytes:
    rows = ["id\ttext", *(f"{number}\t{text}" for number, text in enumerate(TEXTS))]
    return "\n".join(rows).encode()


def as_arrow(new: Callable[..., Any]) -> bytes:
    file = io.BytesIO()
    table = pa.table({"text": TEXTS})
    with new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return file.getvalue()


FOREIGN_ENDINGS = (
    *("", ".bin", ".html", ".dat", ".npz", ".mds", ".idx", ".xml", ".pt"),
    *(".zip", ".rox", ".0001", ".tar", ".log", ".sqlite", ".pdf", ".tfrecord"),
)
WAYS = ("right", "right", "ending", "damaged", "empty", "folder", "folder")


def one(folder: Path, chance: random.Random) -> str:
    """Write one input, or a folder of some, and check the result."""
    known = kinds()
    kind = chance.choice(known)
    way = chance.choice(WAYS)
    compression = chance.choice([*COMPRESSIONS, "", ""])
    if way == "folder":
        return f"folder {of_folder(folder, chance, known)}"
    all_endings = [*FOREIGN_ENDINGS, *(each for one in known for each in one.endings)]
    has_right = kind.endings and way != "ending"
    ending = chance.choice(kind.endings if has_right else all_endings)
    content = COMPRESSIONS[compression](kind.content)
    expected = [kind.documents] if kind.endings else []
    if ending in text_endings(known) and kind.texts is not None:
        expected.append([kind.texts])
    may_differ = False
    if way == "damaged":
        whole = [each.content for each in known]
        damaged = chance.choice(MUTATIONS)(content, chance, whole)
        may_differ = damaged != content and compression == ""
        content = damaged
    if way == "empty":
        content, expected = b"", [[b""]] if compression == "" else []
    path = folder / f"input{ending}{compression}"
    path.write_bytes(content)
    result, given = write(folder, path)
    if result == "refused":
        assert way != "right" or not kind.endings, "refused a right file"
    elif given not in expected:
        assert may_differ, f"other documents: {path.name}, {kind.name}, {given[:1]}"
        check_texts(given, ending, known)
        result = "undetectable"
    return f"{kind.name} {way} {result}"


def of_folder(folder: Path, chance: random.Random, known: list[Kind]) -> str:
    """Write a folder of several kinds, with other files that are not data."""
    inputs = folder / "in"
    inputs.mkdir()
    chosen = chance.choices(known, k=chance.randrange(1, 4))
    if chance.random() < 0.5:  # Often kinds that may be mixed.
        rows = [each for each in known if each.name in ROW_KINDS]
        chosen = chance.choices(rows, k=len(chosen))
    expected: list[bytes] = []
    for number, kind in enumerate(chosen):
        ending = chance.choice(kind.endings or FOREIGN_ENDINGS)
        compression = chance.choice([*COMPRESSIONS])
        content = COMPRESSIONS[compression](kind.content)
        (inputs / f"{number}{ending}{compression}").write_bytes(content)
        expected += kind.documents
    for name in chance.sample(NO_DATA, chance.randrange(1, len(NO_DATA))):
        (inputs / name).write_bytes(b"beside the data")
    result, given = write(folder, inputs)
    is_one = len({kind_of(each) for each in chosen}) == 1 and chosen[0].endings
    if result == "refused":
        assert not is_one, "refused a folder of one kind"
        return result
    assert given == expected, "other documents"
    return result


ROW_KINDS = ("jsonl", "strings", "array", "csv", "tsv", "parquet", "arrow", "stream")


def kind_of(kind: Kind) -> str:
    if kind.name in ROW_KINDS:
        return "rows"
    if not kind.endings:
        return "none"
    return "tokens" if kind.name == "npy" else "text"


def text_endings(known: list[Kind]) -> set[str]:
    return {each for kind in known if kind_of(kind) == "text" for each in kind.endings}


def check_texts(given: list[bytes], ending: str, known: list[Kind]) -> None:
    """Check the texts of a damaged file, which no checksum protects."""
    if ending not in text_endings(known):
        return
    for document in given:
        assert b"\0" not in document, "a NUL in a text"
        assert not document.lstrip().startswith((b"<html", b"<!DOC", b"<?xml"))
        assert not document.startswith((b'{"text":', b'[{"text":'))


def write(folder: Path, path: Path) -> tuple[str, list[bytes]]:
    """Run the command; return the result and the documents."""
    corpus = folder / "out" / "c_*.rox"
    error = io.StringIO()
    options = "--unit-bytes", "2000", "--separator", "none"
    with (
        contextlib.redirect_stderr(error),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = command(["write", str(corpus), str(path), *options])
    if code == 0:
        with Roxxel(corpus) as written:
            return "right", [each.tobytes() for each in written.documents]
    assert code == 1
    *notices, message = error.getvalue().splitlines()
    assert message.startswith("roxxel-prepare: "), f"not a sentence: {message!r}"
    assert printable(message) == message, f"not one line: {message!r}"
    assert len(message) <= 1500, f"too long: {message!r}"
    assert "; " in message or ": " in message, f"no remedy: {message!r}"
    assert all(each.startswith(("the inputs", str(folder))) for each in notices)
    assert not (corpus.parent / "c_manifest.json").exists(), "committed something"
    shutil.rmtree(corpus.parent, ignore_errors=True)
    return "refused", []


if __name__ == "__main__":
    main()
