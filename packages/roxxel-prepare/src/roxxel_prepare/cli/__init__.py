"""The `roxxel-prepare` command: write and scan.

An error is one sentence on the standard error. `roxxel_store.command.EXIT_CODES` says
what the exit codes mean.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NoReturn

from roxxel_format import WriteArguments, WriteSummary
from roxxel_format.writing import Fields, Recipe, Separator
from roxxel_store import roxxel_command
from roxxel_store.command import EXPECTED, interruptible, spelled
from roxxel_store.screen import note, say

from roxxel_prepare._inputs.listing import find_inputs
from roxxel_prepare._plan.side import recipes_of
from roxxel_prepare._plan.units import units_of
from roxxel_prepare._run.committing import PartSummary, commit_units
from roxxel_prepare._run.files import write_files
from roxxel_prepare._scan.scan import scan_corpus, scan_path
from roxxel_prepare.cli.arguments import parser
from roxxel_prepare.cli.splitting import split
from roxxel_prepare.cli.values import shares_line, status_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from roxxel_format.scans import Scan

# The command has an option for each of them but the metadata and the progress.
_OF_WRITE_FILES = {
    *(write_files.__kwdefaults__ or ()),
    *WriteArguments.__optional_keys__,
}


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
    return parser(prog).run(_COMMANDS, arguments, EXPECTED, spelled)


def _write(options: argparse.Namespace) -> int:
    """Write the documents of files into a corpus, or look, commit or divide one."""
    _check_usage(options)
    if options.commit:
        return _commit(options)
    if options.dry_run:
        return _show_units(options)
    if _divides_corpus(options):
        divided = split(options)
        _print_summaries(divided, is_split=len(divided) > 1)
        return 0
    given: Any = {
        name: value for name, value in vars(options).items() if name in _OF_WRITE_FILES
    }
    written = write_files(
        options.corpus,
        options.inputs,
        document_id=options.id,
        progress=status_line(),
        **given,
    )
    outputs = recipes_of(
        options.corpus, Recipe(), options.split, options.bucket_by_length
    )
    is_new = any(isinstance(each, PartSummary) or not each.kept for each in written)
    says_end = options.tokenizer or options.separator is not Separator.OF_TOKENIZER
    if is_new and not says_end:
        note(_NO_END, end="")
    summaries = dict(zip(outputs, written, strict=True))
    _print_summaries(summaries, is_split=options.split is not None)
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
    for path in kept if options.against else ():
        found = scan_corpus(
            path,
            options.against,
            tokenizer=options.tokenizer,
            workers=options.workers,
            ray=options.ray,
            progress=status_line(),
        )
        _print_scan(path, scan_path(path), found)
    return 0


def _scan(options: argparse.Namespace) -> int:
    """Find the text of evaluation sets in a corpus."""
    out = options.out or scan_path(options.corpus)
    found = scan_corpus(
        options.corpus,
        options.against,
        out,
        ngram=options.ngram,
        tokenizer=options.tokenizer,
        workers=options.workers,
        ray=options.ray,
        part=options.part,
        unit_bytes=options.unit_bytes,
        progress=status_line(),
    )
    _print_scan(options.corpus, out, found)
    return 0


_MOST_LISTED = 10


def _print_scan(corpus: str, out: str, found: Scan | PartSummary) -> None:
    """Print what a scan found, and how to leave it out of a run."""
    if isinstance(found, PartSummary):
        say(
            f"{corpus}: {found.num_units} units of this part are done; when all parts "
            "are, run the command without --part, which writes the receipt"
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


def _show_units(options: argparse.Namespace) -> int:
    """Print the units into which a write divides its inputs."""
    fields = Fields(
        options.field or "",
        options.prompt,
        options.completion,
        options.id,
        chat=options.chat,
    )
    outputs = recipes_of(
        options.corpus, Recipe(), options.split, options.bucket_by_length
    )
    inputs = find_inputs(
        options.inputs,
        options.format,
        fields,
        field=options.field,
        outputs=[*outputs],
    )
    units = units_of(inputs, options.unit_bytes)
    say(f"{'unit':>6} {'bytes':>14}  inputs")
    for number, unit in enumerate(units):
        say(f"{number:>6} {unit.num_bytes:>14,}  {unit}")
    total = sum(unit.num_bytes for unit in units)
    left_out = WriteSummary.left_out_note(inputs.left_out)
    say(f"{len(units):,} units, {total:,} bytes, {options.corpus}{left_out}")
    return 0


def _commit(options: argparse.Namespace) -> int:
    """Commit a preparation whose parts are done."""
    written = commit_units(options.corpus)
    _print_summaries(written, is_split=len(written) > 1)
    return 0


_NO_END = (
    "nothing marks where a document ends, because neither --tokenizer nor --separator "
    "was passed; write text with --tokenizer bytes, which ends each document with "
    "token 256, or pass --separator: a token, or none if this is what you want\n"
)


def _print_summaries(
    written: Mapping[str, WriteSummary | PartSummary], *, is_split: bool
) -> None:
    """Print a line for each corpus of a write.

    The corpora of a split are pairs, each beginning with the held-out documents.
    """
    for corpus, summary in written.items():
        if isinstance(summary, PartSummary) or not summary.kept:
            say(f"{corpus}: {summary}")
    whole = [each for each in written.values() if not isinstance(each, PartSummary)]
    if is_split and len(whole) == len(written) and not all(each.kept for each in whole):
        say(shares_line(zip(whole[::2], whole[1::2], strict=True)))


def _divides_corpus(options: argparse.Namespace) -> bool:
    """Return whether a write divides a corpus and reads no files."""
    return options.split is not None and options.inputs[0].endswith(".rox")


def _check_alone(options: argparse.Namespace, what: str, *beside: str) -> None:
    """Exit with a usage error for an option that has no effect beside `what`."""
    known = {"corpus", "command", "prog", "usage_error", "default_of"}
    for name, value in vars(options).items():
        if name not in {*known, *beside} and value != options.default_of(name):
            option = "INPUT" if name == "inputs" else f"--{name.replace('_', '-')}"
            options.usage_error(f"argument {option}: not allowed with {what}")


def _check_usage(options: argparse.Namespace) -> None:
    """Exit with a usage error for arguments that do not belong together."""
    usage_error: Callable[[str], NoReturn] = options.usage_error
    if options.commit:
        _check_alone(options, "--commit", "commit")
    elif _divides_corpus(options):
        if len(options.inputs) > 1:
            usage_error(
                "argument --split: divides one corpus; quote its pattern, so that the "
                "shell does not expand it"
            )
        what = f"the corpus {options.inputs[0]} as INPUT"
        _check_alone(options, what, "inputs", "split", "max_shard_bytes", "exist")
    else:
        _check_fields(options, usage_error)


def _check_fields(
    options: argparse.Namespace, usage_error: Callable[[str], NoReturn]
) -> None:
    if options.tokenizer is None:
        if isinstance(options.separator, str):
            usage_error(
                f"argument --separator: {options.separator!r} is not a token id; write "
                "a number, use --separator-bytes, or pass the --tokenizer that has "
                "this token"
            )
        if options.special_tokens:
            usage_error("argument --special-tokens: needs --tokenizer")
        if options.chat:
            usage_error("argument --chat: needs --tokenizer")
    if options.against and options.part is not None:
        usage_error(
            "argument --against: not allowed with --part; scan the corpus when it is "
            "committed"
        )
    if (options.prompt is None) != (options.completion is None):
        usage_error("arguments --prompt and --completion: pass both, or neither")
    if options.prompt is not None and options.field is not None:
        usage_error("argument --field: not allowed with --prompt and --completion")
    if options.prompt is not None and options.chat:
        usage_error("argument --chat: not allowed with --prompt and --completion")


_COMMANDS = {"write": _write, "scan": _scan}
