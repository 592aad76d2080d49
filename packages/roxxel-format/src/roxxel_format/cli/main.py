"""The `roxxel-format` command: write, info, verify, cat, split, export and clean.

Exit codes: 0, done; 1, an error, in one sentence on the standard error; 2, wrong
arguments; 3, `verify` found damage; 130, interrupted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from roxxel_format import Roxxel
from roxxel_format._read.decoding import decoder
from roxxel_format._spec.dtypes import stored_name
from roxxel_format._version import __version__
from roxxel_format._write.options import WriteOptions
from roxxel_format.cli import values
from roxxel_format.prepare.inputs import FORMATS
from roxxel_format.prepare.runner import Inputs, prepare
from roxxel_format.prepare.split import split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roxxel_format._spec.dtypes import Tokens

_EXIST = ("keep", "replace", "append", "error")
_CHUNK = 1 << 20


def main(arguments: Sequence[str] | None = None, *, prog: str = "roxxel-format") -> int:
    """Run the command.

    Args:
        arguments: Of the command line. Default: those of the process.
        prog: What the user called, for usage and errors.

    Returns:
        The exit code.
    """
    options = _parser(prog).parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is no reason to stop.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return options.run(options)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError, TypeError, IndexError, ImportError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Write, look at and check corpora of .rox shards.",
        epilog="exit codes: 0 done, 1 error, 2 wrong arguments, 3 damage found",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    write = commands.add_parser("write", help="write documents into shards")
    _add_write_arguments(write)
    info = commands.add_parser("info", help="say what a corpus holds")
    info.add_argument("corpus", nargs="+")
    info.add_argument("--json", action="store_true", help="for programs")
    info.set_defaults(run=_info)
    info.add_argument("--no-lengths", action="store_true", help="no histogram")
    verify = commands.add_parser("verify", help="compare every block's checksum")
    verify.add_argument("corpus", nargs="+")
    verify.set_defaults(run=_verify)
    cat = commands.add_parser("cat", help="print documents or tokens")
    cat.add_argument("corpus", nargs="+")
    which = cat.add_mutually_exclusive_group()
    which.add_argument("--document", type=int, action="append", metavar="I")
    which.add_argument("--tokens", type=values.span, metavar="A:B")
    cat.add_argument("--ids", action="store_true", help="numbers, not text")
    cat.add_argument(
        "--tokenizer",
        help="to decode by; default: the recorded one",
    )
    cat.set_defaults(run=_cat)
    export = commands.add_parser("export", help="write all tokens into one flat file")
    export.add_argument("corpus", nargs="+")
    export.add_argument("output", help="a .npy file, or .bin for bare items")
    export.set_defaults(run=_export)
    split = commands.add_parser("split", help="hold documents out, by their content")
    split.add_argument("corpus")
    split.add_argument("kept", help="where most documents go")
    split.add_argument("held_out", help="where the others go")
    split.add_argument("--share", type=float, default=0.02, help="default: 0.02")
    split.add_argument("--salt", default="", help="another one, another choice")
    split.add_argument("--max-shard-bytes", type=values.size, metavar="BYTES")
    split.add_argument("--exist", choices=_EXIST, default="keep")
    split.set_defaults(run=_split)
    clean = commands.add_parser("clean", help="remove what killed writers left")
    clean.add_argument("corpus")
    clean.set_defaults(run=_clean)
    return parser


def _add_write_arguments(write: argparse.ArgumentParser) -> None:
    write.add_argument("corpus", help='a file, a folder, or a pattern ("wiki_*.rox")')
    write.add_argument("inputs", nargs="+", help="files; - is the standard input")
    write.add_argument("--format", choices=FORMATS, help="default: by name")
    write.add_argument("--field", default="text", help="of JSON objects, or column")
    separator = write.add_mutually_exclusive_group()
    separator.add_argument("--separator", type=int, metavar="TOKEN")
    separator.add_argument(
        "--separator-bytes",
        type=values.byte_string,
        dest="separator",
        metavar="TEXT",
        help=r"with \n, \t, \r, \\ and \xNN, as in '\n\n' or '\x00'",
    )
    write.add_argument("--dtype")
    write.add_argument("--vocab-size", type=int)
    write.add_argument("--block-size", type=values.size, default=4096, metavar="BYTES")
    write.add_argument("--max-shard-bytes", type=values.size, metavar="BYTES")
    write.add_argument("--tokenizer", help="tokenizer.json, or a Hugging Face name")
    write.add_argument("--workers", type=values.positive, default=1, metavar="N")
    write.add_argument("--exist", choices=_EXIST, default="keep")
    write.set_defaults(run=_write)


def _write(options: argparse.Namespace) -> int:
    summary = prepare(
        options.corpus,
        Inputs(tuple(options.inputs), options.format, options.field),
        WriteOptions(
            separator=options.separator,
            block_size=options.block_size,
            max_shard_bytes=options.max_shard_bytes,
            dtype=options.dtype and stored_name(options.dtype),
            vocab_size=options.vocab_size,
            tokenizer=options.tokenizer,
        ),
        options.exist,
        workers=options.workers,
        progress=_progress("parts"),
    )
    if not summary.kept:
        print(summary)
    return 0


def _info(options: argparse.Namespace) -> int:
    with Roxxel(options.corpus) as corpus:
        sizes = [Path(path).stat().st_size for path in corpus.paths]
        facts: dict[str, Any] = {
            "shards": corpus.num_shards,
            "tokens": corpus.num_tokens,
            "documents": corpus.num_documents,
            "dtype": corpus.dtype_name,
            "token_range": corpus.token_range_seen,
            "block_size": corpus.block_size,
            "bytes": sum(sizes),
            "fingerprint": corpus.fingerprint,
            "tokenizer": corpus.tokenizer,
            "metadata": corpus.metadata,
        }
        lengths = None if options.no_lengths else corpus.document_lengths()
    if options.json:
        if lengths is not None:
            facts["lengths"] = lengths.to_dict()
        print(json.dumps(facts, ensure_ascii=False))
        return 0
    for name, value in facts.items():
        text = json.dumps(value, ensure_ascii=False) if name == "metadata" else value
        print(f"{name:12} {text}")
    if lengths is not None:
        print(
            f"{'lengths':12} {lengths.least} to {lengths.greatest}, "
            f"{lengths.mean:.1f} on average"
        )
        for line in lengths.lines():
            print(line)
    return 0


def _verify(options: argparse.Namespace) -> int:
    with Roxxel(options.corpus) as corpus:
        report = corpus.verify(progress=_progress("bytes"))
    for error in report.errors:
        print(f"roxxel-format: {error}", file=sys.stderr)
    if not report.ok:
        return 3
    shards = f"{report.num_shards} shard{'s' * (report.num_shards != 1)}"
    print(f"{shards}, {report.num_bytes} bytes: all blocks are whole")
    return 0


def _cat(options: argparse.Namespace) -> int:
    with Roxxel(options.corpus, check="blocks") as corpus:
        decode = None if options.ids else _decoder(corpus, options.tokenizer)
        for part in _chosen(corpus, options.document, options.tokens):
            if decode is None:
                print(" ".join(map(str, part.tolist())))
            else:
                sys.stdout.flush()
                sys.stdout.buffer.write(decode(part) + b"\n")
        sys.stdout.flush()
    return 0


def _decoder(corpus: Roxxel, tokenizer: str | None) -> Callable[[Tokens], bytes] | None:
    """Return how tokens turn into text; None, with a note, where nobody knows."""
    try:
        return decoder(corpus, tokenizer)
    except (OSError, ValueError, TypeError, ImportError) as error:
        if tokenizer is not None:
            raise
        print(
            f"roxxel-format: made by {corpus.tokenizer}, which is not at hand "
            f"({error}); pass --tokenizer to see text",
            file=sys.stderr,
        )
        return None


def _chosen(
    corpus: Roxxel, documents: list[int] | None, tokens: tuple[int, int] | None
) -> Iterator[Tokens]:
    if tokens is not None:
        yield corpus.tokens[slice(*tokens)]
    elif documents:
        for number in documents:
            yield corpus.documents[number]
    else:
        yield from corpus.documents


def _export(options: argparse.Namespace) -> int:
    output = Path(options.output)
    if output.suffix not in {".npy", ".bin"}:
        raise ValueError(f"{output}: must end in .npy or .bin")
    partial = output.with_name(output.name + ".partial")
    try:
        with Roxxel(options.corpus, check="blocks") as corpus, partial.open("wb") as to:
            _write_flat(corpus, to, header=output.suffix == ".npy")
        partial.replace(output)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return 0


def _write_flat(corpus: Roxxel, file: BinaryIO, *, header: bool) -> None:
    # numpy has no name for bfloat16: its bits are exported, as uint16.
    dtype = corpus.dtype if corpus.dtype.kind in "biuf" else np.dtype("<u2")
    if header:
        fields: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": (corpus.num_tokens,),
        }
        np.lib.format.write_array_header_1_0(file, fields)
    starts = range(0, corpus.num_tokens, _CHUNK)
    parts = (corpus.tokens[start : start + _CHUNK] for start in starts)
    file.writelines(part.view(np.uint8).data for part in parts)


def _split(options: argparse.Namespace) -> int:
    with Roxxel(options.corpus) as corpus:
        summaries = split(
            corpus,
            options.kept,
            options.held_out,
            options.share,
            salt=options.salt,
            max_shard_bytes=options.max_shard_bytes,
            exist=options.exist,
        )
    for path, summary in zip((options.kept, options.held_out), summaries, strict=True):
        if not summary.kept:
            print(f"{path}: {summary}")
    return 0


def _clean(options: argparse.Namespace) -> int:
    for path in Roxxel(options.corpus).remove_leftovers():
        print(f"removed {path}")
    return 0


def _progress(what: str) -> Callable[[int, int], None] | None:
    """Return what draws progress on a terminal, None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        share = 100 * done // max(1, total)
        sys.stderr.write(f"\r{share:3d} % of {total} {what}{end}")
        sys.stderr.flush()

    return show
