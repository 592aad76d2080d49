"""Read what to withdraw: documents by their numbers, and ranges of tokens."""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from roxxel_format.scans import Scan
from roxxel_store.arguments import as_integer
from roxxel_store.files import open_file, read_file

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import of_sources
from roxxel_curriculum._plan.withdrawn import IndexSet, Withdrawal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from roxxel_format import TokenReader

    from roxxel_curriculum._plan.solution import Source

Documents: TypeAlias = "Iterable[int | str | os.PathLike[str] | range | Sequence[int]] | npt.NDArray[np.integer[Any]] | str | os.PathLike[str]"  # noqa: E501 - pyright reads one literal
"""What to withdraw of a source: numbers of documents, from 0, and ranges of tokens.

Numbers are integers, ranges, pairs `[start, stop)`, or an array. A range of tokens is a
text such as `"tokens:[512,1024)"`. Any other text is the path of a file: a `.npy` or a
text of numbers, or the `.json` receipt of a scan. In a list, a path ends in `.npy`,
`.txt` or `.json`."""


_NUMBER = re.compile(rb"-?[0-9]{1,18}")
_SUFFIXES = (".npy", ".txt", ".json")
_MOST_SHOWN = 200
_MAX_BYTES = 1 << 30
_REMEDY = "give a file with one number on each line"
_TOKENS = re.compile(r"tokens:\[ *([0-9]{1,18}) *, *([0-9]{1,18}) *\)")


def checked_without(
    without: Mapping[str, Documents], sources: Sequence[Source]
) -> dict[str, Withdrawal]:
    """Return what each source withdraws from step 0 on; leave out empty ones."""
    if not without:
        return {}
    readers = {source.name: source.reader for source in sources}
    found: dict[str, Withdrawal] = {}
    named = of_sources(without, readers, "the withdrawn documents")
    for name, documents in named.items():
        reader = readers[name]
        chosen = _withdrawal(documents, name, reader)
        _check_bounds(chosen.documents, "document", name, len(reader.documents))
        _check_bounds(chosen.tokens, "token", name, int(reader.num_tokens))
        if not chosen.is_empty:
            found[name] = chosen
    return found


def check_documents(documents: Any, source: str) -> None:
    """Raise TypeError or CurriculumError unless `documents` is of a valid form.

    The files that paths name are not read.
    """
    if is_path(documents):
        return
    if isinstance(documents, list | tuple):
        listed = cast("Sequence[Any]", documents)
        documents = [each for each in listed if not is_listed_path(each)]
    _withdrawal(documents, source, None)


def paths_in(documents: Any) -> list[str | os.PathLike[str]]:
    """Return the paths of the files that `documents` names."""
    if is_path(documents):
        return [documents]
    if not isinstance(documents, list | tuple):
        return []
    return [each for each in cast("Sequence[Any]", documents) if is_listed_path(each)]


def is_listed_path(item: Any) -> bool:
    """Return whether an item of a list is a path, and not a mistaken number."""
    if isinstance(item, str):
        return item.endswith(_SUFFIXES)
    return isinstance(item, os.PathLike)


def is_path(documents: Any) -> bool:
    """Return whether `documents` is the path of a file and not a range of tokens."""
    if isinstance(documents, str):
        return not documents.startswith("tokens:")
    return isinstance(documents, os.PathLike)


def _check_bounds(chosen: IndexSet, noun: str, source: str, size: int) -> None:
    if not chosen:
        return
    first, stop = chosen.bounds
    if first < 0 or stop > size:
        wrong = first if first < 0 else stop - 1
        raise CurriculumError(
            f"without withdraws {noun} {wrong} of source {source!r}, which has the "
            f"{noun}s [0, {size}); give {noun}s of this source"
        )


def _withdrawal(given: Any, source: str, reader: TokenReader | None) -> Withdrawal:
    """Return what a source withdraws; `reader` may be None if no file is named."""
    where = f"the withdrawn documents of source {source!r}"
    if isinstance(given, np.ndarray):
        array = cast("npt.NDArray[Any]", given)
        return Withdrawal(0, source, _index_set(_of_array(array, where)))
    whole = given if is_path(given) else None
    if isinstance(given, range | str | os.PathLike):
        given = [given]
    # Do not call `iter(given)`: if given a corpus, it would read the tokens.
    is_listed = hasattr(cast("Any", type(given)), "__iter__")
    if not is_listed or isinstance(given, bytes | bytearray):
        raise TypeError(
            f"{where} must be integers, ranges, an array, or the path of a file, got "
            f"{given!r}"
        )
    documents: list[tuple[int, int]] = []
    of_files: list[npt.NDArray[np.int64]] = []
    tokens: list[tuple[int, int]] = []
    for each in cast("Iterable[Any]", given):
        if is_listed_path(each) or each is whole:
            assert reader is not None  # noqa: S101 - the caller leaves paths out
            of_file, of_tokens = _of_file(Path(each), where, reader)
            of_files.append(of_file)
            tokens += of_tokens
        elif isinstance(each, str) and each.startswith("tokens:"):
            tokens.append(_token_range(each, where))
        else:
            documents.append(_bounds(each, where))
    return Withdrawal(0, source, _index_set(documents, *of_files), _index_set(tokens))


def _index_set(bounds: Any, *more: npt.NDArray[np.int64]) -> IndexSet:
    both = np.concatenate([np.array(bounds, np.int64).reshape(-1, 2), *more])
    return IndexSet(both[:, 0], both[:, 1])


def _token_range(text: str, where: str) -> tuple[int, int]:
    found = _TOKENS.fullmatch(text)
    if found is None:
        raise CurriculumError(
            f"{where} have {text!r}; write a range of tokens as 'tokens:[512,1024)'"
        )
    first, stop = int(found[1]), int(found[2])
    if first >= stop:
        raise CurriculumError(
            f"{where} have {text!r}, which holds no token; give the smaller index first"
        )
    return first, stop


def _of_array(documents: npt.NDArray[Any], where: str) -> npt.NDArray[np.int64]:
    """Return `[start, stop)` of each number."""
    if documents.ndim != 1 or (documents.size and documents.dtype.kind not in "iu"):
        raise TypeError(
            f"{where} must be a one-dimensional array of integers, got "
            f"{documents.ndim} dimensions of {documents.dtype.name}"
        )
    numbers = documents.astype(np.int64)
    return np.stack([numbers, numbers + 1], axis=1)


def _of_file(
    path: Path, where: str, reader: TokenReader
) -> tuple[npt.NDArray[np.int64], list[tuple[int, int]]]:
    """Return the documents and the ranges of tokens that a file names.

    It is a `.npy` array, the `.json` receipt of a scan of this source, or a text with
    one item per line.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: does not exist, but should list {where}; correct the path, or "
            "write the file with one number on each line"
        )
    if path.suffix == ".npy":
        file = os.fdopen(open_file(path, CurriculumError, _REMEDY), "rb")
        try:
            with file:
                return _of_array(np.load(file, allow_pickle=False), where), []
        except (EOFError, TypeError, ValueError) as error:
            raise CurriculumError(
                f"{path}: is not a list of documents ({error}); save a flat array of "
                "integers"
            ) from error
    if path.suffix == ".json":
        scan = Scan.read(path)
        if scan.corpus not in {reader.fingerprint, *reader.versions}:
            raise CurriculumError(
                f"{path}: lists tokens of another corpus than {where} are in (its "
                f"fingerprint is {scan.corpus}, theirs {reader.fingerprint}); scan "
                "this source"
            )
        return np.empty((0, 2), np.int64), scan.ranges
    numbers: list[int] = []
    tokens: list[tuple[int, int]] = []
    data = read_file(path, _MAX_BYTES, CurriculumError, _REMEDY)
    content = data.removeprefix(codecs.BOM_UTF8)
    for index, line in enumerate(content.split(b"\n"), 1):
        if not (text := line.strip()):
            continue
        if text.startswith(b"tokens:"):
            shown = text.decode(errors="backslashreplace")
            tokens.append(_token_range(shown, f"{path}: line {index}: {where}"))
            continue
        if not _NUMBER.fullmatch(text):
            end = "..." if len(text) > _MOST_SHOWN else ""
            shown = repr(text[:_MOST_SHOWN].decode(errors="backslashreplace") + end)
            raise CurriculumError(
                f"{path}: line {index} is {shown}, which is not the number of a "
                "document; write one number on each line"
            )
        numbers.append(int(text))
    return _of_array(np.array(numbers, np.int64), where), tokens


def _bounds(value: Any, where: str) -> tuple[int, int]:
    """Return `[start, stop)` of a number, a range, or a pair of numbers."""
    if isinstance(value, range):
        if len(value) > 1 and value.step not in (1, -1):
            raise CurriculumError(
                f"{where} have {value}; give a range with step 1, or the numbers"
            )
        return (min(value), max(value) + 1) if value else (0, 0)
    what = (
        "integers, ranges, pairs [start, stop], paths of .txt, .npy and .json files or "
        "texts such as 'tokens:[512,1024)'"
    )
    if isinstance(value, list | tuple):
        pair = cast("Sequence[Any]", value)
        if len(pair) != 2:
            raise CurriculumError(f"{where} must be {what}, got {value!r}")
        first, stop = (as_integer(where, each, what=what) for each in pair)
        if first > stop:
            raise CurriculumError(
                f"{where} have the falling range [{first}, {stop}); "
                "give the smaller number first"
            )
    else:
        first = as_integer(where, value, what=what)
        stop = first + 1
    return first, stop
