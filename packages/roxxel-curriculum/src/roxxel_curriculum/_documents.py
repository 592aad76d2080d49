"""Reads the documents to withdraw: numbers, ranges, arrays, or a file of numbers."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._errors import CurriculumError, as_integer
from roxxel_curriculum._names import by_name
from roxxel_curriculum._plan.withdrawn import DocumentSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_curriculum._plan.solution import Source

Documents: TypeAlias = "Iterable[int | range | Sequence[int]] | npt.NDArray[np.integer[Any]] | str | os.PathLike[str]"  # noqa: E501 - pyright reads one literal
"""Numbers of documents, from 0: integers, ranges, pairs `[start, stop)`, an array, or
the path of a file of numbers."""


_NUMBER = re.compile(rb"-?[0-9]{1,30}")


def checked_without(
    without: Mapping[str, Documents] | None, sources: Sequence[Source]
) -> dict[str, DocumentSet]:
    """Return the documents to withdraw, by source; leave out sources with none."""
    if without is None:
        return {}
    if not isinstance(cast("Any", without), Mapping):
        raise TypeError(
            "without must map source names to numbers of documents, got "
            f"{type(without).__name__}"
        )
    readers = {source.name: source.reader for source in sources}
    without = by_name(without, sources[0].name, "the withdrawn documents")
    found: dict[str, DocumentSet] = {}
    for name, documents in without.items():
        if name not in readers:
            raise CurriculumError(
                f"without names unknown source {name!r}; "
                f"the sources are {', '.join(map(repr, readers))}"
            )
        chosen = _document_set(documents, name)
        if not len(chosen):
            continue
        first, stop = chosen.bounds
        num_documents = len(readers[name].documents)
        if first < 0 or stop > num_documents:
            wrong = first if first < 0 else stop - 1
            raise CurriculumError(
                f"without withdraws document {wrong} of source {name!r}, which has "
                f"the documents [0, {num_documents}); give numbers of its documents"
            )
        found[name] = chosen
    return found


def check_documents(documents: Any, source: str) -> None:
    """Raise TypeError or CurriculumError unless `documents` is of a valid form.

    The files that paths name are not read.
    """
    if not isinstance(documents, str | os.PathLike):
        _document_set(documents, source)


def _document_set(documents: Any, source: str) -> DocumentSet:
    where = f"the withdrawn documents of source {source!r}"
    if isinstance(documents, str | os.PathLike):
        return _of_file(Path(cast("str", documents)), where)
    if isinstance(documents, np.ndarray):
        return _of_array(cast("npt.NDArray[Any]", documents), where)
    if isinstance(documents, range):
        documents = [documents]
    # Do not call `iter(documents)`: if given a corpus, it would read the tokens.
    is_listed = hasattr(cast("Any", type(documents)), "__iter__")
    if not is_listed or isinstance(documents, bytes | bytearray):
        raise TypeError(
            f"{where} must be integers, ranges, an array, or the path of a file, got "
            f"{documents!r}"
        )
    bounds = [_bounds(each, where) for each in cast("Iterable[Any]", documents)]
    return DocumentSet([first for first, _ in bounds], [stop for _, stop in bounds])


def _of_array(documents: npt.NDArray[Any], where: str) -> DocumentSet:
    if documents.ndim != 1 or (documents.size and documents.dtype.kind not in "iu"):
        raise TypeError(
            f"{where} must be a one-dimensional array of integers, got "
            f"{documents.ndim} dimensions of {documents.dtype.name}"
        )
    if documents.dtype.kind == "u" and documents.size:
        _check_number(int(documents.max()), where)
    numbers = documents.astype(np.int64)
    return DocumentSet(numbers, numbers + 1)


def _of_file(path: Path, where: str) -> DocumentSet:
    """Return the documents in a `.npy` file, or in a text with a number per line."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: does not exist, but should list {where}; correct the path, or "
            "write the file with one number on each line"
        )
    if path.suffix == ".npy":
        try:
            return _of_array(np.load(path, allow_pickle=False), where)
        except (EOFError, TypeError, ValueError) as error:
            raise CurriculumError(
                f"{path}: is not a list of documents ({error}); save a flat array of "
                "integers"
            ) from error
    numbers: list[int] = []
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    for index, line in enumerate(content.split(b"\n"), 1):
        if not (text := line.strip()):
            continue
        if not _NUMBER.fullmatch(text):
            shown = repr(text[:40].decode(errors="backslashreplace"))
            raise CurriculumError(
                f"{path}: line {index} is {shown}, which is not the number of a "
                "document; write one number on each line"
            )
        numbers.append(int(text))
        _check_number(numbers[-1], f"line {index} of {path}")
    return _of_array(np.array(numbers, np.int64), where)


def _bounds(value: Any, where: str) -> tuple[int, int]:
    """Return `[start, stop)` of a number, a range, or a pair of numbers."""
    if isinstance(value, range):
        if len(value) > 1 and value.step not in (1, -1):
            raise CurriculumError(
                f"{where} have {value}; give a range with step 1, or the numbers"
            )
        return (min(value), max(value) + 1) if value else (0, 0)
    message = f"{where} must be integers, ranges or pairs [start, stop]"
    if isinstance(value, list | tuple):
        pair = cast("Sequence[Any]", value)
        if len(pair) != 2:
            raise CurriculumError(f"{message}, got {value!r}")
        first, stop = (as_integer(each, message) for each in pair)
        if first > stop:
            raise CurriculumError(
                f"{where} have the falling range [{first}, {stop}); "
                "give the smaller number first"
            )
    else:
        first = as_integer(value, message)
        stop = first + 1
    _check_number(first, where)
    _check_number(stop - 1, where)
    return first, stop


def _check_number(number: int, where: str) -> None:
    if abs(number) >= 2**62:
        raise CurriculumError(
            f"{where}: the number {number} is out of range, because no source has as "
            "many documents; correct the number"
        )
