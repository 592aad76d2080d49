"""The `roxxel-prepare` command: write and scan.

An error is one sentence on the standard error. `roxxel_store.command.EXIT_CODES` says
what the exit codes mean.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from roxxel_format import WriteSummary
from roxxel_format.writing import Fields, Recipe
from roxxel_store import roxxel_command
from roxxel_store.command import (
    EXPECTED,
    CommandParser,
    UsageError,
    check_none,
    interruptible,
    positive,
)
from roxxel_store.screen import draw, note, printable, say
from roxxel_store.signature import given

from roxxel_prepare._inputs.listing import find_inputs
from roxxel_prepare._run.files import commit_units, recipes_of, write_files
from roxxel_prepare._run.plan import units_of
from roxxel_prepare._run.preparation import PartSummary
from roxxel_prepare._scan.grams import NGRAM
from roxxel_prepare._scan.scan import scan_corpus, scan_path
from roxxel_prepare.cli.options import Against, Documents, Shards, Tokens, Work
from roxxel_prepare.cli.splitting import split

if TYPE_CHECKING:
    from roxxel_format.scans import Scan

    from roxxel_prepare._run.runners import Progress

_MOST_LISTED = 10
_EVERY_S = 60.0


@interruptible("roxxel-prepare")
def main(
    arguments: Sequence[str] | None = None, *, prog: str = "roxxel-prepare"
) -> int:
    """Run the command.

    Args:
        arguments: Arguments after the command's name. Default: `sys.argv[1:]`.
        prog: Name of the command in usage and error messages.

    Returns:
        The exit code.
    """
    found = parser(prog)
    return found.run(found.acts, arguments, EXPECTED)


def parser(prog: str) -> CommandParser:
    """Return the parser, which calls the function of a command."""
    return CommandParser.of(
        [write, scan],
        "roxxel-prepare",
        prog=prog,
        description="Turn files of text or tokens into corpora of .rox shards.",
    )


def write(
    corpus: Annotated[
        str,
        'a file ("wiki.rox"), a pattern ("wiki_*.rox"), a folder ("wiki/"), or a URL '
        "of a pattern or a folder",
    ],
    inputs: Sequence[Annotated[str, "INPUT"]] = (),
    *,
    documents: Documents,
    tokens: Tokens,
    shards: Shards,
    work: Work,
    commit: bool = False,
    dry_run: bool = False,
    against: Against = (),
) -> None:
    """Write the documents of files into a corpus.

    Readers see the corpus when all of it is written. Run the same command again to
    continue an interrupted write.

    Args:
        corpus: The corpus.
        inputs: Files, folders, patterns, or URLs of these; - is the standard input.
            With --split, also a corpus to divide, such as web_*.rox.
        documents: Documents.
        tokens: Tokens.
        shards: Shards.
        work: Work.
        commit: Commit CORPUS when all members of --part are done; name the missing
            units if there are any, and then change nothing. Nothing but CORPUS goes
            with it.
        dry_run: Print the units of the inputs (consecutive files, or a part of one
            large file), and write nothing.
        against: Search the corpus after the write, as scan does.

    Example:
        roxxel write 'web_*.rox' texts/ --tokenizer gpt2 --split valid=0.001
        roxxel write 'web_*.rox' --commit
        roxxel write 'train_*.rox' 'web_*.rox' --split valid=0.01
    """
    own = {"INPUT": inputs, "--dry-run": dry_run, "--against": against}
    options = [name for name, value in own.items() if value]
    options += given(documents, tokens, shards, work)
    if commit:
        check_none(options, "--commit")
        written = commit_units(corpus)
        _say_summaries(written, is_split=len(written) > 1)
        return
    if not inputs:
        raise UsageError("the following arguments are required: INPUT")
    if shards.split is not None and len(inputs) == 1 and inputs[0].endswith(".rox"):
        beside = {"INPUT", "--split", "--max-shard-bytes", "--exist"}
        others = [each for each in options if each not in beside]
        check_none(others, f"the corpus {inputs[0]} as INPUT")
        divided = split(
            inputs[0], corpus, shards.split, shards.max_shard_bytes, shards.exist
        )
        _say_summaries(divided, is_split=len(divided) > 1)
        return
    if against and work.part is not None:
        raise UsageError(
            "argument --against: not allowed with --part; scan the corpus when it is "
            "committed"
        )
    if dry_run:
        _say_units(corpus, inputs, documents, shards, work.unit_bytes)
    else:
        _write(corpus, inputs, documents, tokens, shards, work, against)


def scan(
    corpus: Annotated[str, "a file, a folder, a pattern, or a URL of these"],
    *,
    against: Against,
    out: Annotated[str | None, "FILE"] = None,
    ngram: Annotated[int, positive, "N"] = NGRAM,
    tokenizer: Annotated[str | None, "PATH"] = None,
    work: Work,
) -> None:
    """Find the text of evaluation sets in a corpus.

    The text is found however it is spelled, and its tokens are listed in a receipt.
    Name the receipt under [without] of a config, and no step reads them. Run the same
    command again to continue an interrupted scan.

    Args:
        corpus: The corpus.
        out: The receipt (default: wiki_scan.json for wiki_*.rox, in this folder).
        ngram: Number of words in a row that must be equal.
        tokenizer: Tokenizer of the corpus (default: the one that is kept with it).
        work: Work.

    Example:
        roxxel scan 'web_*.rox' --against exam.jsonl
    """
    out = out or scan_path(corpus)
    found = scan_corpus(
        corpus,
        against,
        out,
        ngram=ngram,
        tokenizer=tokenizer,
        **vars(work),
        progress=_status_line(),
    )
    _say_scan(corpus, out, found)


def _say_scan(corpus: str, out: str, found: Scan | PartSummary) -> None:
    """Print what a scan found, and how to leave it out of a run."""
    if isinstance(found, PartSummary):
        say(
            f"{corpus}: {found.done}; when all parts are, run the command without "
            "--part, which writes the receipt"
        )
        return
    say(f"{corpus}: {found}")
    for start, stop, document, text in found.found[:_MOST_LISTED].tolist():
        say(f"  document {document}, tokens [{start}, {stop}): text {text}")
    if len(found.found) > _MOST_LISTED:
        say(f"  and {len(found.found) - _MOST_LISTED:,} more, which {out} lists")
    evals = found.evals
    if evals.num_short:
        say(
            f"{evals.num_short:,} of {evals.num_texts:,} texts are too short to be "
            "searched"
        )
    if len(found.found):
        say(
            f"to leave them out, name the receipt under [without] of a config, such as "
            f'web = "{out}"'
        )


def _write(
    corpus: str,
    inputs: Sequence[str],
    documents: Documents,
    tokens: Tokens,
    shards: Shards,
    work: Work,
    against: Sequence[str],
) -> None:
    """Write the documents of files into a corpus, and search it if this is asked."""
    options: dict[str, Any] = vars(documents) | vars(tokens) | vars(shards) | vars(work)
    written = write_files(corpus, inputs, **options, progress=_status_line())
    outputs = _outputs(corpus, shards)
    is_new = any(isinstance(each, PartSummary) or not each.kept for each in written)
    if is_new:
        note(tokens.missing_end, end="")
    summaries = dict(zip(outputs, written, strict=True))
    _say_summaries(summaries, is_split=shards.split is not None)
    # The commit of a corpus also commits what was held out of it.
    kept = [
        path
        for path, recipe in outputs.items()
        if recipe.side is None or not recipe.side.is_held_out
    ]
    for path in kept:
        if not isinstance(summaries[path], PartSummary):
            continue
        line = f"prepare write {shlex.quote(path)} --commit"
        say(f"  {roxxel_command(line)}")
    for path in kept if against else ():
        found = scan_corpus(
            path,
            against,
            tokenizer=tokens.tokenizer,
            **vars(work),
            progress=_status_line(),
        )
        _say_scan(path, scan_path(path), found)


def _say_units(
    corpus: str,
    inputs: Sequence[str],
    documents: Documents,
    shards: Shards,
    unit_bytes: int,
) -> None:
    fields = Fields(
        documents.field or "",
        documents.prompt,
        documents.completion,
        documents.document_id,
        chat=documents.chat,
    )
    found = find_inputs(
        inputs,
        documents.format,
        fields,
        field=documents.field,
        outputs=[*_outputs(corpus, shards)],
    )
    units = units_of(found.parts, unit_bytes)
    say(f"{'unit':>6} {'bytes':>14}  inputs")
    for number, unit in enumerate(units):
        say(f"{number:>6} {unit.num_bytes:>14,}  {unit}")
    total = sum(unit.num_bytes for unit in units)
    left_out = WriteSummary.left_out_note(found.left_out)
    say(f"{len(units):,} units, {total:,} bytes, {corpus}{left_out}")


def _outputs(corpus: str, shards: Shards) -> dict[str, Recipe]:
    """Return which documents each corpus of a write gets, by path."""
    return recipes_of(corpus, Recipe(), shards.split, shards.bucket_by_length)


def _say_summaries(
    written: Mapping[str, WriteSummary | PartSummary], *, is_split: bool
) -> None:
    """Print a line for each corpus that was written, and one for the shares of a split.

    The corpora of a split are pairs, each beginning with the held-out documents. Their
    shares are known when all are whole.
    """
    for corpus, summary in written.items():
        # A corpus that is kept has got its line from the write.
        if isinstance(summary, PartSummary) or not summary.kept:
            say(f"{corpus}: {summary}")
    whole = [each for each in written.values() if not isinstance(each, PartSummary)]
    if is_split and len(whole) == len(written) and not all(each.kept for each in whole):
        say(_shares_line(zip(whole[::2], whole[1::2], strict=True)))


def _shares_line(pairs: Iterable[tuple[WriteSummary, WriteSummary]]) -> str:
    """Describe which shares of the documents and of the tokens are held out.

    The two differ, because a few long documents have many tokens.

    Args:
        pairs: Summaries of held-out documents, and of the others.
    """
    held_out, others = zip(*pairs, strict=True)

    def percent(name: str) -> str:
        mine, all_others = (
            sum(getattr(each, name) for each in side) for side in (held_out, others)
        )
        return f"{100 * mine / max(1, mine + all_others):.3g} %"

    return (
        f"held out {percent('num_documents')} of the documents and "
        f"{percent('num_tokens')} of the tokens"
    )


def _status_line() -> Callable[[Progress], None]:
    """Return a function that shows a state on the standard error.

    On a terminal, each state is cut to one line and replaces the previous state.
    Elsewhere, a state is printed as a line, at most one in a minute; if the work ends
    before the first minute does, no line is printed.
    """
    is_terminal = sys.stderr.isatty()
    shown_s = time.monotonic()

    def show(status: Progress) -> None:
        nonlocal shown_s
        if is_terminal:
            # Erase to the end of the line: the state before may have been longer.
            end = "\n" if status.is_end else ""
            width, _ = shutil.get_terminal_size()
            text = printable(str(status))[: width - 1]
            draw(f"\r{text}\x1b[K{end}")
        elif time.monotonic() - shown_s >= _EVERY_S:
            shown_s = time.monotonic()
            note(str(status))

    return show
