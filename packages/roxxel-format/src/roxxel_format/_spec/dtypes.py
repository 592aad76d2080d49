"""The item types of shards, and what ends a document in items of a type.

A shard stores its type as a name.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Tokens: TypeAlias = "npt.NDArray[Any]"

TEXTS = "utf8"
"""The dtype of a column of texts in a manifest; `_spec/texts.py` is its layout."""

BFLOAT16 = "bfloat16"
_CODES = {
    "bool": "?",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}
_ITEM_SIZES = {name: np.dtype(code).itemsize for name, code in _CODES.items()}
_ITEM_SIZES[BFLOAT16] = 2
NAMES = (*_CODES, BFLOAT16)
_STRINGS = re.compile(r"S[1-9][0-9]{0,8}")


@cache
def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian dtype of an item type, by its name.

    `bfloat16` is `ml_dtypes.bfloat16` if ml_dtypes is installed, else `uint16` with the
    same bits.
    """
    if name == BFLOAT16:
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ModuleNotFoundError:
            return np.dtype("<u2")
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_CODES[name])


def column_dtype(name: str) -> np.dtype[Any] | None:
    """Return the dtype of a column by its name; None if the name is unknown.

    The name is an item type, bytes of a fixed length such as `S36`, or the name for
    texts, whose dtype is object.
    """
    if name == TEXTS:
        return np.dtype(object)
    if name in NAMES:
        return stored_dtype(name)
    return np.dtype(name) if _STRINGS.fullmatch(name) else None


def item_size(name: str) -> int:
    """Return the size of an item in bytes."""
    return _ITEM_SIZES[name]


def stored_name(dtype: Any) -> str:
    """Return the item type of a dtype; raise TypeError if a shard cannot hold it."""
    if isinstance(dtype, str) and dtype == BFLOAT16:
        return BFLOAT16
    name = np.dtype(dtype).name
    if name not in NAMES:
        raise TypeError(
            f"a shard cannot hold items of dtype {name}; use one of {', '.join(NAMES)}"
        )
    return name


@cache
def value_range(name: str) -> tuple[int, int] | None:
    """Return the least and greatest value of an integer or bool type, or None."""
    if name == "bool":
        return 0, 1
    return None if name == BFLOAT16 else _integer_range(np.dtype(name))


def vocabulary_name(vocab_size: int) -> str:
    """Return the smaller of uint16 and uint32 that holds ids below `vocab_size`."""
    if not 1 <= vocab_size <= 2**32:
        raise ValueError(f"vocab_size must be in [1, 2**32], got {vocab_size}")
    return "uint16" if vocab_size <= 2**16 else "uint32"


def separator_items(separator: object, name: str) -> tuple[int | float, ...]:
    """Return the items that end each document; empty if `separator` is None.

    Converts bytes to little-endian items of dtype `name`, padded with zeros to a whole
    item.
    """
    if separator is None:
        return ()
    if isinstance(separator, bytes):
        return _separator_from_bytes(separator, name)
    is_number = isinstance(separator, (int, float))
    if not is_number or (isinstance(separator, bool) and name != "bool"):
        raise TypeError(
            f"separator must be a token, bytes or None, got {separator!r}; "
            "encode text first"
        )
    if isinstance(separator, float):
        check_float(separator, name)
    return (separator,)


def _separator_from_bytes(separator: bytes, name: str) -> tuple[int | float, ...]:
    size = item_size(name)
    if not separator or (len(separator) > size and len(separator) % size):
        raise ValueError(
            f"separator {separator!r} has {len(separator)} bytes; use up to {size} "
            f"bytes or whole items of {name} ({size} bytes each)"
        )
    filled = separator.ljust(-(-len(separator) // size) * size, b"\0")
    dtype = np.dtype("<u2") if name == BFLOAT16 else stored_dtype(name)
    if name == "bool" and max(filled) > 1:
        raise ValueError(
            f"separator {separator!r} holds bytes other than 0 and 1, the only ones "
            "of a bool"
        )
    return tuple(np.frombuffer(filled, dtype).tolist())


def check_float(separator: float, name: str) -> None:
    """Raise TypeError for a float separator of items that are given as integers.

    Items of `bfloat16` are given as their 16 bits.
    """
    if name == BFLOAT16 or value_range(name) is not None:
        raise TypeError(
            f"separator {separator!r} is not an integer, but {name} items are given as "
            "integers; pass the item, for bfloat16 its 16 bits"
        )


@cache
def exact_range(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return the widest range of integers that a dtype represents without rounding.

    None for bool, for dtypes that are not numeric, and for dtypes of ml_dtypes.
    """
    if dtype.kind in "fc":
        exact = 2 ** (np.finfo(dtype).nmant + 1)
        return -exact, exact
    return _integer_range(dtype)


def holds_all(stored: str, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds every value of the item type `stored`."""
    source = stored_dtype(stored)
    values, limits = value_range(stored), exact_range(dtype)
    if source == dtype:
        return True
    if values is None or limits is None:
        # Known ranges are compared below, because numpy calls int64 to float64 "safe".
        return _is_number(dtype) and np.can_cast(source, dtype, "safe")
    return limits[0] <= values[0] and values[1] <= limits[1]


def check_readable_as(
    stored: str, values: tuple[int, int] | None, dtype: np.dtype[Any]
) -> None:
    """Raise TypeError if `dtype` cannot hold the values; floats may be rounded.

    `values` are the least and greatest stored integer; None for floats.
    """
    if holds_all(stored, dtype):
        return
    if values is None:
        # Without ml_dtypes, bfloat16 items are raw bits in uint16, not numbers.
        source = stored_dtype(stored)
        fits = source.kind != "u" and dtype.kind in "fV" and _is_number(dtype)
        fits = fits and np.can_cast(source, dtype, "same_kind")
    else:
        limits = exact_range(dtype)
        fits = limits is not None and limits[0] <= values[0] and values[1] <= limits[1]
    if not fits:
        of = f" of values {values[0]} to {values[1]}" if values else ""
        raise TypeError(
            f"{stored} tokens{of} cannot be read as {dtype}; read them as a wider dtype"
        )


def _is_number(dtype: np.dtype[Any]) -> bool:
    # Dtypes of ml_dtypes have kind V, like raw bytes and structured dtypes.
    return dtype.kind in "iufcV" and dtype.type is not np.void


def _integer_range(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    if dtype.kind not in "iu":
        return None
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)
