"""The arguments of the command `roxxel-format`, and their help."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from roxxel_store.command import (
    FOUND,
    CommandParser,
    positive,
    size,
)

from roxxel_format._version import __version__
from roxxel_format._write.compact import FULL_SHARD_BYTES
from roxxel_format._write.recipe import Separator
from roxxel_format.cli.values import span
from roxxel_format.foreign import FOREIGN_FORMATS

if TYPE_CHECKING:
    from argparse import ArgumentParser


def parser(prog: str) -> CommandParser:
    """Return the parser, which stores the name of the command as `command`."""
    found = CommandParser(
        prog=prog,
        description="Inspect, check, copy and repair corpora of .rox shards.\n\n"
        "`roxxel write` (without roxxel: `roxxel-prepare write`) makes corpora of "
        "files.",
        codes=[FOUND],
    )
    found.set_defaults(prog=prog)
    version = f"roxxel-format {__version__}"
    found.add_argument("--version", action="version", version=version)
    commands = found.add_commands()
    _add_readers(commands)
    copy = commands.add_parser(
        "copy",
        examples=[
            "'web_*.rox' s3://bucket/web/",
            "tokens.bin 'web_*.rox' --dtype uint16 --separator 50256",
        ],
        help="copy a corpus between folders and buckets, or from another format",
        description="Copy a corpus with its versions and columns. Verifies every "
        "block, and commits last. Run the same command again to continue an "
        "interrupted copy, or to bring a copy up to date. Tokens of another program "
        "(nanoGPT, llm.c, OLMo, Megatron, datatrove) become shards with documents.",
    )
    copy.add_argument(
        "source",
        metavar="SOURCE",
        help="a file, a folder, a pattern, or a URL of these",
    )
    copy.add_argument(
        "target", metavar="TARGET", help="a folder or a pattern, or a URL of one"
    )
    copy.add_argument(
        "--exist",
        choices=("error", "replace"),
        default="error",
        help="if the target is another corpus: replace it, or stop (default: error)",
    )
    foreign = copy.add_argument_group("from another format")
    foreign.add_argument(
        "--format",
        choices=FOREIGN_FORMATS,
        help="the source's format (default: by its name and its first bytes)",
    )
    foreign.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="type of tokens without a header, such as uint16",
    )
    foreign.add_argument(
        "--offset",
        type=partial(size, least=0),
        metavar="BYTES",
        help="bytes before the first token of each flat file (default: a header of "
        ".npy or llm.c, else 0)",
    )
    foreign.add_argument(
        "--separator",
        type=Separator.parse,
        metavar="TOKEN",
        help="the token that ends each document, or its name in --tokenizer; flat "
        "files need it, and none makes all their tokens one document",
        default=Separator.OF_TOKENIZER,
    )
    foreign.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="the tokenizer of the tokens, to record it: tokenizer.json, its folder, "
        "or a Hugging Face name (default: none is recorded)",
    )
    _add_max_shard_bytes(foreign)
    copy.set_defaults(usage_error=copy.error)
    _add_compact(commands)
    _add_repair(commands)
    adopt = commands.add_parser(
        "adopt",
        examples=["'web_*.rox'"],
        help="make shards without a manifest a corpus",
        description="Verify the shards that a pattern or a folder names, and write the "
        "manifest that makes them a corpus. Use it if the manifest was lost, or if "
        "you wrote the shards yourself. The shards keep their names, and natural order "
        "decides: 2 comes before 10. That may be another order than the lost one if "
        "the corpus was compacted, or prepared and then appended to, so restore the "
        "manifest if you can. Nothing is written if a shard is damaged, or if "
        "the shards differ in dtype, block size, separator or tokenizer.",
    )
    adopt.add_argument(
        "corpus", metavar="CORPUS", help="a folder, or a pattern such as wiki_*.rox"
    )
    clean = commands.add_parser(
        "clean",
        examples=["'web_*.rox'"],
        help="remove files of interrupted writes",
        description="Remove what interrupted writes left behind. Committed files stay, "
        "and so does a preparation that the same command would continue; --abandon "
        "removes it too. Each removed file is printed. While a write goes on, nothing "
        "is removed; in a bucket, which has no locks, nothing younger than a week.",
    )
    clean.add_argument(
        "corpus",
        metavar="CORPUS",
        help="a file, a folder, a pattern, or a URL of these",
    )
    clean.add_argument(
        "--abandon",
        action="store_true",
        help="also give up a preparation that is not committed, with its plan and "
        "shards, and shards whose manifest was lost or never committed",
    )
    return found


def _add_readers(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        examples=["'web_*.rox'"],
        help="describe a corpus: sizes, dtype, versions",
        description="Describe a corpus: sizes, dtype, versions, columns, lengths of "
        "documents, and the input files.",
    )
    _add_corpus(info)
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.add_argument(
        "--no-lengths",
        action="store_true",
        help="leave out what has to be read from every shard: the lengths of "
        "documents, and the input files",
    )
    verify = commands.add_parser(
        "verify",
        examples=["'web_*.rox'"],
        codes=[FOUND],
        help="verify the checksum of every block",
        description="Verify the checksum of every block, and name each damaged block "
        "with its documents. Exit code 3 means damage.",
    )
    _add_corpus(verify)
    cat = commands.add_parser(
        "cat",
        examples=["'web_*.rox' --document 7"],
        help="print documents or tokens",
        description="Print all documents, some documents, or a range of tokens, as "
        "text or as ids. A file or a pipe gets a document as it is; a terminal gets "
        "characters that would control it as escapes, such as \\x1b.",
    )
    _add_corpus(cat)
    which = cat.add_mutually_exclusive_group()
    which.add_argument(
        "--document",
        action="append",
        metavar="I|NAME",
        help="a number, from 0; or a name of the column id, path or url, such as "
        "web/17. Put id= before a name of digits; repeatable (default: all documents)",
    )
    which.add_argument(
        "--tokens",
        type=span,
        metavar="A:B",
        help="the tokens from A to before B",
    )
    cat.add_argument("--ids", action="store_true", help="print ids, not text")
    cat.add_argument(
        "--names",
        action="store_true",
        help="print the number and the name of each document before it",
    )
    cat.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, its folder, or a Hugging Face name (default: the "
        "one that is kept with the corpus)",
    )
    cat.add_argument(
        "--width",
        type=positive,
        metavar="COLUMNS",
        help="wrap lines between words (default: the width of the terminal, and no "
        "wrapping into a file or a pipe)",
    )
    export = commands.add_parser(
        "export",
        examples=["'web_*.rox' web.npy"],
        help="write all tokens into one flat file",
        description="Verify every block, and write all tokens into one flat file, for "
        "programs that do not read shards.",
    )
    _add_corpus(export)
    export.add_argument(
        "output", metavar="OUTPUT", help="a .npy file, or a .bin file without a header"
    )
    export.add_argument(
        "--force", action="store_true", help="replace OUTPUT (default: an error)"
    )


def _add_corpus(parser: ArgumentParser) -> None:
    parser.add_argument(
        "corpus",
        metavar="CORPUS",
        nargs="+",
        help="a file, a folder, a pattern, or a URL of these; or several shards",
    )


def _add_compact(commands: Any) -> None:
    compact = commands.add_parser(
        "compact",
        examples=["'web_*.rox'"],
        help="merge the small shards of many appends",
        description="Merge the small shards of a corpus that has grown by many "
        "appends. Tokens, documents, columns and versions stay the same, so a run "
        "that began with any version resumes. Verifies every block, "
        "commits, and then deletes the merged files. A program that has the corpus "
        "open may stop, with the error that a file is missing; start it again.",
    )
    compact.add_argument(
        "corpus",
        metavar="CORPUS",
        help="a folder, a pattern such as wiki_*.rox, or a URL of one",
    )
    compact.add_argument(
        "--max-shard-bytes",
        type=size,
        metavar="BYTES",
        default=FULL_SHARD_BYTES,
        help="largest size of a merged shard (default: 1G)",
    )


def _add_repair(commands: Any) -> None:
    repair = commands.add_parser(
        "repair",
        examples=["web_00003.rox --from s3://bucket/web/web_00003.rox"],
        help="replace a damaged shard by a copy of it",
        description="Replace a damaged shard by a copy of it. Fetches the copy, "
        "verifies it against the digest that the shard records, and renames it to the "
        "shard. Changes nothing if no block is damaged, or if the copy is damaged too. "
        "Restart programs that have the shard open, because they read the old file.",
    )
    repair.add_argument("shard", metavar="SHARD", help="the damaged file")
    repair.add_argument(
        "--from",
        required=True,
        dest="copy",
        metavar="COPY",
        help="the copy of SHARD: a file or a URL",
    )


def _add_max_shard_bytes(parser: Any) -> None:
    parser.add_argument(
        "--max-shard-bytes",
        type=size,
        metavar="BYTES",
        help="largest size of a shard, such as 1G; a larger document has a shard of "
        "its own (default: no limit)",
    )
