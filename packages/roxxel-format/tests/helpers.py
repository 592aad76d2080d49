"""Small corpora for the tests."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel, Shard
from roxxel_format._spec.manifest import ColumnTable, Manifest, ShardTable, Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder, but for the permanent lock files."""
    locks = ".lock", ".writers"
    return sorted(path.name for path in folder.iterdir() if path.suffix not in locks)


def corpus_of(folder: Path, documents: Iterable[Any], **options: Any) -> Roxxel:
    """Write a corpus in shards of 1000 or so tokens, and return it."""
    corpus = Roxxel(folder / "c_*.rox")
    arguments: dict[str, Any] = {"block_size": 512, "max_shard_bytes": 12_000}
    corpus.write(documents, **(arguments | options))
    return corpus


def manifest_of(
    paths: Sequence[str | Path],
    counts: Sequence[int] | None = None,
    columns: dict[str, ColumnTable] | None = None,
) -> Manifest:
    """Return the manifest of some shards, with a version for each count of shards."""
    shards = [Shard(path) for path in paths]
    rows = [
        (
            Path(shard.path).name,
            shard.layout.sections.stop,
            shard.num_tokens,
            shard.num_documents,
            shard.layout.min_value,
            shard.layout.max_value,
            shard.layout.flags,
            shard.layout.content_digest.hex(),
            shard.layout.digest.hex(),
        )
        for shard in shards
    ]
    table = ShardTable(*map(list, zip(*rows, strict=True)))
    counts = counts or [len(shards)]
    return Manifest(
        dtype_name=shards[0].layout.head.dtype_name,
        block_size=shards[0].layout.head.block_size,
        shards=table,
        columns=columns or {},
        versions=tuple(
            Version(count, fingerprint)
            for count, fingerprint in zip(
                counts, table.fingerprints(counts), strict=True
            )
        ),
    )


def with_manifest(
    corpus: Roxxel,
    counts: Sequence[int] | None = None,
    columns: dict[str, ColumnTable] | None = None,
) -> Roxxel:
    """Give the shards of a corpus `c_*.rox` a manifest, and return it opened anew."""
    folder = Path(corpus.paths[0]).parent
    data = manifest_of(corpus.paths, counts, columns).pack()
    (folder / "c_manifest.json").write_bytes(data)
    return Roxxel(corpus.filepath)


def column_of(
    folder: Path, per: str, parts: Sequence[Any | None], name: str = "column"
) -> ColumnTable:
    """Write the files of a column, one for each shard, and return their table."""
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
    return ColumnTable(
        per, dtype.str[1:] if dtype.kind == "S" else dtype.name, names, sizes, digests
    )
