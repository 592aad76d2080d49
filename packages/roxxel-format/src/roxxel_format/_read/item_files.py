"""Files of one array of tokens: raw, `.npy`, or with the header of llm.c.

The first bytes of a file say which of these it is, whatever its name: OLMo gives raw
tokens the ending `.npy`, and llm.c gives tokens behind a header the ending `.bin`.
"""

from __future__ import annotations

import codecs
import io
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel_store.urls import absolute, check_on_disk

from roxxel_format._corpus_name import matching_files
from roxxel_format._read.files import with_room
from roxxel_format._read.foreign_files import (
    NPY_MAGIC,
    map_file,
    parse_npy_header,
)
from roxxel_format._read.line import Line
from roxxel_format._spec.layout import is_shard_head, stored_name
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from roxxel_format._corpus_name import Filepath
    from roxxel_format._read.files import MappedFile
    from roxxel_format._spec.layout import Tokens

# The header of llm.c: 256 numbers of 4 bytes, of which the first three are its magic,
# a version, and the number of tokens that follow. 20240520 is that of GPT-2 (uint16),
# 20240801 that of Llama 3 (uint32); the size of the file decides.
_LLM_C_MAGICS = {20240520, 20240801, 20251013}
_LLM_C_HEAD = struct.Struct("<iiI")
_LLM_C_SIZE = 1024
_LLM_C_MOST_VERSION = 99
_LLM_C_DTYPES = {2: "<u2", 4: "<u4"}

_MOST_NPY_HEAD = 1 << 17
_SAMPLE_ITEMS = 4096
_LEAST_SAMPLE = 16
_MOST_TOKEN = 1 << 20
"""No vocabulary is this large."""
_MOST_UPPER = 7
"""The upper half of an id of 32 bits, for a vocabulary of up to 524 288."""
_FEWEST_LARGER = 32
"""So many larger bytes at every second place alone are no chance."""


class Items(NamedTuple):
    """Where the tokens of a file are, and facts that change if it is replaced."""

    path: str
    dtype: np.dtype[Any]
    num_items: int
    byte_offset: int
    inode: int
    mtime_ns: int


class ItemFile:
    """An open file of tokens."""

    def __init__(self, found: Items) -> None:
        self._file = map_file(Path(found.path))
        status = self._file.status
        stop = found.byte_offset + found.num_items * found.dtype.itemsize
        is_same = (status.st_ino, status.st_mtime_ns) == (found.inode, found.mtime_ns)
        if not is_same or stop > self._file.num_bytes:
            raise ShardError(
                f"{found.path}: the file was replaced after it was opened; open the "
                "corpus again"
            )
        self._items = self._file.array(found.dtype, found.num_items, found.byte_offset)

    def piece(self) -> Tokens:
        """Check the size of the file, and return its tokens."""
        self._file.check_size()
        return self._items


def paths_of(filepath: Filepath, kind: str) -> list[str]:
    """Return the files that a path, a pattern, or a list of these names.

    The files of a pattern are in natural order. Errors name the reader as `kind`.
    """
    named = absolute(filepath)
    found: list[str] = []
    for each in (named,) if isinstance(named, str) else named:
        check_on_disk(each, f"{kind} reads files on a disk; copy the file to one first")
        if Path(each).is_dir():
            raise IsADirectoryError(
                f"{each}: is a folder; name its files with a pattern, such as "
                f"{each.rstrip('/')}/*.bin"
            )
        found += matching_files(each)
    if not found:
        raise FileNotFoundError("the list of files is empty; pass at least one")
    return found


def line_of(files: Sequence[Items]) -> Line[ItemFile]:
    """Return the tokens of files, one after another.

    Raises:
        ShardError: The files hold tokens of different types.
    """
    stored = files[0].dtype
    bounds = [0]
    for each in files:
        if each.dtype != stored:
            raise ShardError(
                f"{each.path}: holds {each.dtype}, but {files[0].path} holds {stored}; "
                "open them as two corpora, or pass dtype"
            )
        bounds.append(bounds[-1] + each.num_items)
    return Line(bounds, stored, lambda number: ItemFile(files[number]), ItemFile.piece)


def find_items(
    path: str, dtype: npt.DTypeLike | None, byte_offset: int | None
) -> Items:
    """Return where the tokens of a file are.

    Args:
        path: The file.
        dtype: Item type of a file without a header.
        byte_offset: Bytes before the first token. None means the size of the header if
            the file has one of `.npy` or llm.c, else 0.

    Raises:
        ShardError: The file does not hold whole items of a known type.
        TypeError: `dtype` is not a type of tokens.
        ValueError: The file has no header, and `dtype` is None. Or its header has
            another type.
    """
    file = with_room(lambda: map_file(Path(path)))
    given = None if dtype is None else _given_dtype(dtype)
    if byte_offset is None:
        found = _npy_items(file) or _llm_c_items(file)
        if found is not None:
            _check_dtype(path, given, found.dtype)
            return found
    if given is None:
        raise ValueError(
            f"{path}: has no header of .npy or llm.c, which says the type of tokens; "
            'pass dtype, for example "uint16", as its writer used it'
        )
    start = byte_offset or 0
    if not start and is_shard_head(file.read(0, min(8, file.num_bytes))):
        raise ShardError(
            f"{path}: is a shard of Roxxel, whose head is no tokens; open it with "
            "Roxxel(filepath), and leave the format out"
        )
    if not 0 <= start <= file.num_bytes:
        raise ValueError(
            f"{path}: offset={start} is not in its {file.num_bytes} bytes; check the "
            "offset"
        )
    count, rest = divmod(file.num_bytes - start, given.itemsize)
    if rest:
        behind = f" behind offset {start}" if start else ""
        raise ShardError(
            f"{path}: has {file.num_bytes - start} bytes{behind}, which is not a whole "
            f"number of {given} items; check the dtype"
        )
    return _items_of(file, given, count, start)


def check_width(file: Items, *, is_raw: bool) -> None:
    """Raise ValueError if a file was written in another type than its tokens have.

    Nothing in a file of raw tokens says their type, so the first tokens are looked at.

    Args:
        file: Where the tokens are.
        is_raw: Whether no header records their type.
    """
    if not is_raw or file.dtype.kind not in "iu" or file.num_items < _LEAST_SAMPLE:
        return
    tokens = with_room(lambda: ItemFile(file)).piece()[:_SAMPLE_ITEMS]
    problem = _text_problem(tokens) or _half_problem(tokens) or _pair_problem(tokens)
    if problem is not None:
        shown = ", ".join(map(str, tokens[:4].tolist()))
        raise ValueError(
            f"{file.path}: begins with {shown}, and {problem} (if {tokens.dtype.name} "
            "is right, save the tokens as .npy, whose header names their type)"
        )


def _text_problem(tokens: Tokens) -> str | None:
    """Describe tokens whose bytes are a text; None if they are not."""
    data = tokens[: 4 * _LEAST_SAMPLE].tobytes()
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return None
    is_text = all(each.isprintable() or each in "\n\r\t" for each in text)
    if tokens.dtype.itemsize == 1 or not is_text:
        return None
    return f"these bytes are the text {text[:8]!r}; write it with a tokenizer"


def _half_problem(tokens: Tokens) -> str | None:
    """Describe tokens that seem to be parts of ids; None for others."""
    found, every = _halves_of(tokens), "second"
    if tokens.dtype.itemsize == 1:
        # The second byte of an id may be any, but of four or eight the fourth is 0.
        wider = _halves_of(tokens[: tokens.size // 2 * 2].view("<u2"))
        if wider is not None:
            found, every = (0, wider[1]), "fourth"
    if found is None:
        return None
    greatest, name = found
    most = f"at most {greatest}" if greatest else "0"
    return (
        f"every {every} token is {most}, so the file was "
        f"written in a wider type than {tokens.dtype.name}; pass "
        f'dtype="{name}" (--dtype {name})'
    )


def _halves_of(tokens: Tokens) -> tuple[int, str] | None:
    """Return the greatest upper half, and the type of the ids; None without halves."""
    size = tokens.dtype.itemsize
    if tokens.dtype.byteorder == ">":  # Then the upper half comes first.
        tokens = tokens[: tokens.size // 4 * 4][::-1]
    lower, upper = tokens[::2], tokens[1::2]
    greatest = int(upper.max())
    # Small tokens everywhere, such as bits, are no halves. So a quarter of the lower
    # halves must be larger than an upper half can be, or not 0 if all of those are 0.
    least, fewest = _MOST_UPPER if greatest else 0, lower.size / 4
    if size == 1 and greatest > _MOST_UPPER:
        # The upper byte of two only reaches the size of the vocabulary / 256. Tokens of
        # a byte reach the same values at every place.
        least, fewest = greatest, max(_FEWEST_LARGER, lower.size / 16)
    elif size == 8 or greatest > _MOST_UPPER or int(upper.min()) < 0:
        return None
    if np.count_nonzero(lower > least) < fewest:
        return None
    # Ids of four parts, of which only the lowest is not 0.
    is_quarter = size < 4 and not lower[1::2].any() and not upper[1::2].any()
    return greatest, f"uint{8 * size * (4 if is_quarter else 2)}"


def _pair_problem(tokens: Tokens) -> str | None:
    """Describe tokens that seem to be several ids each; None for others."""
    size = tokens.dtype.itemsize
    if size < 4 or abs(int(np.median(tokens))) < _MOST_TOKEN:
        return None
    name = f"uint{4 * size}"
    return (
        "most tokens are beyond every vocabulary, so the file was written in another "
        f"type than {tokens.dtype.name}; if in a narrower one, pass "
        f'dtype="{name}" (--dtype {name})'
    )


def _items_of(
    file: MappedFile, dtype: np.dtype[Any], count: int, byte_offset: int
) -> Items:
    status = file.status
    return Items(
        file.path, dtype, count, byte_offset, status.st_ino, status.st_mtime_ns
    )


def _npy_items(file: MappedFile) -> Items | None:
    """Return the items of a file with a header of `.npy`; None without one."""
    if file.read(0, min(len(NPY_MAGIC), file.num_bytes)) != NPY_MAGIC:
        return None
    head = io.BytesIO(file.read(0, min(_MOST_NPY_HEAD, file.num_bytes)))
    dtype, shape, _ = parse_npy_header(file.path, head.read)
    offset = head.tell()
    if len(shape) != 1:
        raise ShardError(
            f"{file.path}: holds an array of shape {shape}; save a flat array"
        )
    stop = offset + shape[0] * dtype.itemsize
    if file.num_bytes != stop:
        fault = "is truncated" if file.num_bytes < stop else "continues after its array"
        raise ShardError(
            f"{file.path}: has {file.num_bytes} bytes, but {shape[0]} items of {dtype} "
            f"end at byte {stop}; the file {fault}, so save the array again"
        )
    return _items_of(file, dtype, shape[0], offset)


def _llm_c_items(file: MappedFile) -> Items | None:
    """Return the items of a file with the header of llm.c; None without one."""
    if file.num_bytes < _LLM_C_SIZE:
        return None
    magic, version, count = _LLM_C_HEAD.unpack(file.read(0, _LLM_C_HEAD.size))
    if magic not in _LLM_C_MAGICS or not 0 <= version <= _LLM_C_MOST_VERSION:
        return None
    size = file.num_bytes - _LLM_C_SIZE
    name = _LLM_C_DTYPES.get(size // count if count else 2)
    if name is None or size != count * np.dtype(name).itemsize:
        raise ShardError(
            f"{file.path}: has {size} bytes behind its header of llm.c, which declares "
            f"{count} tokens of 2 or 4 bytes; the file is truncated or damaged, so "
            "copy it again, or pass offset=0 if it has no header"
        )
    return _items_of(file, np.dtype(name), count, _LLM_C_SIZE)


def _given_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a dtype of tokens, little-endian unless it is big-endian."""
    stored_name(dtype)
    found = np.dtype(dtype)
    return found if found.byteorder == ">" else found.newbyteorder("<")


def _check_dtype(path: str, given: np.dtype[Any] | None, stored: np.dtype[Any]) -> None:
    if given is not None and given != stored:
        raise ValueError(
            f"{path}: its header says {stored}, but dtype={given.name!r}; leave dtype "
            "out"
        )
