"""The receipt of a scan: which tokens of a corpus hold text of evaluation sets.

`roxxel scan` and `roxxel write --against` write it, a curriculum masks the tokens that
it lists (`without`), and `roxxel plan` says which steps read them. Its ranges count
tokens of one version of a corpus, so the receipt has that version's fingerprint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.files import replace_file
from roxxel_store.records import RecordKind
from roxxel_store.screen import counted
from roxxel_store.urls import check_on_disk, expanded

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

_KIND = RecordKind(
    "receipt of `roxxel scan`",
    1,
    remedy="scan the corpus again, or give the receipt that `roxxel scan` wrote",
    error=ShardError,
    mark="roxxel scan",
    needs=("corpus", "num_tokens", "evals", "ngram", "compares", "found"),
)


@dataclass(frozen=True)
class Evals:
    """What a corpus was searched for.

    Attributes:
        paths: Files of the evaluation sets, as they were given.
        digest: Digest of their texts.
        num_texts: Number of their texts. Each field of a row is a text.
        num_short: Texts that were not searched, because they have too few words.

    Example:
        >>> Evals(("exam.jsonl",), "0f", num_texts=2, num_short=1).num_short
        1
    """

    paths: tuple[str, ...]
    digest: str
    num_texts: int
    num_short: int


@dataclass(frozen=True, eq=False)
class Scan:
    """What a scan of a corpus has found.

    Attributes:
        corpus: Fingerprint of the version that was searched.
        num_tokens: Tokens of this version.
        evals: What was searched.
        ngram: Length of the n-grams that were compared.
        compares: `"words"` of normalised text, or `"tokens"` of a corpus without text.
        found: Rows `(start, stop, document, text)` in order, int64, shape `(n, 4)`: the
            tokens `[start, stop)` of a document hold n-grams of a text, which is
            counted from 0 in the order of the evaluation sets. If several texts match,
            it is the first of them.

    Example:
        >>> evals = Evals(("exam.jsonl",), "0f", num_texts=2, num_short=0)
        >>> found = np.array([[512, 530, 7, 1]])
        >>> scan = Scan("ab12", 9000, evals, 13, "words", found)
        >>> scan.write("web_scan.json")
        >>> Scan.read("web_scan.json").ranges
        [(512, 530)]
        >>> print(scan)
        18 of 9,000 tokens in 1 place of 1 document hold 13-grams of exam.jsonl
    """

    corpus: str
    num_tokens: int
    evals: Evals
    ngram: int
    compares: str
    found: npt.NDArray[np.int64]

    def __str__(self) -> str:
        documents = np.unique(self.found[:, 2]).size
        return (
            f"{self.num_found:,} of {self.num_tokens:,} tokens in "
            f"{counted(len(self.found), 'place')} of "
            f"{counted(documents, 'document')} hold {self.what}"
        )

    @property
    def what(self) -> str:
        """What was searched: the files, and the length of the n-grams."""
        return f"{self.ngram}-grams of {', '.join(self.evals.paths)}"

    @cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """The tokens `[start, stop)` of each place."""
        return [(start, stop) for start, stop in self.found[:, :2].tolist()]

    @property
    def num_found(self) -> int:
        """Number of tokens that were found."""
        return int((self.found[:, 1] - self.found[:, 0]).sum())

    def is_of(self, corpus: str, digest: str, ngram: int) -> bool:
        """Return whether the receipt is of a scan of this corpus for these texts."""
        return (corpus, digest, ngram) == (self.corpus, self.evals.digest, self.ngram)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the receipt into a file, whole or not at all."""
        members = {**asdict(self), "found": self.found.tolist()}
        replace_file(expanded(path), _KIND.to_bytes(members))

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Scan:
        """Read a receipt.

        Raises:
            FileNotFoundError: There is no such file.
            ShardError: The file is damaged, or is no receipt of a scan.
        """
        check_on_disk(str(path), _KIND.remedy, ShardError)
        members = _KIND.read(expanded(path))
        try:
            evals = Evals(**members.pop("evals"))
            evals = replace(evals, paths=tuple(evals.paths))
            found = _parse_found(members.pop("found"), members["num_tokens"])
            return Scan(evals=evals, found=found, **members)
        except (TypeError, ValueError, OverflowError) as error:
            raise ShardError(
                f"{path}: is no receipt of a scan ({error}); {_KIND.remedy}"
            ) from error


def _parse_found(
    rows: Sequence[Sequence[int]], num_tokens: int
) -> npt.NDArray[np.int64]:
    found = np.array(rows, np.int64).reshape(len(rows), 4)  # as in `Scan.found`
    bounds = np.concatenate(([0], found[:, :2].ravel(), [num_tokens]))
    if (np.diff(bounds) < 0).any():
        raise ValueError("its ranges are not in order, or leave the corpus")
    return cast("Any", found)
