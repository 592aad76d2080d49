"""How a leaf of a state lies in the files of a step: its folder, dtype and chunks.

A leaf's name is its path in the state, as text. The path of its files' folder works on
every file system, in every bucket and library: a short part of lowercase ASCII
characters stays, and any other part becomes a similar text with a digest, which makes
it unique. So two names that differ only in upper and lower case, in how an accent is
encoded, or in a character that a disk refuses have different files, also after a copy
to another disk.

Digests prove that files are those that were written, but not that the files fit each
other. A library that trusts a shape in a file allocates as much memory as the shape
asks for. So `read_layouts` compares shape, dtype and chunks with the description of a
step before any read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_store.records import parse_value

from roxxel_ckpt._arrays.tensor_file import DTYPES, read_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_ckpt._integrity import FileDigest, LocalFiles

    ChunkFile = tuple[tuple[int, ...], str]
    """The index of a chunk, and its file."""

STATE = "state"
METADATA_FILE = f"{STATE}/_METADATA"
SMALL_FILE = "small.safetensors"

# Orbax stores a Python number as the widest numpy number of its kind.
_NUMBERS = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}
_NUMBER_BITS = {"bool": 8, "int": 64, "float": 64, "complex": 128}
# The files hold these small floats as such, and other small floats as their bits.
_SMALL_FLOATS = {
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
}
# Windows has these names for devices, whatever the folder.
_PLAIN = re.compile(r"(?!(?:aux|con|nul|prn|com[0-9]|lpt[0-9])$)[a-z0-9_-]{1,64}")
# S3 allows names of 1 024 bytes, of which the folder of the run needs a part.
_LONGEST_PATH = 400
# The index of a chunk, at the end of its file's name.
_INDEX = re.compile(r"(/[0-9]+)*$")
# No kind of PRNG key in JAX has more words than this.
_MOST_WORDS_OF_A_KEY = 16


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """Shape and dtype of a leaf.

    Attributes:
        shape: Shape as in numpy. For typed PRNG keys, the number of keys along each
            axis.
        dtype: Name of the dtype, such as `bfloat16`; `key<fry>` for a typed PRNG key;
            `int`, `float`, `bool` or `complex` for a Python number.

    Example:
        >>> LeafSpec((4, 2), "bfloat16").num_bytes
        16
    """

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def is_key(self) -> bool:
        """Whether the leaf holds typed PRNG keys."""
        return self.dtype.startswith("key<")

    @property
    def is_float(self) -> bool:
        """Whether the leaf holds real or complex numbers, as weights are."""
        return _kind(self.dtype) in {"float", "complex"}

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all values; None for PRNG keys, whose size depends on JAX."""
        if self.is_key:
            return None
        bits = _NUMBER_BITS.get(self.dtype)
        if bits is None:
            # The first number in `bfloat16` or `float8_e4m3fn` is the width in bits.
            found = re.search(r"\d+", self.dtype)
            bits = int(found[0]) if found else 8
        return math.prod(self.shape) * max(bits, 8) // 8

    @property
    def stored_dtype(self) -> str:
        """Name of the numpy dtype in the files; PRNG keys are stored as words.

        Zarr has types of whole bytes, so int4 is stored as int8.
        """
        if self.is_stored_as_bits:
            return "uint8"
        if self.is_key:
            return "uint32"
        narrow = re.fullmatch(r"(u?int)[1-4]", self.dtype)
        return f"{narrow[1]}8" if narrow else _NUMBERS.get(self.dtype, self.dtype)

    @property
    def is_stored_as_bits(self) -> bool:
        """Whether files hold a float's bits as integers: zarr lacks its type."""
        is_small = re.match(r"float[4-8]_", self.dtype) is not None
        return is_small and self.dtype not in _SMALL_FLOATS

    def holds(self, saved: LeafSpec) -> bool:
        """Whether a leaf of this shape and dtype can hold a saved leaf.

        A Python number can hold an array of shape `()` of its kind, and the array the
        number: a counter may begin as the number 0 and continue as an array.
        """
        if self == saved:
            return True
        kinds = {_kind(self.dtype), _kind(saved.dtype)}
        has_number = not _NUMBERS.keys().isdisjoint({self.dtype, saved.dtype})
        return self.shape == saved.shape == () and has_number and len(kinds) == 1

    @property
    def is_stored(self) -> bool:
        """Whether Orbax stores the leaf; Orbax stores no arrays of size zero."""
        return 0 not in self.shape


def _kind(dtype: str) -> str:
    """Return the kind of a number: `int`, `float`, `complex`, `bool` or `key`."""
    found = re.match(r"u?(int|float|complex|bool|key)", dtype.removeprefix("b"))
    return "bool" if dtype == "bool" else found[1] if found else dtype


def leaf_path(name: str) -> str:
    """Return the path of the folder of a leaf's files, in the arrays of a step.

    Example:
        >>> leaf_path("model/blocks/0/kernel")
        'model/blocks/0/kernel'
        >>> leaf_path("model/Dense_0/kernel")
        'model/dense_0~b45260976bfb0feb8420/kernel'
    """
    path = "/".join(
        part if _PLAIN.fullmatch(part) else _replaced(part) for part in name.split("/")
    )
    return path if len(path) <= _LONGEST_PATH else _replaced(name)


def _replaced(text: str) -> str:
    alike = re.sub(r"[^a-z0-9_]+", "-", text.lower())[:32].strip("-")
    data = text.encode("utf-8", "surrogatepass")
    return f"{alike}~{hashlib.blake2b(data, digest_size=10).hexdigest()}"


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
        files.check(digests, [SMALL_FILE])
        shared, _ = read_header(directory / SMALL_FILE, "restore another step")
    alone = [name for name in specs if name not in shared]
    if alone:
        files.check(digests, [METADATA_FILE, *map(_layout_file, alone)])
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
            raise files.error(f"{file} does not describe {name}") from error
        if dtype != spec.stored_dtype or not _is_shape_of(spec, layout.shape):
            raise files.error(
                f"{file} declares {name} as {dtype}{list(layout.shape)} and the "
                f"description {spec}",
            )
        layouts[name] = layout
    return layouts


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


def in_groups(sizes: Mapping[str, int], num_bytes: int) -> Iterator[list[str]]:
    """Yield names in groups, in order; a group has at most `num_bytes`, or one file.

    `sizes` maps names to numbers of bytes.
    """
    group: list[str] = []
    left = num_bytes
    for name, size in sizes.items():
        if group and size > left:
            yield group
            group, left = [], num_bytes
        group.append(name)
        left -= size
    if group:
        yield group
