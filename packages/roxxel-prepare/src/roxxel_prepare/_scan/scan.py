"""Search a corpus for text of evaluation sets, and write a receipt of what is found.

The corpus is divided into units. Processes, tasks of Ray or members of a job array
search the units, and all find the same. A unit's results are kept next to the receipt
until the receipt is written, so an interrupted scan can continue.

The fields of questions and answers differ from set to set, and in a field that nobody
named, nobody would find a leak. So every text in every field of every row is searched
for.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_format import Roxxel
from roxxel_format.foreign import foreign_format, open_foreign
from roxxel_format.scans import Evals, Scan
from roxxel_format.texts import text_codec
from roxxel_format.writing import Fields
from roxxel_store.arguments import as_integer
from roxxel_store.files import check_output
from roxxel_store.screen import note
from roxxel_store.urls import check_on_disk, expanded

from roxxel_prepare._inputs.documents import documents_in
from roxxel_prepare._inputs.listing import find_inputs
from roxxel_prepare._run.files import check_part, runner_of
from roxxel_prepare._run.preparation import PartSummary
from roxxel_prepare._run.runners import UNIT_BYTES, run_units
from roxxel_prepare._scan.grams import LEAST_WORDS, NGRAM, Grams
from roxxel_prepare._scan.searching import Searched, Searcher, units_of_corpus
from roxxel_prepare._scan.words import number_hashes, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from roxxel_format import TokenReader
    from roxxel_format.texts import TextCodec

    from roxxel_prepare._run.runners import Progress, UnitDone

_RULES = 1
"""Version of the comparison: another version finds other places."""


def scan_corpus(
    corpus: str | os.PathLike[str] | Sequence[str],
    against: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    ngram: int = NGRAM,
    tokenizer: str | None = None,
    workers: int | None = 1,
    ray: str | None = None,
    part: tuple[int, int] | None = None,
    unit_bytes: int = UNIT_BYTES,
    progress: Callable[[Progress], None] | None = None,
) -> Scan | PartSummary:
    """Find the text of evaluation sets in a corpus, and write a receipt.

    Give the receipt to a curriculum (`without`), and no step reads the tokens that it
    lists. After an interruption, the same call continues.

    Args:
        corpus: The corpus, as for `Roxxel`, or one of another format.
        against: Evaluation sets: files, folders, patterns or URLs, as for
            `write_files`, or corpora. Every text in every field of a row is searched.
        out: The receipt, a file on a disk. Default: `scan_path`.
        ngram: Number of consecutive words that must be equal, without regard to white
            space, punctuation, capitals, accents and the Unicode form. A text with
            fewer words must be equal as a whole; a text with fewer than 5 is not
            searched. In a corpus without a tokenizer, `ngram` counts tokens.
        tokenizer: The corpus's tokenizer, if the corpus does not keep it.
        workers: As for `write_files`.
        ray: As for `write_files`.
        part: `(i, n)`: search the units of member `i` of `n`, from 0. When all members
            are done, the same call without `part` writes the receipt.
        unit_bytes: Size of the tokens of a unit.
        progress: As for `write_files`.

    Returns:
        The content of the receipt, or a summary of the part.

    Raises:
        InputError: An evaluation set is damaged, or of no known format.
        OSError: A file cannot be read or written, or worker processes died.
        ShardError: `out` is a file, but not a receipt of a scan.
        ValueError: An argument is invalid, no text is long enough to be searched, or
            the corpus records no tokenizer and the evaluation sets are text.

    Example:
        >>> text = "to be, or not to be: that is the question, said he who asked me"
        >>> _ = Roxxel("web.rox").write([text, "else"], tokenizer="bytes")
        >>> _ = Roxxel("exam.rox").write([text.upper()], tokenizer="bytes")
        >>> print(scan_corpus("web.rox", "exam.rox"))
        63 of 69 tokens in 1 place of 1 document hold 13-grams of exam.rox
    """
    as_integer("ngram", ngram, 2)
    unit_bytes = as_integer("unit_bytes", unit_bytes, 1)
    check_part(part)
    paths = [against] if isinstance(against, str | os.PathLike) else [*against]
    names = [os.fspath(each) for each in paths]
    check_on_disk(str(out), "the receipt is a file on a disk; give another --out")
    reader = _opened(corpus)
    receipt = expanded(scan_path(corpus) if out is None else out)
    check_output(receipt)
    before = Scan.read(receipt) if receipt.exists() else None
    codec = text_codec(reader, tokenizer)
    texts = [*_texts_of(names)]
    digest = _digest_of(texts)
    if before is not None and before.is_of(reader.fingerprint, digest, ngram):
        note(f"{receipt}: kept, because the same scan wrote it")
        return before
    grams = Grams.of([_numbers(each, codec, names) for each in texts], ngram)
    if grams.num_short == len(texts):
        raise ValueError(
            f"{', '.join(names)}: none of {len(texts)} texts has {LEAST_WORDS} words, "
            "so nothing would be searched; give whole questions"
        )
    units = units_of_corpus(reader, unit_bytes)
    facts = [reader.fingerprint, digest, ngram, tokenizer, [*map(str, units)], _RULES]
    job = blake2b(repr(facts).encode(), digest_size=6).hexdigest()
    records = [
        receipt.with_name(f".{receipt.name}.{job}_{number:05d}.unit")
        for number in range(len(units))
    ]
    searcher = Searcher(reader, tokenizer, grams, units, records)
    first, step = part or (0, 1)
    numbers = range(first, len(units), step)
    done = _done(records, numbers)
    what = _named(corpus)
    runner = runner_of(workers, ray)
    run_units(what, units, numbers, done, searcher, runner, progress)
    if part is not None:
        return PartSummary(len(numbers))
    found = [_found(each, what) for each in records]
    evals = Evals(tuple(names), digest, len(texts), grams.num_short)
    compares = "tokens" if codec is None else "words"
    scan = Scan(
        reader.fingerprint,
        reader.num_tokens,
        evals,
        ngram,
        compares,
        np.concatenate(found),
    )
    scan.write(receipt)
    old = evals if before is None else before.evals
    if old.digest != digest and old.paths != evals.paths:
        note(
            f"{receipt}: replaced the receipt of {', '.join(old.paths)}; to keep both, "
            "search for all sets in one scan, or name another --out"
        )
    for path in records:
        path.unlink(missing_ok=True)
    return scan


def scan_path(corpus: str | os.PathLike[str] | Sequence[str]) -> str:
    """Return the default path of a receipt, in the working folder.

    >>> scan_path("data/web_*.rox"), scan_path("s3://bucket/web/")
    ('web_scan.json', 'web_scan.json')
    """
    first = corpus if isinstance(corpus, str | os.PathLike) else corpus[0]
    path = os.fspath(first).rstrip("/").removesuffix("/*.rox")
    name = path.rpartition("/")[2].partition("*")[0]
    return f"{name.removesuffix('.rox').rstrip('_.') or 'corpus'}_scan.json"


def _opened(corpus: str | os.PathLike[str] | Sequence[str]) -> TokenReader:
    given = os.fspath(corpus) if isinstance(corpus, os.PathLike) else corpus
    if foreign_format(given) is not None:
        return open_foreign(given)
    reader = Roxxel(given)
    return reader.with_version(reader.fingerprint)


def _named(corpus: str | os.PathLike[str] | Sequence[str]) -> str:
    return str(corpus) if isinstance(corpus, str | os.PathLike) else str(corpus[0])


def _texts_of(paths: Sequence[str]) -> Iterator[str | npt.NDArray[Any]]:
    """Yield the texts of evaluation sets; files of tokens give arrays.

    A path that ends in `.rox` is a corpus, whose documents are texts if it records its
    tokenizer.
    """
    for path in paths:
        if path.endswith(".rox"):
            yield from _of_corpus(path)
            continue
        for part in find_inputs([path]).parts:
            for document in documents_in(part, Fields(every=True)):
                if isinstance(document, list):
                    yield from _texts_in(cast("list[object]", document))
                else:
                    yield cast("Any", document)


def _of_corpus(path: str) -> Iterator[str | npt.NDArray[Any]]:
    with Roxxel(path) as corpus:
        codec = text_codec(corpus)
        for document in corpus.documents:
            if codec is None:
                yield np.array(document)
            else:
                yield codec.decode(document).decode(errors="replace")


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in cast("dict[Any, Any]", value).values():
            yield from _texts_in(each)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            yield from _texts_in(each)


def _digest_of(texts: Iterable[str | npt.NDArray[Any]]) -> str:
    """Return a digest of texts, in their order."""
    digest = blake2b(digest_size=16)
    for text in texts:
        if isinstance(text, str):
            data, kind = text.encode(errors="surrogatepass"), "text"
        else:
            data, kind = text.astype("<i8").tobytes(), "tokens"
        digest.update(f"{kind} {len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()


def _numbers(
    text: str | npt.NDArray[np.int64], codec: TextCodec | None, names: Sequence[str]
) -> npt.NDArray[np.uint64]:
    """Return the numbers by which a text is compared: of its words, or its tokens."""
    if codec is None:
        if isinstance(text, str):
            raise ValueError(
                f"{', '.join(names)}: is text, but the corpus records no tokenizer; "
                "pass its --tokenizer, or evaluation sets as token ids of the corpus"
            )
        return number_hashes(text.astype(np.int64))
    if isinstance(text, str):
        return words_of(text.encode(errors="replace")).hashes
    return words_of(codec.decode(text)).hashes


def _done(records: Sequence[Path], numbers: Sequence[int]) -> dict[int, UnitDone]:
    found = {number: Searched.read(records[number]) for number in numbers}
    return {n: each.counts for n, each in found.items() if each is not None}


def _found(record: Path, corpus: str) -> npt.NDArray[np.int64]:
    searched = Searched.read(record)
    if searched is None:
        raise FileNotFoundError(
            f"{record}: was deleted during the scan of {corpus}; scan again"
        )
    return np.array(searched.found, np.int64).reshape(-1, 4)
