"""The item types a shard can hold, by the names that are stored in its head."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Tokens: TypeAlias = "npt.NDArray[Any]"

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


@cache
def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian dtype of a stored name.

    `bfloat16` is `ml_dtypes.bfloat16` if that package is installed, else `uint16`
    holding the bits.

    Raises:
        KeyError: The format has no item type of that name.
    """
    if name == BFLOAT16:
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ModuleNotFoundError:
            return np.dtype("<u2")
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_CODES[name])


def item_size(name: str) -> int:
    """Return the bytes of one item of a stored name."""
    return _ITEM_SIZES[name]


def stored_name(dtype: Any) -> str:
    """Return the name under which items of `dtype` are stored.

    Args:
        dtype: Anything that `numpy.dtype` accepts, or the string `"bfloat16"`.

    Raises:
        TypeError: The dtype has no fixed width, or is not an integer, float or bool.
    """
    if isinstance(dtype, str) and dtype == BFLOAT16:
        return BFLOAT16
    try:
        name = np.dtype(dtype).name
    except TypeError as error:
        raise TypeError(
            f"{dtype!r} is not a dtype; use one of {', '.join(NAMES)}"
        ) from error
    if name not in NAMES:
        raise TypeError(
            f"a shard cannot hold items of dtype {name}; use one of {', '.join(NAMES)}"
        )
    return name


@cache
def value_range(name: str) -> tuple[int, int] | None:
    """Return the least and greatest value of an integer or bool dtype, else None."""
    if name == "bool":
        return 0, 1
    if name.startswith(("int", "uint")):
        return _integer_range(_ITEM_SIZES[name], signed=name.startswith("int"))
    return None


def vocabulary_name(vocab_size: int) -> str:
    """Return the smaller of uint16 and uint32 that holds ids below `vocab_size`.

    Raises:
        ValueError: `vocab_size` is not in [1, 2**32].
    """
    if not 1 <= vocab_size <= 2**32:
        raise ValueError(f"vocab_size must be in [1, 2**32], got {vocab_size}")
    return "uint16" if vocab_size <= 2**16 else "uint32"


@cache
def exact_range(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return the widest range of integers that a dtype represents without rounding.

    None for dtypes that hold no integers, and for those that numpy does not define.
    """
    if dtype.kind in "iu":
        return _integer_range(dtype.itemsize, signed=dtype.kind == "i")
    if dtype.kind in "fc":
        exact = 2 ** (np.finfo(dtype).nmant + 1)
        return -exact, exact
    return None


def holds_all(stored: str, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds every value that items of a stored name can have."""
    source = stored_dtype(stored)
    values, limits = value_range(stored), exact_range(dtype)
    if source == dtype:
        return True
    if values is None or limits is None:
        # Only for floats: numpy also calls int64 to float64 safe, which rounds.
        return _is_number(dtype) and np.can_cast(source, dtype, "safe")
    return limits[0] <= values[0] and values[1] <= limits[1]


def check_readable_as(
    stored: str, values: tuple[int, int] | None, dtype: np.dtype[Any]
) -> None:
    """Check that no item would change if it were read as `dtype`.

    Args:
        stored: Name of the stored dtype.
        values: Least and greatest stored value of an integer dtype, else None.
        dtype: Type of the result.

    Raises:
        TypeError: A stored value would not survive the conversion.
    """
    if holds_all(stored, dtype):
        return
    if values is None:
        # Floats may be rounded to other floats, but bits of bfloat16 are not floats.
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
    # The dtypes of ml_dtypes have kind V, like bare bytes and structures.
    return dtype.kind in "iufcV" and dtype.type is not np.void


def _integer_range(item_size: int, *, signed: bool) -> tuple[int, int]:
    """Return the least and greatest integer of `item_size` bytes."""
    values = 1 << 8 * item_size
    return (-values // 2, values // 2 - 1) if signed else (0, values - 1)
