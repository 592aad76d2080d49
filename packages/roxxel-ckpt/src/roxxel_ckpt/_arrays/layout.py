"""Compare how a step's arrays are stored with its description, before any read.

Digests prove that files are those that were written, but not that the files fit each
other. A library that trusts a shape in a file allocates as much memory as the shape
asks for. So this module first compares shape, dtype, chunks and the sizes of files.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_store.records import parse_value

from roxxel_ckpt._arrays.tensor_file import DTYPES, read_header
from roxxel_ckpt._integrity import find_undigested
from roxxel_ckpt._names import METADATA_FILE, SMALL_FILE, STATE, leaf_path
from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from roxxel_ckpt._integrity import FileDigest, LocalFiles
    from roxxel_ckpt._place.description import LeafSpec

    ChunkFiles = dict[str, list[tuple[tuple[int, ...], str, int]]]

# A shard's index has the offset and size of every inner chunk, and a CRC-32C.
_INDEX_ENTRY_BYTES, _INDEX_CRC_BYTES = 16, 4
# The index of a chunk, at the end of its file's name.
_INDEX = re.compile(r"(/[0-9]+)*$")
# No kind of PRNG key in JAX has more words than this.
_MOST_WORDS_OF_A_KEY = 16


def read_layouts(
    files: LocalFiles, specs: Mapping[str, LeafSpec], digests: Mapping[str, FileDigest]
) -> dict[str, Layout]:
    """Return the layouts of leaves, from files that are verified first.

    Raises:
        CheckpointDamagedError: A file that describes leaves is damaged or has no
            digest, a layout differs from the description of its leaf, or a file has a
            size that no chunk of the layout can have.
    """
    directory, shared = files.directory, dict[str, Any]()
    if SMALL_FILE in digests:
        check_sound(files, digests, [SMALL_FILE])
        shared, _ = read_header(directory / SMALL_FILE, "restore another step")
    alone = [name for name in specs if name not in shared]
    if alone:
        check_sound(files, digests, [METADATA_FILE, *map(_layout_file, alone)])
    chunks = _chunk_files(digests)
    return {
        name: _small_layout(directory, name, spec, shared[name])
        if name in shared
        else _read_layout(directory, name, spec, chunks)
        for name, spec in specs.items()
    }


def check_sound(
    files: LocalFiles, digests: Mapping[str, FileDigest], names: Iterable[str]
) -> None:
    """Raise a CheckpointDamagedError if a file is damaged, or has no digest."""
    names = list(names)
    problem = find_undigested(names, digests)
    if problem is None:
        damages = files.damages({name: digests[name] for name in names})
        problem = next(iter(damages.values()), None)
    if problem is not None:
        raise _damaged(files.directory, problem)


def _layout_file(name: str) -> str:
    return f"{STATE}/{leaf_path(name)}/zarr.json"


def _chunk_files(digests: Mapping[str, FileDigest]) -> ChunkFiles:
    """Return the files of each array's chunks, with their indices and sizes."""
    found: ChunkFiles = {}
    for file, digest in digests.items():
        array = _INDEX.sub("", file)
        index = tuple(int(n) for n in file.removeprefix(array).split("/")[1:])
        found.setdefault(array, []).append((index, file, digest.num_bytes))
    return found


class Layout(NamedTuple):
    """Shape of an array and of its chunks, and the files of the chunks.

    Zarr writes no file for a chunk of fill values. This counts files instead of chunks,
    because a hostile layout may declare any number of chunks.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    files: list[tuple[tuple[int, ...], str, int]]

    def overlapping(self, parts: Iterable[Sequence[slice]]) -> list[str]:
        """Return the files of the chunks that overlap one of the parts."""
        blocks = {
            tuple(
                range(start // size, -(-stop // size))
                for (start, stop, _), size in zip(
                    (cut.indices(n) for cut, n in zip(part, self.shape, strict=True)),
                    self.chunk,
                    strict=True,
                )
            )
            for part in parts
        }
        return [
            file
            for index, file, _ in self.files
            if any(all(map(range.__contains__, block, index)) for block in blocks)
        ]


def _small_layout(
    directory: Path, name: str, spec: LeafSpec, entry: Mapping[str, Any]
) -> Layout:
    """Return the layout of a leaf in the shared file: one chunk."""
    try:
        shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
        stored = dataclasses.replace(spec, shape=shape, dtype=spec.stored_dtype)
        fits = (
            entry["dtype"] == DTYPES.get(spec.stored_dtype)
            and _is_shape_of(spec, shape)
            and all(type(number) is int for number in (*shape, start, stop))
            and 0 <= start <= stop == start + (stored.num_bytes or 0)
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damaged(directory, f"{SMALL_FILE} does not describe {name}") from error
    if not fits:
        raise _damaged(
            directory,
            f"{SMALL_FILE} declares {name} as {entry['dtype']}{list(shape)} in bytes "
            f"{start} to {stop} and the description {spec}",
        )
    return Layout(shape, shape, [((0,) * len(shape), SMALL_FILE, stop - start)])


def _is_shape_of(spec: LeafSpec, shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape holds a leaf; keys have one axis more."""
    words = shape[-1:] if spec.is_key else ()
    return shape == spec.shape + words and (
        not spec.is_key or bool(words and 1 <= words[0] <= _MOST_WORDS_OF_A_KEY)
    )


def _read_layout(
    directory: Path, name: str, spec: LeafSpec, chunks: ChunkFiles
) -> Layout:
    """Return the layout of a leaf whose `zarr.json` is verified."""
    file = _layout_file(name)
    try:
        body = parse_value((directory / file).read_bytes(), file, "save again")
        dtype, shape = body["data_type"], tuple(body["shape"])
        files = chunks.get(f"{STATE}/{leaf_path(name)}/c", [])
        layout = Layout(shape, _regular_chunk(body), files)
        inner = _num_inner(body["codecs"], layout.chunk)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damaged(directory, f"{file} is no layout of an array") from error
    if dtype != spec.stored_dtype or not _is_shape_of(spec, shape):
        raise _damaged(
            directory,
            f"{file} declares {dtype}{list(shape)} and the description {spec}",
        )
    # Not by NumPy, which knows float8 only once JAX is imported.
    chunk_spec = dataclasses.replace(spec, shape=layout.chunk, dtype=spec.stored_dtype)
    chunk_bytes = chunk_spec.num_bytes or 0
    index_bytes = inner * _INDEX_ENTRY_BYTES + _INDEX_CRC_BYTES if inner else 0
    # A compressor adds a little to what it cannot compress.
    most = index_bytes + chunk_bytes + chunk_bytes // 64 + 128 * max(inner, 1)
    for index, chunk, num_bytes in layout.files:
        if len(index) != len(shape):
            raise _damaged(directory, f"{chunk} is no chunk of {file}")
        if not index_bytes <= num_bytes <= most:
            raise _damaged(
                directory,
                f"{chunk} has {num_bytes} bytes, and {file} declares {index_bytes} to "
                f"{most}",
            )
    return layout


def _regular_chunk(body: Any) -> tuple[int, ...]:
    """Return the shape of a chunk, or raise a ValueError."""
    shape, chunk = body["shape"], body["chunk_grid"]["configuration"]["chunk_shape"]
    separator = body["chunk_key_encoding"].get("configuration", {}).get("separator")
    if (
        body["chunk_grid"]["name"] != "regular"
        or body["chunk_key_encoding"]["name"] != "default"
        or separator not in {"/", None}
    ):
        raise ValueError("the chunks are no files of a regular grid")
    sizes = itertools.chain(shape, chunk)
    if not all(type(n) is int and n >= 0 for n in sizes) or not all(
        1 <= c <= max(n, 1) for n, c in zip(shape, chunk, strict=True)
    ):
        raise ValueError("the chunks do not divide the shape")
    return tuple(chunk)


def _num_inner(codecs: Any, chunk: tuple[int, ...]) -> int:
    """Return the number of chunks inside a file; 0 if the file itself is a chunk."""
    if codecs[0]["name"] != "sharding_indexed":
        return 0
    inner = codecs[0]["configuration"]["chunk_shape"]
    if not all(type(n) is int and n >= 1 for n in inner):
        raise ValueError("the inner chunks have no size")
    pairs = zip(chunk, inner, strict=True)
    return math.prod(-(-whole // part) for whole, part in pairs)


def _damaged(directory: Path, problem: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(f"{directory}: {problem}; restore another step")
