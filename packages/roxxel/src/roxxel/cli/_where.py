"""`roxxel where`: finds the steps in which a run reads a document, tokens or a text."""

from __future__ import annotations

import argparse
import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel_format.naming import named_documents, names_of
from roxxel_store.command import as_text
from roxxel_store.screen import note, say
from roxxel_train import RunFolderError

from roxxel.cli._runs import (
    add_run_arguments,
    document_named,
    documents_of,
    found_in,
    named_source,
    opened,
    searched_words,
)
from roxxel.cli._words import at_least_1

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from roxxel_curriculum import Occurrence, Sampler
    from roxxel_format import TokenReader

    from roxxel.runs.run import Run

DESCRIPTION = """\
Find every step and row in which a run has read, or will read, a document, a
range of tokens, or a text. The steps are computed, not searched, for all epochs
and phases. Only --text and --ids search the corpora: they count how often what you
look for stands in each source, and list the first places that the run reads. A
text is found wherever the documents, as `roxxel format cat` prints them, hold
exactly these characters. Steps count from 0, as in `roxxel show`.
"""

EXAMPLES = ["runs/first --document web:7", "runs/first --text 'a sentence of the page'"]

EPILOG = """\
with --json, each line is one JSON object: a range of tokens, how many of them are
read (read_tokens) and are trained so far (trained_tokens), and its places. With
--text and --ids, a line for each source comes first: how often it holds what you
look for (found), and in how many documents (in_documents).

"""

_TOKENS = re.compile(r"(.+):\[?(\d+),\s*(\d+)\)?")


_IDS_STOP = 2**63

_MOST_TRIED = 10_000
"""Maximum number of places in a search for which `where` checks whether the run reads
them.
"""


class _Range(NamedTuple):
    """Tokens of a source to find, and the documents that hold them."""

    source: str
    start: int
    stop: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument(
        "--document",
        type=document_named,
        metavar="SOURCE:DOCUMENT",
        help="a document by its number from 0, its id or its path: web:7, web:heapq.py",
    )
    wanted.add_argument(
        "--tokens",
        type=_tokens,
        metavar="SOURCE:[A,B)",
        help="the tokens from A to before B; quote the argument",
    )
    wanted.add_argument(
        "--text", type=as_text, help="a text, wherever a source holds it"
    )
    wanted.add_argument(
        "--ids", type=_ids, metavar="'N N ...'", help="consecutive token ids"
    )
    parser.add_argument(
        "--until", type=int, metavar="K", help="only the steps before step K"
    )
    parser.add_argument(
        "--limit",
        type=at_least_1,
        default=10,
        metavar="N",
        help="list at most N places of a text or ids, all are counted (default: 10)",
    )


def run(options: argparse.Namespace) -> None:
    """Print where a run reads the chosen tokens."""
    opened_run = opened(options)
    shown = _Shown(opened_run, opened_run.sampler(), opened_run.corpora(), options)
    if options.document is None and options.tokens is None:
        _search(shown)
        return
    for found in _chosen(options, shown.corpora):
        shown.range(found, shown.places(found), is_search=False)


class _Shown(NamedTuple):
    """Prints where a run reads ranges of tokens."""

    run: Run
    sampler: Sampler
    corpora: Mapping[str, TokenReader]
    options: argparse.Namespace

    def places(self, found: _Range) -> Iterator[Occurrence]:
        try:
            return self.sampler.where(*found, until=self.options.until)
        except IndexError as error:
            raise RunFolderError(f"{self.options.run}: {error}") from error

    def range(
        self, found: _Range, places: Iterator[Occurrence], *, is_search: bool
    ) -> None:
        """Print a range's documents, its masked tokens, and where it is read."""
        corpus, sampler, trained = (
            self.corpora[found.source],
            self.sampler,
            self.run.trained_steps,
        )
        documents = corpus.document_spans(found.start, found.stop)
        numbers = [int(number) for number in documents[:, 0] if number >= 0]
        masked = {
            number: steps
            for number in numbers
            if (steps := sampler.masked_steps(found.source, number))
        }
        ranges = sampler.masked_ranges(*found)
        if self.options.json:
            listed = [_as_dict(place, trained) for place in places]
            withdrawn = {
                number: [[each.start, each.stop] for each in steps]
                for number, steps in masked.items()
            }
            withdrawn_tokens = [
                {
                    "start": start,
                    "stop": stop,
                    "steps": [[each.start, each.stop] for each in steps],
                }
                for (start, stop), steps in ranges.items()
            ]
            names = names_of(corpus, numbers)
            facts = {
                "documents": numbers,
                **({} if names is None else {"names": names}),
                "withdrawn": withdrawn,
                "withdrawn_tokens": withdrawn_tokens,
                **_amounts(listed),
                "places": listed,
            }
            say(json.dumps({**found._asdict(), **facts}))
            return
        named = named_documents(corpus, numbers)
        _show_masked(found, named, masked, ranges, sampler.total_steps)
        until = self.options.until
        listed = _show(places, trained, until)
        if listed and not is_search:
            _say_amounts(found, _amounts(listed), until)


def _search(shown: _Shown) -> None:
    """Count a text or ids in each source, then list the first places read."""
    options = shown.options
    wanted = options.text if options.ids is None else options.ids
    listed: list[tuple[_Range, Iterator[Occurrence]]] = []
    counts: dict[str, tuple[int, int]] = {}
    num_tried = 0
    for name, parts in found_in(shown.corpora, wanted, options):
        in_source = in_documents = 0
        last = -1
        for part in parts:
            documents = np.unique(part.documents[part.documents >= 0]).tolist()
            in_source += part.documents.size
            in_documents += len(documents) - (last in documents[:1])
            last = documents[-1] if documents else last
            if len(listed) < options.limit and num_tried < _MOST_TRIED:
                num_tried += _first_read(shown, name, part.ranges(), listed)
        counts[name] = in_source, in_documents
    num_found = sum(in_source for in_source, _ in counts.values())
    _say_counts(counts, num_found, options)
    for found, places in listed:
        shown.range(found, places, is_search=True)
    tell = note if options.json else say
    if not num_found and options.text is None:
        names = ", ".join(shown.corpora)
        tell(f"no source of the run holds these ids (searched: {names})")
    elif not num_found:
        searched = searched_words(options.text, shown.corpora, options)
        tell(f"no source of the run holds this text {searched}")
    num_unread, num_rest = num_tried - len(listed), num_found - num_tried
    if num_unread:
        until = options.until
        never = "the run never" if until is None else f"no step before step {until}"
        places = f"{num_unread:,} place{'s' * (num_unread != 1)} with these tokens"
        tell(f"not shown: {places}, which {never} reads")
    if num_rest:
        more = f"{num_rest:,} more place{'s' * (num_rest != 1)}"
        more_to_list = "--limit N lists more, --until K only those before step K"
        if num_tried >= _MOST_TRIED and len(listed) < options.limit:
            more_to_list = f"only the first {num_tried:,} were looked up in the run"
        tell(f"not shown: {more}; {more_to_list}")


def _first_read(
    shown: _Shown,
    source: str,
    ranges: npt.NDArray[np.int64],
    listed: list[tuple[_Range, Iterator[Occurrence]]],
) -> int:
    """Add the places that are read, up to the limit; return how many were tried.

    A text may stand in thousands of documents that a short run never reads.
    """
    for number, (start, stop) in enumerate(ranges[:_MOST_TRIED].tolist()):
        if len(listed) == shown.options.limit:
            return number
        found = _Range(source, start, stop)
        places = shown.places(found)
        first = next(places, None)
        if first is not None:
            listed.append((found, chain([first], places)))
    return len(ranges[:_MOST_TRIED])


def _say_counts(
    counts: Mapping[str, tuple[int, int]], num_found: int, options: argparse.Namespace
) -> None:
    """Print how often each source contains the text, and in how many documents."""
    what = "the ids stand" if options.text is None else "the text stands"
    for name, (in_source, in_documents) in counts.items():
        if options.json:
            facts = {"found": in_source, "in_documents": in_documents}
            say(json.dumps({"source": name, **facts}))
        elif num_found:
            times = f"{in_source:,} time{'s' * (in_source != 1)}"
            documents = f"{in_documents:,} document{'s' * (in_documents != 1)}"
            say(f"{name}: {what} {times} in {documents}")


def _chosen(
    options: argparse.Namespace, corpora: Mapping[str, TokenReader]
) -> Iterator[_Range]:
    """Yield the ranges of tokens that the arguments name."""
    if options.document is None:
        name, start, stop = options.tokens
        _ = named_source(name, corpora, options)
        yield _Range(name, start, stop)
        return
    name, numbers = documents_of(options.document, corpora, options)
    corpus: Any = corpora[name]
    for number in numbers:
        start, stop, _ = corpus.document_range(number)
        yield _Range(name, start, stop)


def _show_masked(
    found: _Range,
    documents: str,
    masked: Mapping[int, Sequence[range]],
    ranges: Mapping[tuple[int, int], Sequence[range]],
    total: int,
) -> None:
    """Print a range of tokens, and the steps in which parts of it are masked."""
    say(f"{found.source} tokens [{found.start}, {found.stop}), {documents}")
    for document, steps in masked.items():
        what = f"document {document} is withdrawn", "its tokens are masked there"
        _say_steps(*what, steps, total)
    for (start, stop), steps in ranges.items():
        what = f"tokens [{start}, {stop}) are withdrawn", "they are 0 and masked there"
        _say_steps(*what, steps, total)


def _say_steps(what: str, then: str, steps: Sequence[range], total: int) -> None:
    for each in steps:
        until = "on" if each.stop == total else f"to step {each.stop - 1}"
        say(f"  {what} from step {each.start} {until}: {then}")


def _show(
    places: Iterator[Occurrence], trained: int, until: int | None
) -> list[dict[str, Any]]:
    """Print and return where tokens are read; `until` may be the last step."""
    listed: list[dict[str, Any]] = []
    for place in places:
        listed.append(_as_dict(place, trained))
        stop = place.column + place.stop - place.start
        state = "" if place.step < trained else ", not trained yet"
        say(
            f"  epoch {place.epoch}: step {place.step} row {place.row} "
            f"columns [{place.column}, {stop}), "
            f"tokens [{place.start}, {place.stop}){state}"
        )
    if not listed and until is None:
        say("  the run never reads these tokens")
    elif not listed:
        say(f"  no step before step {until} reads these tokens")
    return listed


def _amounts(places: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many tokens are ever read, and how many have been read so far."""
    trained = [each for each in places if each["is_trained"]]
    return {
        "read_tokens": _num_covered(places),
        "trained_tokens": _num_covered(trained),
    }


def _num_covered(places: Sequence[Mapping[str, Any]]) -> int:
    """Return how many tokens lie in at least one place; epochs may repeat tokens."""
    count = end = 0
    for start, stop in sorted((each["start"], each["stop"]) for each in places):
        count += max(0, stop - max(start, end))
        end = max(end, stop)
    return count


def _say_amounts(found: _Range, amounts: Mapping[str, int], until: int | None) -> None:
    """Print how much of a range of tokens is ever read, and how much so far."""
    read, size = amounts["read_tokens"], found.stop - found.start
    before = "" if until is None else f" before step {until}"
    line = f"  {read:,} of {size:,} tokens are read{before} ({read / size:.1%})"
    if amounts["trained_tokens"] < read:
        line += f", {amounts['trained_tokens']:,} of them so far"
    say(line.replace("%", " %"))


def _as_dict(place: Occurrence, trained: int) -> dict[str, Any]:
    return {
        "epoch": place.epoch,
        "step": place.step,
        "row": place.row,
        "column": place.column,
        "start": place.start,
        "stop": place.stop,
        "is_trained": place.step < trained,
    }


def _tokens(text: str) -> tuple[str, int, int]:
    found = _TOKENS.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not SOURCE:[A,B), such as 'web:[100,200)'"
        )
    name, start, stop = found[1], int(found[2]), int(found[3])
    if start >= stop:
        raise argparse.ArgumentTypeError(f"{text!r} holds no token; give A < B")
    return name, start, stop


def _ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    is_id = [word.isdecimal() and int(word) < _IDS_STOP for word in words]
    if not words or not all(is_id):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids")
    return [int(word) for word in words]
