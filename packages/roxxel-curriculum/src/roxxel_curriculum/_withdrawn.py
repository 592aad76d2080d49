"""What a run stops learning of each source: documents and tokens, from a step on.

A user gives numbers, ranges and the paths of files that list them. They become sorted
ranges of indices. A membership test is a binary search, so large sets hardly slow a
batch. In a state, a set is compressed text: about 1.7 bytes for each of a million
indices that are spread evenly.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import os
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from roxxel_format.scans import Scan
from roxxel_store.arguments import as_integer
from roxxel_store.files import open_file, read_file
from roxxel_store.screen import counted

from roxxel_curriculum._errors import CurriculumError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from roxxel_format import TokenReader

_Integers = npt.NDArray[np.int64]
_EVERY = 0, 2**62  # the range of all indices
_NUMBER = re.compile(rb"-?[0-9]{1,18}")
_SUFFIXES = (".npy", ".txt", ".json")
_MOST_SHOWN = 200
_MAX_BYTES = 1 << 30
_REMEDY = "give a file with one number on each line"
_TOKENS = re.compile(r"tokens:\[ *([0-9]{1,18}) *, *([0-9]{1,18}) *\)")


class IndexSet:
    """Indices of documents or of tokens, as sorted ranges that do not touch.

    Args:
        starts: First index of each range, in any order.
        stops: One past the last index of each range.

    Attributes:
        digest: Hex digest of the indices.

    Example:
        >>> documents = IndexSet([3, 100], [4, 200])
        >>> len(documents), documents.holds([2, 3, 199]).tolist()
        (101, [False, True, True])
    """

    __slots__ = ("_packed", "_starts", "_stops", "digest")

    def __init__(self, starts: npt.ArrayLike, stops: npt.ArrayLike) -> None:
        first, last = np.asarray(starts), np.asarray(stops)
        kinds = {each.dtype.kind for each in (first, last) if each.size}
        if not (first.ndim == last.ndim == 1 and kinds <= {"i", "u"}):
            raise TypeError("starts and stops must be flat lists of integers")
        if first.size != last.size:
            raise ValueError(f"{first.size} starts, but {last.size} stops; pass pairs")
        if "u" in kinds and max(first.max(), last.max()) > np.iinfo(np.int64).max:
            raise ValueError("starts and stops hold a number of more than 64 bits")
        first, last = first.astype(np.int64), last.astype(np.int64)
        keep = first < last
        order = np.argsort(first[keep], kind="stable")
        first, last = first[keep][order], last[keep][order]
        if first.size:
            reached = np.maximum.accumulate(last)
            begins = np.append(True, first[1:] > reached[:-1])
            first = first[begins]
            last = reached[np.append(np.flatnonzero(begins)[1:] - 1, reached.size - 1)]
        self._starts: _Integers = first
        self._stops: _Integers = last
        self._packed: str | None = None
        self.digest = hashlib.blake2b(
            self._bounds().tobytes(), digest_size=16
        ).hexdigest()

    def __len__(self) -> int:
        """Return the number of indices."""
        return int((self._stops - self._starts).sum())

    def __bool__(self) -> bool:
        return self._starts.size > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexSet) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest index, and one past the largest; the set is not empty."""
        return int(self._starts[0]), int(self._stops[-1])

    def holds(self, indices: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return for each index whether it is in the set."""
        return self.touches(indices, 1)

    def touches(self, starts: npt.ArrayLike, length: int) -> npt.NDArray[np.bool_]:
        """Return for each window of `length` indices whether it touches the set."""
        first = np.asarray(starts, np.int64)
        if not self._starts.size:
            return np.zeros(first.shape, np.bool_)
        before = np.searchsorted(self._starts, first + length, "left") - 1
        return (before >= 0) & (first < self._stops[before])

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of the set, clipped to `[start, stop)`, in order."""
        first = int(np.searchsorted(self._stops, start, "right"))
        last = int(np.searchsorted(self._starts, stop, "left"))
        bounds = zip(self._starts[first:last], self._stops[first:last], strict=True)
        return [(max(int(a), start), min(int(b), stop)) for a, b in bounds]

    def to_json(self) -> dict[str, Any]:
        """Return the set for JSON: its sizes, and its ranges as compressed text."""
        if self._packed is None:  # pack once: every checkpoint has a state
            # Group the bytes by significance: the high bytes of small differences form
            # long runs of zeros, which compress well.
            steps = np.diff(self._bounds(), prepend=0).astype("<u8")
            planes = steps.view(np.uint8).reshape(-1, 8).T.tobytes()
            self._packed = base64.b85encode(zlib.compress(planes)).decode("ascii")
        return {
            "count": len(self),
            "ranges": int(self._starts.size),
            "packed": self._packed,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> IndexSet:
        """Return the set that `to_json` wrote."""
        planes = zlib.decompress(base64.b85decode(entry["packed"]))
        steps = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view("<u8")
        bounds = np.cumsum(steps.ravel().astype(np.int64)).reshape(-1, 2)
        return cls(bounds[:, 0], bounds[:, 1])

    def _bounds(self) -> _Integers:
        return np.stack([self._starts, self._stops], axis=1).ravel()


NOTHING = IndexSet((), ())


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What a run leaves out of the loss: of one source, from one step on.

    A withdrawal applies until the next withdrawal of the same source. The next one may
    be empty: then the run learns the whole source again.

    Attributes:
        step: First training step that leaves out these documents and tokens.
        source: Name of the source.
        documents: The documents: their `loss_mask` is 0, their tokens stay in the
            batch. `holds(numbers)` returns a bool for each number.
        tokens: The tokens, by index in the source: their `loss_mask` is 0. They are
            not read, and are 0 in the batch, so damaged bytes do not matter.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> without = {"self": [3, 7, "tokens:[512,1024)"]}
        >>> curriculum = Curriculum(
        ...     PositionReader(10_000), [Phase(9, 4, 129)], without=without
        ... )
        >>> (withdrawal,) = curriculum.sampler(0, fields=["loss_mask"]).withdrawals
        >>> withdrawal.step, withdrawal.documents.holds([2, 3]).tolist()
        (0, [False, True])
        >>> withdrawal.amount
        '2 documents and 512 tokens'
    """

    step: int
    source: str
    documents: IndexSet = NOTHING
    tokens: IndexSet = NOTHING

    @property
    def is_empty(self) -> bool:
        """Whether nothing is withdrawn."""
        return not (self.documents or self.tokens)

    @property
    def digest(self) -> str:
        """Digest of the documents and tokens; it does not cover step and source."""
        return self.documents.digest + self.tokens.digest

    @property
    def amount(self) -> str:
        """The numbers of documents and of tokens, as text."""
        return amount(len(self.documents), len(self.tokens))

    def listed(self) -> list[Any]:
        """Return the documents and tokens as `without` of a curriculum takes them.

        Numbers, pairs `[start, stop]` and ranges of tokens, which JSON and TOML hold.
        """
        return [
            *(a if b - a == 1 else [a, b] for a, b in self.documents.within(*_EVERY)),
            *(f"tokens:[{a},{b})" for a, b in self.tokens.within(*_EVERY)),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the withdrawal for the state of a run."""
        return {
            "step": self.step,
            "source": self.source,
            "documents": self.documents.to_json(),
            "tokens": self.tokens.to_json(),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Withdrawal:
        """Return a withdrawal that a checked state records."""
        return cls(
            entry["step"],
            entry["source"],
            IndexSet.from_json(entry["documents"]),
            IndexSet.from_json(entry["tokens"]),
        )


def amount(documents: int, tokens: int) -> str:
    """Return how much is withdrawn, as text: `2 documents and 512 tokens`."""
    counts = {"document": documents, "token": tokens}
    parts = [counted(number, noun) for noun, number in counts.items() if number]
    return " and ".join(parts) or "nothing"


def continued(
    past: Sequence[Withdrawal],
    declared: Mapping[str, Withdrawal],
    sources: Sequence[str],
    step: int,
) -> tuple[Withdrawal, ...]:
    """Return the past withdrawals, and what the declaration adds at `step`.

    A source adds a withdrawal if the declared one differs from the last past one. The
    past withdrawals are in the order of their steps, each before `step`.
    """
    now = in_force(past, step)
    nothing = {name: Withdrawal(step, name) for name in sources}
    wanted = {name: declared.get(name, nothing[name]) for name in sources}
    return *past, *(
        replace(each, step=step)
        for name, each in wanted.items()
        if each.digest != now.get(name, nothing[name]).digest
    )


def in_force(withdrawals: Sequence[Withdrawal], step: int) -> dict[str, Withdrawal]:
    """Return the withdrawal of each source in a step, without empty ones."""
    found = {each.source: each for each in withdrawals if each.step <= step}
    return {name: each for name, each in found.items() if not each.is_empty}


def checked_document(document: int, source: str, num_documents: int) -> int:
    """Return a document number as an int; raise an error if the source lacks it.

    Raises:
        TypeError: The number is not an integer.
        IndexError: The source has no such document.
    """
    number = as_integer("document", document)
    if not 0 <= number < num_documents:
        raise IndexError(
            f"source {source!r} has no document {number}; it has the documents "
            f"[0, {num_documents})"
        )
    return number


def masked_steps(
    withdrawals: Sequence[Withdrawal],
    source: str,
    is_masked_by: Callable[[Withdrawal], bool],
    stop: int,
) -> tuple[range, ...]:
    """Return the steps before `stop` in which a source's withdrawal passes a test."""
    found: list[range] = []
    since: int | None = None
    for each in withdrawals:
        if each.source != source:
            continue
        is_masked = is_masked_by(each)
        if is_masked and since is None:
            since = each.step
        elif not is_masked and since is not None:
            found.append(range(since, each.step))
            since = None
    if since is not None:
        found.append(range(since, stop))
    return tuple(filter(None, found))


def masked_ranges(
    withdrawals: Sequence[Withdrawal], source: str, start: int, stop: int, total: int
) -> dict[tuple[int, int], tuple[range, ...]]:
    """Return the withdrawn ranges of tokens in `[start, stop)`, with their steps.

    The steps are before `total`. If a range grew, the result has both the smaller and
    the larger range.
    """
    found = {
        span: masked_steps(
            withdrawals,
            source,
            lambda each, span=span: each.tokens.within(*span) == [span],
            total,
        )
        for span in sorted(
            span
            for each in withdrawals
            if each.source == source
            for span in each.tokens.within(start, stop)
        )
    }
    return {span: steps for span, steps in found.items() if steps}


def checked_without(
    without: Mapping[str, Any], readers: Mapping[str, TokenReader]
) -> dict[str, Withdrawal]:
    """Return what each source withdraws from step 0 on; leave out empty ones."""
    found: dict[str, Withdrawal] = {}
    for name, documents in without.items():
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
    of_files: list[_Integers] = []
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
    try:
        chosen = _index_set(documents, *of_files)
    except OverflowError as error:
        raise CurriculumError(
            f"{where} have a number of more than 64 bits; give documents of this source"
        ) from error
    return Withdrawal(0, source, chosen, _index_set(tokens))


def _index_set(bounds: Any, *more: _Integers) -> IndexSet:
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


def _of_array(documents: npt.NDArray[Any], where: str) -> _Integers:
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
) -> tuple[_Integers, list[tuple[int, int]]]:
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
        if not value:
            return 0, 0
        if value.step not in (1, -1) and len(value) > 1:
            raise CurriculumError(
                f"{where} have {value}; give a range with step 1, or the numbers"
            )
        # The functions min and max would visit every number.
        ends = value[0], value[-1]
        return min(ends), max(ends) + 1
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
