"""The arguments of the command `roxxel-format`, and their help."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from roxxel_format._prepare.formats import FORMATS
from roxxel_format._prepare.units import UNIT_BYTES
from roxxel_format._version import __version__
from roxxel_format._write.options import Separator
from roxxel_format.cli import values
from roxxel_format.foreign import FOREIGN_FORMATS

_EXIST = ("keep", "replace", "append", "error")


def parser(prog: str) -> ArgumentParser:
    """Return the parser, which stores the name of the command as `command`."""
    found = ArgumentParser(
        prog=prog,
        description="Write, inspect and check corpora of .rox shards.",
        epilog="exit codes: 0 done, 1 error, 2 wrong arguments, 3 damage found",
    )
    found.set_defaults(prog=prog)
    found.add_argument("--version", action="version", version=__version__)
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_write(commands)
    _add_readers(commands)
    _add_split(commands)
    copy = commands.add_parser(
        "copy",
        help="copy a corpus between folders and buckets, or from another format",
        description="Copy a corpus with its versions and columns. Verifies every "
        "block, and commits last. Run the same command again to continue an "
        "interrupted copy, or to bring a copy up to date. Tokens of another program "
        "(nanoGPT, llm.c, OLMo, Megatron, datatrove) become shards with documents.",
    )
    copy.add_argument("source", help="a file, a folder, a pattern, or a URL of these")
    copy.add_argument("target", help="a folder or a pattern, or a URL of one")
    copy.add_argument(
        "--exist",
        choices=("error", "replace"),
        default="error",
        help="if the target is another corpus: replace it, or stop; default: error",
    )
    foreign = copy.add_argument_group("from another format")
    foreign.add_argument(
        "--format",
        choices=FOREIGN_FORMATS,
        help="the source's format; default: by its name and its first bytes",
    )
    foreign.add_argument(
        "--dtype", help="type of tokens without a header, such as uint16"
    )
    foreign.add_argument(
        "--offset",
        type=values.size,
        metavar="BYTES",
        help="bytes before the first token of each flat file; default: a header of "
        ".npy or llm.c, else 0",
    )
    foreign.add_argument(
        "--separator",
        type=values.separator,
        metavar="TOKEN",
        help="the token that ends each document, or its name in --tokenizer; none "
        "makes all tokens of flat files one document",
        default=Separator.OF_TOKENIZER,
    )
    foreign.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="the tokenizer of the tokens, to record it: tokenizer.json, its folder, "
        "or a Hugging Face name",
    )
    _add_max_shard_bytes(foreign)
    copy.set_defaults(usage_error=copy.error)
    _add_repair(commands)
    adopt = commands.add_parser(
        "adopt",
        help="make shards without a manifest a corpus",
        description="Verify the shards that a pattern or a folder names, and write the "
        "manifest that makes them a corpus. Use it if the manifest was lost, or if "
        "you wrote the shards yourself. The shards keep their names, and natural order "
        "decides: 2 comes before 10. Nothing is written if a shard is damaged, or if "
        "the shards differ in dtype, block size, separator or tokenizer.",
    )
    adopt.add_argument("corpus", help="a folder, or a pattern such as wiki_*.rox")
    clean = commands.add_parser(
        "clean",
        help="remove files of interrupted writes",
        description="Remove the files that interrupted writes of a corpus left: hidden "
        "drafts; shards and columns of this corpus that its manifest does not list; "
        "the manifest of a first write that did not end; and lock files "
        "without a manifest. Files that the manifest lists, files that are not "
        "shards, and the plan and the finished units of a preparation that the same "
        "command would continue, stay. Prints each file, and removes nothing during a "
        "write.",
    )
    clean.add_argument("corpus", help="a file, a folder, or a pattern")
    clean.add_argument(
        "--abandon",
        action="store_true",
        help="abandon a preparation that is not committed: remove its plan and shards",
    )
    return found


def _add_readers(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        help="describe a corpus: sizes, dtype, versions",
        description="Describe a corpus: sizes, dtype, versions, columns, lengths of "
        "documents, and the input files.",
    )
    _add_corpus(info)
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.add_argument(
        "--no-lengths",
        action="store_true",
        help="omit the lengths of documents and the inputs, which every shard records",
    )
    verify = commands.add_parser(
        "verify",
        help="verify the checksum of every block",
        description="Verify the checksum of every block, and name each damaged block "
        "with its documents. Exit code 3 means damage.",
    )
    _add_corpus(verify)
    cat = commands.add_parser(
        "cat",
        help="print documents or tokens",
        description="Print all documents, some documents, or a range of tokens, as "
        "text or as ids.",
    )
    _add_corpus(cat)
    which = cat.add_mutually_exclusive_group()
    which.add_argument(
        "--document",
        action="append",
        metavar="I|NAME",
        help="a number, from 0; or a name of the column id, path or url, such as "
        "web/17. Put id= before a name of digits",
    )
    which.add_argument(
        "--tokens",
        type=values.span,
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
        help="tokenizer.json, its folder, or a Hugging Face name; default: the "
        "recorded one",
    )
    cat.add_argument(
        "--width",
        type=values.positive,
        metavar="COLUMNS",
        help="wrap lines between words; default: the width of the terminal, and no "
        "wrapping into a file or a pipe",
    )
    export = commands.add_parser(
        "export",
        help="write all tokens into one flat file",
        description="Verify every block, and write all tokens into one flat file, for "
        "programs that do not read shards.",
    )
    _add_corpus(export)
    export.add_argument("output", help="a .npy file, or a .bin file without a header")
    export.add_argument("--force", action="store_true", help="replace the output")


def _add_corpus(parser: ArgumentParser) -> None:
    parser.add_argument(
        "corpus",
        nargs="+",
        help="a file, a folder, a pattern, or a URL of these; or several shards",
    )


def _add_repair(commands: Any) -> None:
    repair = commands.add_parser(
        "repair",
        help="replace the damaged blocks of a shard by those of a copy",
        description="Replace the damaged blocks of a shard by those of a copy of the "
        "shard, which must match the checksums that the shard records. Writes a new "
        "file, verifies its digest, and renames it to the shard. Changes nothing if "
        "no block is damaged, or if the copy of a damaged block is damaged too. "
        "Restart programs that have the shard open, because they read the old file.",
    )
    repair.add_argument("shard", help="a file")
    repair.add_argument(
        "--from", required=True, dest="copy", metavar="COPY", help="a file or a URL"
    )


def _add_split(commands: Any) -> None:
    split = commands.add_parser(
        "split",
        help="hold out a share of the documents",
        description="Write two corpora: a share of the documents, chosen by their "
        "content, and all others. Equal documents are on the same side.",
    )
    split.add_argument("corpus", help="the corpus to divide, which does not change")
    split.add_argument("kept", help="path of the corpus of all other documents")
    split.add_argument("held_out", help="path of the corpus of held-out documents")
    split.add_argument(
        "--share",
        type=float,
        default=0.02,
        help="share of the documents to hold out, from 0 to 1; default: 0.02",
    )
    split.add_argument(
        "--salt", default="", help="changes which documents are held out"
    )
    split.add_argument(
        "--drop-columns",
        action="store_true",
        help="write both corpora without the columns of the source; default: an error "
        "if it has columns",
    )
    _add_max_shard_bytes(split)
    _add_exist(split)


def _add_write(commands: Any) -> None:
    write = commands.add_parser(
        "write",
        help="write documents into shards",
        description="Write the documents of files into a corpus. Readers see the "
        "corpus when all of it is written. Run the same command again to continue an "
        "interrupted write.",
    )
    _add_write_options(write)
    plan = commands.add_parser(
        "plan",
        help="print the units of a write, and write nothing",
        description="Print the units into which `write` divides these inputs: a unit "
        "is consecutive files, or a part of one large file. Takes the arguments of "
        "`write`, so that you can try a command before you run it.",
    )
    _add_write_options(plan)
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    commit = commands.add_parser(
        "commit",
        help="commit a corpus whose parts were written with --part",
        description="Commit a corpus when all members of `write --part` are done. "
        "Names the missing units if there are any, and then changes nothing.",
    )
    commit.add_argument("corpus", help="as for write")


def _add_write_options(write: ArgumentParser) -> None:
    write.add_argument(
        "corpus",
        help='a file ("wiki.rox"), a pattern ("wiki_*.rox"), or a folder ("wiki/")',
    )
    _add_inputs(write)
    separator = write.add_mutually_exclusive_group()
    separator.add_argument(
        "--separator",
        type=values.separator,
        default=Separator.OF_TOKENIZER,
        metavar="TOKEN",
        help="a token id, a token's name, or none; default: the end-of-text token of "
        "--tokenizer. Also divides shards of the first Roxxel into documents",
    )
    separator.add_argument(
        "--separator-bytes",
        type=values.byte_string,
        dest="separator",
        default=Separator.OF_TOKENIZER,
        metavar="TEXT",
        help=r"text with the escapes \n, \t, \r, \\ and \xNN, such as '\n\n'",
    )
    write.add_argument(
        "--dtype",
        help="type of a token on the disk; default: uint16 or uint32, whichever holds "
        "the vocabulary, and uint8 for bytes",
    )
    write.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="every token must be below N",
    )
    write.add_argument(
        "--block-size",
        type=values.size,
        default=4096,
        metavar="BYTES",
        help="bytes that one checksum covers, a power of two; default: 4096",
    )
    _add_max_shard_bytes(write)
    write.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, its folder, a Hugging Face name, or bytes: the UTF-8 "
        "bytes of a text, then token 256; default: the bytes alone",
    )
    write.add_argument(
        "--special-tokens",
        action="store_true",
        help="encode names of special tokens in texts as special tokens",
    )
    write.add_argument(
        "--prompt",
        metavar="FIELD",
        help="field of prompts; with --completion. A document is a prompt and its "
        "completion, and the column loss_mask is 0 on the prompt",
    )
    write.add_argument("--completion", metavar="FIELD", help="field of completions")
    write.add_argument(
        "--id", metavar="FIELD", help="field of ids; documents keep them in a column id"
    )
    write.add_argument(
        "--path",
        action="store_true",
        help="keep the path of each document's file in a column path, relative to the "
        "folder of all inputs",
    )
    runners = write.add_mutually_exclusive_group()
    runners.add_argument(
        "--workers",
        type=values.positive,
        default=1,
        metavar="N",
        help="write units in N processes; default: 1",
    )
    runners.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="write units as tasks of the Ray cluster at ADDRESS; default: "
        "RAY_ADDRESS, or this machine",
    )
    write.add_argument(
        "--part",
        type=values.part,
        metavar="I/N",
        help="write the share of member I (from 0) of N, and do not commit; then run "
        "the command `commit`",
    )
    write.add_argument(
        "--split",
        type=values.split,
        metavar="NAME=SHARE",
        help="hold out this share of the documents, chosen by their content, in a "
        "second corpus: valid=0.001 holds out wiki_valid_*.rox of wiki_*.rox",
    )
    write.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="shuffle the units, and the documents in each; not a global shuffle",
    )
    write.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out damaged documents, and damaged files from the damage on, and "
        "list them; default: an error",
    )
    _add_exist(write)
    write.set_defaults(usage_error=write.error)


def _add_max_shard_bytes(parser: Any) -> None:
    parser.add_argument(
        "--max-shard-bytes",
        type=values.size,
        metavar="BYTES",
        help="largest size of a shard, such as 1G; default: no limit",
    )


def _add_exist(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--exist",
        choices=_EXIST,
        default="keep",
        help="if the corpus exists: keep it if the same command wrote it, replace "
        "it, append a new version, or stop; default: keep",
    )


def _add_inputs(parser: ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="+",
        help="files, folders, patterns, or URLs of these; - is the standard input",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        metavar="FORMAT",
        help=f"one of {', '.join(FORMATS)}; default: that of each file's name, which "
        "its first bytes must confirm",
    )
    parser.add_argument(
        "--field",
        help="field of JSON objects, or column of a table, that holds the documents; "
        "default: text",
    )
    parser.add_argument(
        "--unit-bytes",
        type=values.size,
        default=UNIT_BYTES,
        metavar="BYTES",
        help="minimum size of the inputs of a unit; default: 64M",
    )
