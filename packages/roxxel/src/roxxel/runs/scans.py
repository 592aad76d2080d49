"""Which steps of a run read tokens that a scan has found, and are not left out.

The steps are computed from the order of the run, for all steps and before the first
one. No token is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from roxxel_store.screen import counted
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from roxxel_curriculum import Sampler
    from roxxel_format import TokenReader
    from roxxel_format.scans import Scan


@dataclass(frozen=True)
class Reads:
    """Which steps read tokens that a scan has found; `str(reads)` is a line.

    Attributes:
        source: Name of the source.
        scan: The receipt of the scan.
        until: Only the steps before this one count.
        is_whole: Whether these are all steps of the run.
        steps: The steps that read some of the tokens, in order.
        unsearched: Tokens `[start, stop)` that the source got after the scan; None if
            the scan searched all.

    Example:
        >>> from roxxel_format.scans import Evals, Scan
        >>> evals = Evals(("exam.jsonl",), "0f", num_texts=2, num_short=0)
        >>> scan = Scan("ab12", 9000, evals, 13, "words", np.array([[512, 530, 7, 1]]))
        >>> print(Reads("web", scan, 40, True, ()))
        web: no step reads 13-grams of exam.jsonl (18 tokens in 1 place are left out)
        >>> print(Reads("web", scan, 20, False, (12, 17)))
        web: 2 steps before step 20 read 13-grams of exam.jsonl: 12, 17
    """

    source: str
    scan: Scan
    until: int
    is_whole: bool
    steps: tuple[int, ...]
    unsearched: tuple[int, int] | None = None

    @property
    def is_clean(self) -> bool:
        """Whether no step reads found tokens, or tokens that were not searched."""
        return not self.steps and self.unsearched is None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        scan = self.scan
        return {
            "source": self.source,
            "evals": list(scan.evals.paths),
            "digest": scan.evals.digest,
            "ngram": scan.ngram,
            "num_short": scan.evals.num_short,
            "until": self.until,
            "steps": list(self.steps),
            "unsearched": self.unsearched,
        }

    def __str__(self) -> str:
        scan, count = self.scan, len(self.steps)
        before = "" if self.is_whole else f" before step {self.until}"
        if not count:
            places = counted(len(scan.ranges), "place")
            left_out = f"{scan.num_found:,} tokens in {places} are left out"
            text = f"no step{before} reads {scan.what} ({left_out})"
        else:
            steps = counted(count, "step")
            text = f"{steps}{before} read {scan.what}: {_listed(self.steps)}"
        if self.unsearched is not None:
            start, stop = self.unsearched
            text += f"; tokens [{start}, {stop}) came after the scan, so scan again"
        if scan.evals.num_short:
            text += (
                f"; {scan.evals.num_short:,} of {scan.evals.num_texts:,} texts were "
                "too short to be searched"
            )
        return f"{self.source}: {text}"


def reads_of(
    sampler: Sampler,
    readers: Mapping[str, TokenReader],
    scans: Iterable[Scan],
    until: int | None = None,
) -> list[Reads]:
    """Return which steps read tokens that scans have found.

    Args:
        sampler: The sampler of the run, with its state if it has begun.
        readers: Its corpora by source name.
        scans: Receipts of scans of these corpora.
        until: Only the steps before this one; None for all.

    Raises:
        RunFolderError: A scan belongs to none of the corpora.
    """
    found: list[Reads] = []
    sizes = {each["name"]: each["tokens"] for each in sampler.state(0)["sources"]}
    end = sampler.total_steps if until is None else min(until, sampler.total_steps)
    for scan in scans:
        names = [
            name
            for name, reader in readers.items()
            if scan.corpus in {reader.fingerprint, *reader.versions}
        ]
        if not names:
            raise RunFolderError(
                f"the scan for {scan.what} is of none of the sources "
                f"{', '.join(map(repr, readers))}; scan the corpora of the run"
            )
        for name in names:
            num_tokens = sizes[name]
            steps = tuple(sorted(_steps(sampler, name, scan, num_tokens, end)))
            newer = (scan.num_tokens, num_tokens)
            unsearched = newer if scan.num_tokens < num_tokens else None
            is_whole = end == sampler.total_steps
            found.append(Reads(name, scan, end, is_whole, steps, unsearched))
    return found


def _steps(
    sampler: Sampler, source: str, scan: Scan, num_tokens: int, end: int
) -> set[int]:
    """Return the steps before `end` that read some of the tokens of a scan."""
    withdrawals = [each for each in sampler.withdrawals if each.source == source]
    firsts = [each.step for each in withdrawals if each.step < end]
    left_out = {each.step: each.tokens for each in withdrawals}
    found: set[int] = set()
    for first, stop in pairwise(sorted({0, *firsts, end})):
        tokens = left_out.get(first)
        for start, end_of_range in scan.ranges:
            last = min(end_of_range, num_tokens)
            inside = [] if tokens is None else tokens.within(start, last)
            for a, b in _gaps(start, last, inside):
                places = sampler.where(source, a, b, until=stop)
                found.update(each.step for each in places if each.step >= first)
    return found


def _gaps(
    start: int, stop: int, inside: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of `[start, stop)` between some ranges."""
    at = start
    for first, last in [*inside, (stop, stop)]:
        if at < first:
            yield at, first
        at = last


def _listed(steps: tuple[int, ...]) -> str:
    if len(steps) <= 8:
        return ", ".join(map(str, steps))
    return f"the first is step {steps[0]:,}, the last step {steps[-1]:,}"
