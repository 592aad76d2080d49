"""Small corpora for the tests."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
import warnings
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel
from roxxel_format._read.shard import open_shard

from .conformance.reader import lists_of, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from roxxel_format._read.shard import ShardMap


def documents_of(*lengths: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return uint16 documents of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**16, n, np.uint16) for n in lengths]


def line_of(documents: list[Any], separator: list[int] | None = None) -> Any:
    """Return the token line these documents make."""
    end = np.array(separator or [], np.uint16)
    if not documents:
        return end[:0]
    return np.concatenate([part for each in documents for part in (each, end)])


def shard_at(path: str | Path) -> ShardMap:
    """Open one shard, without a corpus around it."""
    return open_shard(str(path))


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder, but for the lock files."""
    locks = ".lock", ".writers"
    return sorted(path.name for path in folder.iterdir() if path.suffix not in locks)


def short(names: Iterable[str]) -> list[str]:
    """Return names without what only one write has in them, and sorted.

    `c_0123456789ab_00000_001.rox` is `c_001.rox`.
    """
    return sorted(re.sub(r"[0-9a-f]{12}_00000_", "", name) for name in names)


def in_child(action: Callable[[], object]) -> int:
    """Run something in a child process; return how it ended.

    The child prints its error, because it cannot raise one here.
    """
    return ending_of(child_of(action))


def child_of(action: Callable[[], object]) -> int:
    """Begin something in a child process, and return the child's id.

    Other tests of this process may have started threads, such as JAX's: a fork then
    warns that locks stay locked in the child. The child uses nothing of these threads,
    and the alarm ends it if that is wrong.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(60)
        action()
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()  # `_exit` does not.
        os._exit(code)


def ending_of(child: int) -> int:
    """Wait for a child, and return its exit code, or the signal's negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def corpus_of(folder: Path, documents: Iterable[Any], **options: Any) -> Roxxel:
    """Write a corpus in shards of 1000 or so tokens, and return it."""
    corpus = Roxxel(folder / "c_*.rox")
    arguments: dict[str, Any] = {"block_size": 512, "max_shard_bytes": 12_000}
    corpus.write(documents, **(arguments | options))
    return corpus


SHARD_FIELDS = (
    "names",
    "bytes",
    "tokens",
    "documents",
    "least",
    "greatest",
    "content_digests",
    "digests",
)
"""The lists of a manifest, as docs/format.md specifies them."""


def listed(folder: Path, name: str = "c_manifest.json") -> dict[str, Any]:
    """Return a manifest with the lists of all its parts joined."""
    return lists_of(json.loads((folder / name).read_bytes()))


def manifest_with(
    rows: Sequence[Sequence[Any]], counts: Sequence[int] = (), **fields: Any
) -> bytes:
    """Return a manifest of shards, with a version for each count of them."""
    shards = {
        name: [row[number] for row in rows] for number, name in enumerate(SHARD_FIELDS)
    }
    fingerprints = [b""]
    for digest in shards["content_digests"]:
        text = b"roxxel corpus 1" + fingerprints[-1] + bytes.fromhex(digest)
        fingerprints.append(blake2b(text, digest_size=16).digest())
    firsts = [rows[:count] for count in counts]
    versions: dict[str, list[Any]] = {
        "fingerprints": [fingerprints[count].hex() for count in counts],
        "tokens": [sum(row[2] for row in first) for first in firsts],
        "documents": [sum(row[3] for row in first) for first in firsts],
        "least": [min((row[4] for row in first), default=0) for first in firsts],
        "greatest": [max((row[5] for row in first), default=0) for first in firsts],
        "padding": [0] * len(counts),
        "cut": [0] * len(counts),
        "writes": [0] * len(counts),
    }
    table: dict[str, Any] = {
        "format": "roxxel manifest",
        "version": 1,
        "dtype": None,
        "block_size": 0,
        "separator": [],
        "tokenizer": None,
        "versions": versions,
        "writes": [{"arguments": {}}],
        "shards": shards,
        "columns": {},
    }
    return seal(table | fields)


def manifest_of(
    paths: Sequence[str | Path],
    counts: Sequence[int] | None = None,
    columns: dict[str, dict[str, Any]] | None = None,
) -> bytes:
    """Return the manifest of some shards, with a version for each count of shards."""
    layouts = [shard_at(path).layout for path in paths]
    rows = [
        (
            Path(path).name,
            layout.sections.stop,
            layout.num_tokens,
            layout.num_documents,
            layout.min_value,
            layout.max_value,
            layout.content_digest.hex(),
            layout.digest.hex(),
        )
        for path, layout in zip(paths, layouts, strict=True)
    ]
    head = layouts[0].head
    return manifest_with(
        rows,
        counts or [len(rows)],
        dtype=head.dtype_name,
        block_size=head.block_size,
        columns=columns or {},
    )


def with_manifest(
    corpus: Roxxel,
    counts: Sequence[int] | None = None,
    columns: dict[str, dict[str, Any]] | None = None,
) -> Roxxel:
    """Give the shards of a corpus `c_*.rox` a manifest, and return it opened anew."""
    folder = Path(corpus.paths[0]).parent
    data = manifest_of(corpus.paths, counts, columns)
    (folder / "c_manifest.json").write_bytes(data)
    return Roxxel(corpus.filepath)


def column_of(
    folder: Path, per: str, parts: Sequence[Any | None], name: str = "column"
) -> dict[str, Any]:
    """Write the files of a column, one for each shard; return its manifest entry."""
    names: list[str | None] = []
    sizes: list[int] = []
    digests: list[str] = []
    dtype = next(part.dtype for part in parts if part is not None)
    for number, part in enumerate(parts):
        data = b"" if part is None else part.tobytes()
        path = folder / f"c_{number:05d}.{name}"
        if part is not None:
            path.write_bytes(data)
        names.append(None if part is None else path.name)
        sizes.append(len(data))
        digests.append(
            "" if part is None else blake2b(data, digest_size=32).hexdigest()
        )
    return {
        "per": per,
        "dtype": dtype.str[1:] if dtype.kind == "S" else dtype.name,
        "names": names,
        "bytes": sizes,
        "digests": digests,
    }


def window_rows(corpus: Roxxel, starts: list[int], length: int) -> list[list[int]]:
    """Return `[window, document, start, stop]` for each document in some windows."""
    counts, documents, stops = corpus.window_spans(starts, length)
    assert counts.size == len(starts)
    assert counts.sum() == documents.size == stops.size
    rows: list[list[int]] = []
    documents, stops = documents.tolist(), stops.tolist()
    for window, (begin, count) in enumerate(zip(starts, counts.tolist(), strict=True)):
        first = begin
        for document, stop in zip(documents[:count], stops[:count], strict=True):
            if first < stop:
                rows.append([window, document, first, min(stop, begin + length)])
            first = stop
        documents, stops = documents[count:], stops[count:]
    return rows
