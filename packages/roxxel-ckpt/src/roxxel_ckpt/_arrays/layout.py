"""Compare how a step's arrays are stored with its description, before any read.

Digests prove that files are those that were written, but not that the files fit each
other. A library that trusts a shape in a file allocates as much memory as the shape
asks for. So this module first compares shape, dtype and chunks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_store.records import parse_value

from roxxel_ckpt._arrays.tensor_file import DTYPES, read_header
from roxxel_ckpt._names import METADATA_FILE, SMALL_FILE, STATE, leaf_path
from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from roxxel_ckpt._integrity import FileDigest, LocalFiles
    from roxxel_ckpt._place.description import LeafSpec

    ChunkFile = tuple[tuple[int, ...], str]
    """The index of a chunk, and its file."""

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
            digest, or a layout differs from the description of its leaf.
    """
    directory, shared = files.directory, dict[str, Any]()
    if SMALL_FILE in digests:
        check_sound(files, digests, [SMALL_FILE])
        shared, _ = read_header(directory / SMALL_FILE, "restore another step")
    alone = [name for name in specs if name not in shared]
    if alone:
        check_sound(files, digests, [METADATA_FILE, *map(_layout_file, alone)])
    chunks, layouts = _chunk_files(digests), dict[str, Layout]()
    for name, spec in specs.items():
        file = SMALL_FILE if name in shared else _layout_file(name)
        try:
            if name in shared:
                dtype, layout = _small_layout(shared[name])
            else:
                body = parse_value((directory / file).read_bytes(), file, "save again")
                own = chunks.get(f"{STATE}/{leaf_path(name)}/c", [])
                dtype, layout = _zarr_layout(body, own)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise _damaged(directory, f"{file} does not describe {name}") from error
        if dtype != spec.stored_dtype or not _is_shape_of(spec, layout.shape):
            raise _damaged(
                directory,
                f"{file} declares {name} as {dtype}{list(layout.shape)} and the "
                f"description {spec}",
            )
        layouts[name] = layout
    return layouts


def check_sound(
    files: LocalFiles, digests: Mapping[str, FileDigest], names: Iterable[str]
) -> None:
    """Raise a CheckpointDamagedError if a file is damaged, or has no digest."""
    names = list(names)
    problems = [f"{name} has no digest" for name in names if name not in digests]
    if not problems:
        damages = files.damages({name: digests[name] for name in names})
        problems = [*damages.values()]
    if problems:
        raise _damaged(files.directory, problems[0])


def _layout_file(name: str) -> str:
    return f"{STATE}/{leaf_path(name)}/zarr.json"


def _chunk_files(names: Iterable[str]) -> dict[str, list[ChunkFile]]:
    """Return the files of each array's chunks, with their indices."""
    found: dict[str, list[ChunkFile]] = {}
    for file in names:
        array = _INDEX.sub("", file)
        index = tuple(int(n) for n in file.removeprefix(array).split("/")[1:])
        found.setdefault(array, []).append((index, file))
    return found


class Layout(NamedTuple):
    """Shape of an array and of its chunks, and the files of the chunks.

    Zarr writes no file for a chunk of fill values. This counts files instead of chunks,
    because a hostile layout may declare any number of chunks.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    files: list[ChunkFile]

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
            for index, file in self.files
            if any(all(map(range.__contains__, block, index)) for block in blocks)
        ]


def _small_layout(entry: Mapping[str, Any]) -> tuple[str | None, Layout]:
    """Return dtype and layout of a leaf in the shared file: one chunk."""
    shape, dtype = tuple(entry["shape"]), entry["dtype"]
    stored = next((name for name, found in DTYPES.items() if found == dtype), None)
    return stored, Layout(shape, shape, [((0,) * len(shape), SMALL_FILE)])


def _zarr_layout(body: Any, files: list[ChunkFile]) -> tuple[str, Layout]:
    shape = tuple(body["shape"])
    chunk = tuple(body["chunk_grid"]["configuration"]["chunk_shape"])
    # Zarr allocates a whole chunk.
    if not all(1 <= c <= max(n, 1) for n, c in zip(shape, chunk, strict=True)):
        raise ValueError("the chunks do not divide the shape")
    return body["data_type"], Layout(shape, chunk, files)


def _is_shape_of(spec: LeafSpec, shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape holds a leaf; keys have one axis more."""
    words = shape[-1:] if spec.is_key else ()
    return shape == spec.shape + words and (
        not spec.is_key or bool(words and 1 <= words[0] <= _MOST_WORDS_OF_A_KEY)
    )


def _damaged(directory: Path, problem: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(f"{directory}: {problem}; restore another step")
