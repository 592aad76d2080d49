"""Commands that read: info, verify and cat."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

from roxxel_store.command import (
    Found,
    Progress,
    UsageError,
    check_one,
)
from roxxel_store.screen import (
    counted,
    note,
    printable,
    put,
    say,
    short_size,
    whole_count,
)
from roxxel_store.urls import is_pattern

from roxxel_format._corpus_name import owners_of
from roxxel_format._read.opening import open_corpus
from roxxel_format._spec.input_totals import num_joined
from roxxel_format._spec.manifest import as_table
from roxxel_format._write.rescue import repair_shard
from roxxel_format.corpus import Roxxel
from roxxel_format.naming import documents_at, named
from roxxel_format.texts import text_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from roxxel_format._read.contents import Contents
    from roxxel_format._spec.input_totals import InputTotals
    from roxxel_format._spec.layout import Tokens

_MOST_INPUTS = 10
"""Maximum number of input files that `info` lists one by one."""


_MOST_LETTERS = 160
"""Maximum number of characters that `info` prints for one fact."""


def span(text: str) -> tuple[int, int]:
    """Parse the half-open span `A:B`."""
    start, _, stop = text.partition(":")
    if start.isdecimal() and stop.isdecimal() and int(start) <= int(stop):
        return int(start), int(stop)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a span A:B with A up to B, such as 0:100"
    )


Corpus = Sequence[
    Annotated[str, "a file, a folder, a pattern, or a URL of these; or several shards"]
]


def info(corpus: Corpus, *, json_: bool = False, lengths: bool = True) -> None:
    """Describe a corpus: sizes, dtype, versions.

    Columns, the lengths of documents, and the input files are listed too.

    Args:
        corpus: The corpus.
        json_: Print one JSON object.
        lengths: Leave out what has to be read from every shard: the lengths of
            documents, and the input files.

    Example:
        roxxel format info 'web_*.rox'
    """
    with Roxxel(_paths(corpus)) as opened:
        contents = open_corpus(opened.filepath, opened.fingerprint)
        facts: dict[str, Any] = {
            "shards": opened.num_shards,
            "tokens": opened.num_tokens,
            "documents": opened.num_documents,
            **_bin_facts(opened),
            "dtype": opened.dtype_name,
            "token_range": opened.token_range_seen,
            "block_size": opened.block_size,
            "bytes": sum(contents.shards.num_bytes),
            "fingerprint": opened.fingerprint,
            "tokenizer": opened.tokenizer,
            "metadata": opened.metadata,
        }
        facts["metadata"].pop("input_files", None)  # Lists only one unit's inputs.
        tables = _manifest_tables(contents)
        counted = opened.document_lengths() if lengths else None
        inputs = opened.input_totals() if lengths else []
    if json_:
        if counted is not None:
            facts["lengths"] = counted.to_dict()
            facts["inputs"] = [asdict(each) for each in inputs]
            facts["bytes_per_token"] = _bytes_per_token(inputs)
        say(json.dumps(facts | tables))
        return
    for name, text in _facts_for_people(facts):
        say(f"{name:12} {text}")
    metadata = _metadata_for_people(facts["metadata"], tables["versions"])
    for number, (name, value) in enumerate(metadata.items()):
        label = "" if number else "metadata"
        say(f"{label:12} {printable(name)} {_shown(value)}")
    for name, rows in _tables_for_people(tables).items():
        for number, text in enumerate(rows):
            say(f"{'' if number else name:12} {printable(text)}")
    if counted is not None:
        say(
            f"{'lengths':12} {counted.least:,} to {counted.greatest:,} tokens, "
            f"{counted.mean:,.1f} on average"
        )
        shares = (f"{each} % {at:,}" for each, at in counted.percentiles.items())
        say(f"{'percentiles':12} {', '.join(shares)}")
        say(f"{'tokens':>24} {'documents':>12}")
        for line in counted.lines():
            say(line)
    num_tokens = facts["tokens"] - facts.get("padding", 0)
    for line in _input_lines(inputs, num_tokens):
        say(line)


def _bin_facts(corpus: Roxxel) -> dict[str, int]:
    """Return what is known about the bins of a packed corpus."""
    if corpus.unit is None:
        return {}
    return {
        "bins": corpus.num_tokens // corpus.unit,
        "unit": corpus.unit,
        "cut": corpus.num_cut,
        "padding": corpus.num_padding,
    }


def _facts_for_people(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each fact, with units."""
    for name in ("tokens", "documents", "shards", "bins", "unit", "cut", "padding"):
        if name in facts:
            yield name, whole_count(facts[name])
    yield "size", short_size(facts["bytes"])
    seen = facts["token_range"]
    ids = "" if seen is None else f", ids {seen[0]:,} to {seen[1]:,}"
    yield "dtype", f"{facts['dtype']}{ids}"
    yield "blocks", f"{facts['block_size']:,} bytes, each with a checksum"
    yield "tokenizer", printable(facts["tokenizer"] or "not recorded")
    yield "fingerprint", facts["fingerprint"]


def _shown(value: Any) -> str:
    """Return a value on one line, without characters that control the terminal."""
    text = _words(value)
    more = len(text) - _MOST_LETTERS
    if more > 0:
        text = f"{text[:_MOST_LETTERS]} ... ({more:,} more characters, see --json)"
    return printable(text)


def _words(value: Any) -> str:
    """Return a value of JSON as a person would write it."""
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return ", ".join(f"{name} {_words(inner)}" for name, inner in entries)
    if isinstance(value, list):
        return ", ".join(map(_words, cast("list[Any]", value))) or "none"
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_count else str(value)


def _bytes_per_token(inputs: Sequence[InputTotals]) -> float | None:
    """Return bytes of text for each token; None without texts."""
    texts = [each for each in inputs if each.text_bytes is not None]
    num_tokens = sum(each.num_tokens for each in texts)
    if not num_tokens:
        return None
    return sum(each.text_bytes or 0 for each in texts) / num_tokens


def _input_lines(inputs: Sequence[InputTotals], num_tokens: int) -> Iterator[str]:
    """Yield a summary of the input files, and the files with the most tokens."""
    if not inputs:
        return
    single = [each for each in inputs if num_joined(each.name) is None]
    others = [each for each in inputs if num_joined(each.name) is not None]
    num_others = sum(num_joined(each.name) or 0 for each in others)
    num_files = len(single) + num_others
    files = counted(num_files, "input file")
    yield f"{'inputs':12} {files}{_per_token(inputs)}"
    shown = sorted(single, key=lambda each: -each.num_tokens)
    for each in shown[:_MOST_INPUTS]:
        share = each.num_tokens / max(1, num_tokens)
        label = f"{printable(each.name):>24} {each.num_tokens:>12,} tokens, {share:.1%}"
        yield label + _per_token([each])
    others += shown[_MOST_INPUTS:]
    num_others += len(shown[_MOST_INPUTS:])
    if others:
        count = sum(each.num_tokens for each in others)
        share = count / max(1, num_tokens)
        label = f"{f'and {num_others} more':>24} {count:>12,} tokens, {share:.1%}"
        yield label + _per_token(others)
    unknown = num_tokens - sum(each.num_tokens for each in inputs)
    if unknown:
        yield f"{'not recorded':>24} {unknown:>12,} tokens, {unknown / num_tokens:.1%}"


def _per_token(inputs: Sequence[InputTotals]) -> str:
    ratio = _bytes_per_token(inputs)
    return "" if ratio is None else f", {ratio:.2f} bytes of text per token"


def _paths(paths: Corpus) -> str | Corpus:
    """Return a single path as `str`, because for a list `Roxxel` ignores manifests.

    If the files belong to two corpora, an unquoted pattern probably matched a held-out
    corpus too, so a note says that they are read as one.
    """
    owners = sorted({*owners_of(paths).values()}) if len(paths) > 1 else []
    if len(owners) > 1:
        note(
            f"note: these files are shards of {' and '.join(map(repr, owners))}, read "
            "as one corpus here; for one of them quote the pattern, because the shell "
            "expands it"
        )
    return paths[0] if len(paths) == 1 else paths


def _manifest_tables(contents: Contents) -> dict[str, list[dict[str, Any]]]:
    """Return the versions of a corpus, and the columns of the open version."""
    return {
        "versions": [
            {
                "fingerprint": version.fingerprint,
                "tokens": version.num_tokens,
                "documents": version.num_documents,
            }
            | ({} if version.encoder is None else {"encoded_by": version.encoder})
            | _source(version.arguments)
            for version in contents.manifest.versions
        ],
        "columns": [
            {
                "name": name,
                "per": column.per,
                "dtype": column.dtype,
                "shards": sum(each is not None for each in column.names),
                "missing_shards": sum(each is None for each in column.names),
            }
            for name, column in contents.columns.items()
        ],
    }


def _source(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the inputs that a write of files has recorded, in one text."""
    inputs = as_table(arguments.get("inputs"))
    if not inputs.get("names"):
        return {}
    first, number = inputs["names"][0], inputs["number"]
    return {"source": first if number == 1 else f"{first} and {number - 1:,} more"}


def _metadata_for_people(
    metadata: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    # One file keeps the arguments of its write for the next write, as a manifest does.
    hidden = {"arguments"}
    if any("source" in row for row in versions):
        hidden.add("source")  # of the first version alone
    return {name: value for name, value in metadata.items() if name not in hidden}


def _tables_for_people(
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, list[str]]:
    found = {
        "versions": [
            f"{row['fingerprint']}, {counted(row['tokens'], 'token')} in "
            + counted(row["documents"], "document")
            + (f", from {row['source']}" if "source" in row else "")
            + (f", encoded by {row['encoded_by']}" if "encoded_by" in row else "")
            for row in tables.get("versions", ())
        ],
        "columns": [],
    }
    for row in tables.get("columns", ()):
        lacking = row["missing_shards"]
        note = f", missing in {lacking:,}" if lacking else ""
        found["columns"].append(
            f"{row['name']}: {row['dtype']} for each {row['per']}, in "
            f"{counted(row['shards'], 'shard')}{note}"
        )
    return found


def verify(
    corpus: Corpus,
    *,
    repair: Annotated[str | None, "COPY"] = None,
    adopt: bool = False,
    prog: str,
) -> None:
    """Verify the checksum of every block.

    Each damaged block is named with its documents. Nothing is changed, unless you ask
    for a repair, or for the manifest that makes sound shards a corpus.

    Args:
        corpus: The corpus.
        repair: Replace CORPUS, a damaged shard, by this copy of it, a file or a URL,
            which is verified against the digest that the shard records. Restart
            programs that have the shard open, because they read the old file.
        adopt: Make shards without a manifest a corpus, if all are sound, and alike in
            what a manifest says once, such as dtype and tokenizer: the manifest was
            lost, or you wrote the shards yourself. They are in natural order, 2 before
            10. That may be another order than the lost one if the corpus was compacted,
            or prepared and then appended to, so restore the manifest if you can.
        prog: Name of the program, which begins the line of a damaged block.

    Raises:
        Found: A block is damaged.

    Example:
        roxxel format verify 'web_*.rox'
        roxxel format verify web_00003.rox --repair s3://bucket/web/web_00003.rox
        roxxel format verify 'web_*.rox' --adopt
    """
    check_one({"--repair": repair, "--adopt": adopt or None})
    if adopt:
        if len(corpus) > 1:
            raise UsageError(
                "argument --adopt: CORPUS must be one folder or pattern; quote it, so "
                "that the shell does not expand it"
            )
        _adopt(corpus[0])
        return
    if repair is not None:
        if len(corpus) > 1 or is_pattern(corpus[0]):
            raise UsageError(
                "argument --repair: CORPUS must be the file of the damaged shard, as "
                "a verify without --repair names it"
            )
        _repair(corpus[0], repair)
        return
    shown = Progress(f"verifying {' '.join(corpus)}")
    with Roxxel(_paths(corpus)) as opened, shown as progress:
        report = opened.verify(progress=progress)
    for error in report.errors:
        note(f"{prog}: {error}")
    if not report.ok:
        raise Found
    shards = counted(report.num_shards, "shard")
    say(f"{shards}, {short_size(report.num_bytes)}: all checksums match")


def _adopt(corpus: str) -> None:
    with Progress(f"verifying {corpus}") as progress:
        report = Roxxel(corpus).adopt(progress=progress)
    shards = counted(report.num_shards, "shard")
    say(f"{corpus}: adopted {shards}, {short_size(report.num_bytes)}, all sound")


def _repair(shard: str, copy: str) -> None:
    num_bytes = repair_shard(shard, copy)
    if num_bytes is None:
        say(f"{shard}: all checksums match, so nothing was changed")
    else:
        say(f"{shard}: replaced, {short_size(num_bytes)}, all checksums match")


def cat(
    corpus: Corpus,
    *,
    document: Sequence[Annotated[str, "I|NAME"]] = (),
    tokens: Annotated[tuple[int, int] | None, span, "A:B"] = None,
    ids: bool = False,
    names: bool = False,
    tokenizer: Annotated[str | None, "PATH"] = None,
    prog: str,
) -> None:
    r"""Print documents or tokens.

    Prints all documents, some documents, or a range of tokens, as text or as ids. A
    file or a pipe gets a document as it is. A terminal gets characters that would
    control it as escapes, such as \x1b.

    Args:
        corpus: The corpus.
        document: A number, from 0; or a name of the column id, path or url, such as
            web/17. Put id= before a name of digits; repeatable (default: all
            documents).
        tokens: The tokens from A to before B.
        ids: Print ids, not text.
        names: Print the number and the name of each document before it.
        tokenizer: The file tokenizer.json, its folder, or a Hugging Face name (default:
            the one that is kept with the corpus).
        prog: Name of the program, which begins the line of a warning.

    Example:
        roxxel format cat 'web_*.rox' --document 7
    """
    check_one({"--document": document or None, "--tokens": tokens})
    with Roxxel(_paths(corpus), check="blocks") as opened:
        decode = None if ids else _decoder(opened, tokenizer, prog)
        for number, part in _chosen(opened, document, tokens):
            if names and number is not None:
                say(f"document {number}{named(opened, number)}:")
            if decode is None:
                line = " ".join(map(str, part.tolist())).encode()
            else:
                line = decode(part)
            put(line + b"\n")


def _decoder(
    corpus: Roxxel, tokenizer: str | None, prog: str
) -> Callable[[Tokens], bytes] | None:
    """Return a function that decodes tokens; None if the corpus has no tokenizer.

    If loading the recorded tokenizer fails, print the reason and return None.
    """
    try:
        codec = text_codec(corpus, tokenizer)
    except (OSError, ValueError, TypeError, ImportError) as error:
        if tokenizer is not None:
            raise
        note(
            f"{prog}: the recorded tokenizer {corpus.tokenizer} cannot be "
            f"loaded ({error}); pass --tokenizer to see text"
        )
        return None
    return None if codec is None else codec.decode


def _chosen(
    corpus: Roxxel, documents: Sequence[str], tokens: tuple[int, int] | None
) -> Iterator[tuple[int | None, Tokens]]:
    """Yield pairs of document number and tokens; the number of a range is None."""
    if tokens is not None:
        start, stop = tokens
        yield None, corpus.tokens[start:stop]
        return
    numbers: Iterable[int] = range(corpus.num_documents)
    if documents:
        numbers = [n for text in documents for n in documents_at(corpus, text)]
    for number in numbers:
        yield number, corpus.documents[number]
