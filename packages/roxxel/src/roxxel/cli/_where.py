"""`roxxel where`: finds the steps in which a run reads a document, tokens or a text."""

from __future__ import annotations

import argparse
import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from roxxel_format.naming import named_documents, names_of
from roxxel_store.command import as_text, check_one
from roxxel_store.screen import counted, note, say
from roxxel_train import RunFolderError

from roxxel.cli._arguments import (
    AtLeast1,
    Json,
    RunName,
    Sources,
    Tokenizer,
    document_named,
    documents_of,
    found_in,
    named_source,
    opened,
    searched_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from roxxel_curriculum import Occurrence, Sampler

    from roxxel.runs.run import Run

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


def where(
    run: RunName,
    *,
    document: Annotated[str | None, document_named, "SOURCE:DOCUMENT"] = None,
    tokens: Annotated[tuple[str, int, int] | None, _tokens, "SOURCE:[A,B)"] = None,
    text: Annotated[str | None, as_text] = None,
    ids: Annotated[list[int] | None, _ids, "'N N ...'"] = None,
    until: Annotated[int | None, "K"] = None,
    limit: AtLeast1 = 10,
    source: Sources = (),
    tokenizer: Tokenizer = None,
    json_: Json = False,
) -> None:
    """Find the steps in which a run reads a document, tokens or a text.

    The command finds every step and row in which the run has read, or will read, them.
    The steps are computed, not searched, for all epochs and phases. Only --text and
    --ids search the corpora: they count how often what you look for stands in each
    source, and list the first places that the run reads. A text is found wherever the
    documents, as `roxxel format cat` prints them, hold exactly these characters. Steps
    count from 0, as in `roxxel show`.

    Args:
        document: A document by its number from 0, its id or its path: web:7,
            web:heapq.py.
        tokens: The tokens from A to before B; quote the argument.
        text: A text, wherever a source holds it.
        ids: Consecutive token ids.
        until: Only the steps before step K.
        limit: List at most N places of a text or ids, all are counted.

    Example:
        roxxel where runs/first --document web:7
        roxxel where runs/first --text 'a sentence of the page'
    """
    given = {"--document": document, "--tokens": tokens, "--text": text, "--ids": ids}
    check_one(given, is_required=True)
    of_run = opened(run, source)
    shown = _Shown(of_run, of_run.sampler(), until, limit, is_json=json_)
    if document is not None:
        name, numbers = documents_of(of_run, document)
        corpus: Any = of_run.corpora()[name]
        ranges = [_Range(name, *corpus.document_range(each)[:2]) for each in numbers]
    elif tokens is not None:
        named_source(of_run, tokens[0])
        ranges = [_Range(*tokens)]
    else:
        _search(shown, text, ids, tokenizer)
        return
    for found in ranges:
        shown.range(found, shown.places(found), is_search=False)


class _Shown(NamedTuple):
    run: Run
    sampler: Sampler
    until: int | None
    limit: int
    is_json: bool

    @property
    def before(self) -> str:
        return "" if self.until is None else f" before step {self.until}"

    def places(self, found: _Range) -> Iterator[Occurrence]:
        try:
            return self.sampler.where(*found, until=self.until)
        except IndexError as error:
            raise RunFolderError(f"{self.run.path}: {error}") from error

    def range(
        self, found: _Range, places: Iterator[Occurrence], *, is_search: bool
    ) -> None:
        """Print a range's documents, its masked tokens, and where it is read."""
        corpus, sampler = self.run.corpora()[found.source], self.sampler
        spans = corpus.document_spans(found.start, found.stop)
        numbers = [int(number) for number in spans[:, 0] if number >= 0]
        masked = {
            number: _pairs(steps)
            for number in numbers
            if (steps := sampler.masked_steps(found.source, number))
        }
        unread = [
            {"start": start, "stop": stop, "steps": _pairs(steps)}
            for (start, stop), steps in sampler.masked_ranges(*found).items()
        ]
        listed = [_as_dict(place, self.run.trained_steps) for place in places]
        facts: dict[str, Any] = {
            **found._asdict(),
            "documents": numbers,
            "withdrawn": masked,
            "withdrawn_tokens": unread,
            "read_tokens": _num_covered(listed),
            "trained_tokens": _num_covered([x for x in listed if x["is_trained"]]),
            "places": listed,
        }
        if self.is_json:
            names = names_of(corpus, numbers)
            say(json.dumps(facts | ({} if names is None else {"names": names})))
            return
        say(
            f"{found.source} tokens [{found.start}, {found.stop}), "
            f"{named_documents(corpus, numbers)}"
        )
        self._say_withdrawn(masked, unread)
        self._say_places(facts, is_search=is_search)

    def _say_withdrawn(
        self, masked: Mapping[int, Any], unread: Sequence[Mapping[str, Any]]
    ) -> None:
        lines = [
            (f"document {document} is withdrawn", "its tokens are masked there", steps)
            for document, steps in masked.items()
        ]
        lines += [
            (
                f"tokens [{each['start']}, {each['stop']}) are withdrawn",
                "they are 0 and masked there",
                each["steps"],
            )
            for each in unread
        ]
        for what, then, steps in lines:
            for first, stop in steps:
                is_last = stop == self.sampler.total_steps
                until = "on" if is_last else f"to step {stop - 1}"
                say(f"  {what} from step {first} {until}: {then}")

    def _say_places(self, facts: Mapping[str, Any], *, is_search: bool) -> None:
        for place in facts["places"]:
            stop = place["column"] + place["stop"] - place["start"]
            state = "" if place["is_trained"] else ", not trained yet"
            say(
                f"  epoch {place['epoch']}: step {place['step']} row {place['row']} "
                f"columns [{place['column']}, {stop}), "
                f"tokens [{place['start']}, {place['stop']}){state}"
            )
        if not facts["places"]:
            say(f"  no step{self.before} reads these tokens")
        elif not is_search:
            read, trained = facts["read_tokens"], facts["trained_tokens"]
            size = facts["stop"] - facts["start"]
            so_far = "" if trained == read else f", {trained:,} of them so far"
            say(
                f"  {read:,} of {size:,} tokens are read{self.before} "
                f"({100 * read / size:.1f} %){so_far}"
            )


def _pairs(steps: Sequence[range]) -> list[list[int]]:
    return [[each.start, each.stop] for each in steps]


def _search(
    shown: _Shown, text: str | None, ids: list[int] | None, tokenizer: str | None
) -> None:
    """Count a text or ids in each source, then list the first places read."""
    wanted = ids or text or ""
    listed: list[tuple[_Range, Iterator[Occurrence]]] = []
    counts: dict[str, tuple[int, int]] = {}
    num_tried = 0
    for name, parts in found_in(shown.run, wanted, tokenizer):
        in_source = in_documents = 0
        last = -1
        for part in parts:
            documents = np.unique(part.documents[part.documents >= 0]).tolist()
            in_source += part.documents.size
            in_documents += len(documents) - (last in documents[:1])
            last = documents[-1] if documents else last
            if len(listed) < shown.limit and num_tried < _MOST_TRIED:
                num_tried += _first_read(shown, name, part.ranges(), listed)
        counts[name] = in_source, in_documents
    num_found = sum(in_source for in_source, _ in counts.values())
    what = "the ids stand" if text is None else "the text stands"
    _say_counts(counts, num_found, what, is_json=shown.is_json)
    for found, places in listed:
        shown.range(found, places, is_search=True)
    tell = note if shown.is_json else say
    if not num_found:
        searched = f"(searched: {', '.join(counts)})"
        kind = "these ids" if text is None else "this text"
        if text is not None:
            searched = searched_words(shown.run)
        tell(f"no source of the run holds {kind} {searched}")
    num_unread, num_rest = num_tried - len(listed), num_found - num_tried
    if num_unread:
        places = f"{counted(num_unread, 'place')} with these tokens"
        tell(f"not shown: {places}, which no step{shown.before} reads")
    if num_rest:
        tell(
            f"not shown: {counted(num_rest, 'more place')}; --limit N "
            f"lists more of the first {_MOST_TRIED:,}, --until K those before step K"
        )


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
        if len(listed) == shown.limit:
            return number
        found = _Range(source, start, stop)
        places = shown.places(found)
        first = next(places, None)
        if first is not None:
            listed.append((found, chain([first], places)))
    return len(ranges[:_MOST_TRIED])


def _say_counts(
    counts: Mapping[str, tuple[int, int]], num_found: int, what: str, *, is_json: bool
) -> None:
    for name, (in_source, in_documents) in counts.items():
        if is_json:
            facts = {"found": in_source, "in_documents": in_documents}
            say(json.dumps({"source": name, **facts}))
        elif num_found:
            times = counted(in_source, "time")
            documents = counted(in_documents, "document")
            say(f"{name}: {what} {times} in {documents}")


def _num_covered(places: Sequence[Mapping[str, Any]]) -> int:
    """Return how many tokens lie in at least one place; epochs may repeat tokens."""
    count = end = 0
    for start, stop in sorted((each["start"], each["stop"]) for each in places):
        count += max(0, stop - max(start, end))
        end = max(end, stop)
    return count


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
