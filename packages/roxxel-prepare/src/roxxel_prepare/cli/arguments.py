"""The arguments of the command `roxxel-prepare`, and their help."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, get_args

from roxxel_format import TokenizerBackend
from roxxel_format.writing import Exist, Separator
from roxxel_store.command import (
    CommandParser,
    as_text,
    positive,
    size,
)

from roxxel_prepare._inputs.formats import FORMATS
from roxxel_prepare._plan.units import UNIT_BYTES
from roxxel_prepare._run.runners import num_cores
from roxxel_prepare._scan.grams import NGRAM
from roxxel_prepare._version import __version__
from roxxel_prepare.cli import values


def parser(prog: str) -> CommandParser:
    """Return the parser, which stores the name of the command as `command`."""
    found = CommandParser(
        prog=prog,
        description="Turn files of text or tokens into corpora of .rox shards.",
    )
    found.set_defaults(prog=prog)
    version = f"roxxel-prepare {__version__}"
    found.add_argument("--version", action="version", version=version)
    commands = found.add_commands()
    _add_write(commands)
    _add_scan(commands)
    return found


def _add_scan(commands: Any) -> None:
    scan = commands.add_parser(
        "scan",
        examples=["'web_*.rox' --against exam.jsonl"],
        help="find the text of evaluation sets in a corpus",
        description="Find the text of evaluation sets in a corpus, however it is "
        "spelled, and list its tokens in a receipt. Name the receipt under [without] "
        "of a config, and no step reads them. Run the same command again to continue "
        "an interrupted scan.",
    )
    scan.add_argument("corpus", metavar="CORPUS", help="the corpus, as for write")
    _add_against(scan, is_required=True)
    scan.add_argument(
        "--out",
        metavar="FILE",
        help="the receipt (default: wiki_scan.json for wiki_*.rox, in this folder)",
    )
    scan.add_argument(
        "--ngram",
        type=positive,
        default=NGRAM,
        metavar="N",
        help="number of words in a row that must be equal (default: %(default)s)",
    )
    scan.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer of the corpus (default: the one that is kept with it)",
    )
    _add_runners(
        scan,
        "then run the command without --part, which writes the receipt",
    )
    _add_unit_bytes(scan)


def _add_against(parser: Any, *, is_required: bool = False) -> None:
    parser.add_argument(
        "--against",
        action="append",
        required=is_required,
        default=None if is_required else [],
        metavar="EVALS",
        help="evaluation sets: a file, folder, pattern, URL or corpus; every text in "
        "every field is searched; repeatable"
        + (
            "" if is_required else ". Searches the corpus after the write, as scan does"
        ),
    )


def _add_write(commands: Any) -> None:
    write = commands.add_parser(
        "write",
        examples=[
            "'web_*.rox' texts/ --tokenizer gpt2 --split valid=0.001",
            "'web_*.rox' --commit",
            "'train_*.rox' 'web_*.rox' --split valid=0.01",
        ],
        help="write documents into shards",
        description="Write the documents of files into a corpus. Readers see the "
        "corpus when all of it is written. Run the same command again to continue an "
        "interrupted write.",
    )
    write.add_argument(
        "corpus",
        metavar="CORPUS",
        help='a file ("wiki.rox"), a pattern ("wiki_*.rox"), a folder ("wiki/"), or a '
        "URL of a pattern or a folder",
    )
    inputs = write.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        default=[],
        help="files, folders, patterns, or URLs of these; - is the standard input. "
        "With --split, also a corpus to divide, such as web_*.rox",
    )
    _add_inputs(write.add_argument_group("documents"))
    _add_tokens(write.add_argument_group("tokens"))
    _add_shards(write.add_argument_group("shards"))
    work = write.add_argument_group("work")
    _add_runners(work, "then pass --commit")
    work.add_argument(
        "--commit",
        action=partial(_Commit, inputs),
        nargs=0,
        default=False,
        help="commit CORPUS when all members of --part are done; name the missing "
        "units if there are any, and then change nothing. Takes no INPUT",
    )
    _add_unit_bytes(work)
    work.add_argument(
        "--dry-run",
        action="store_true",
        help="print the units of the inputs (consecutive files, or a part of one large "
        "file), and write nothing",
    )
    _add_against(work)
    write.set_defaults(usage_error=write.error, default_of=write.get_default)


class _Commit(argparse.Action):
    """The option `--commit`, which needs no inputs."""

    def __init__(self, inputs: argparse.Action, **settings: Any) -> None:
        super().__init__(**settings)
        self._inputs = inputs

    def __call__(self, _: object, namespace: argparse.Namespace, *__: object) -> None:
        """Let the parser accept a command line without inputs."""
        namespace.commit = True
        self._inputs.required = False


def _add_inputs(group: Any) -> None:
    group.add_argument(
        "--format",
        choices=FORMATS,
        metavar="FORMAT",
        help=f"one of {', '.join(FORMATS)} (default: that of each file's name, which "
        "its first bytes must confirm)",
    )
    group.add_argument(
        "--field",
        type=as_text,
        help="field of JSON objects, or column of a table, that holds the documents "
        "(default: text, and messages with --chat)",
    )
    group.add_argument(
        "--prompt",
        type=as_text,
        metavar="FIELD",
        help="field of prompts; with --completion. A document is a prompt and its "
        "completion, and the column loss_mask is 0 on the prompt",
    )
    group.add_argument(
        "--completion",
        type=as_text,
        metavar="FIELD",
        help="field of completions; with --prompt",
    )
    chats = group.add_mutually_exclusive_group()
    chats.add_argument(
        "--chat",
        action="store_true",
        help="documents are chats: lists of messages in the field messages, or in "
        "--field. The chat template of --tokenizer renders them, and the column "
        "loss_mask is 1 on what the assistant says",
    )
    chats.add_argument(
        "--chat-template",
        dest="chat",
        metavar="PATH",
        help="as --chat, with the template in this file",
    )
    group.add_argument(
        "--id",
        type=as_text,
        metavar="FIELD",
        help="field of ids; documents keep them in a column id",
    )
    group.add_argument(
        "--path",
        action="store_true",
        help="keep the path of each document's file in a column path, relative to the "
        "folder of all inputs",
    )
    group.add_argument(
        "--without-columns",
        type=values.names,
        default=(),
        metavar="NAME,NAME,...",
        help="columns of the corpus for which an append brings no values, so that they "
        "cannot be read until Roxxel(...).write_column writes them (default: an error)",
    )
    group.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out damaged documents, and damaged files from the damage on, and "
        "list them (default: an error)",
    )
    group.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="shuffle the units, and the documents in each; not a global shuffle",
    )


def _add_tokens(group: Any) -> None:
    group.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, its folder, a Hugging Face name, or bytes: the UTF-8 "
        "bytes of a text, then token 256 (default: the bytes alone, with nothing that "
        "ends a document). The corpus keeps it",
    )
    group.add_argument(
        "--tokenizer-backend",
        choices=get_args(TokenizerBackend),
        default="auto",
        help="what encodes, with the same ids (default: auto, which is fastokens where "
        "the extra fast is installed and it can encode with this tokenizer)",
    )
    group.add_argument(
        "--special-tokens",
        action="store_true",
        help="encode names of special tokens in texts as special tokens",
    )
    separator = group.add_mutually_exclusive_group()
    separator.add_argument(
        "--separator",
        type=Separator.parse,
        default=Separator.OF_TOKENIZER,
        metavar="TOKEN",
        help="a token id, a token's name, or none (default: the end-of-text token of "
        "--tokenizer)",
    )
    separator.add_argument(
        "--separator-bytes",
        type=values.byte_string,
        dest="separator",
        default=Separator.OF_TOKENIZER,
        metavar="TEXT",
        help=r"the separator as a text with the escapes \n, \t, \r, \\ and \xNN, such "
        r"as '\n\n'",
    )
    group.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="type of a token on the disk (default: uint16 or uint32, whichever holds "
        "the vocabulary, and uint8 for bytes)",
    )
    group.add_argument(
        "--vocab-size",
        type=positive,
        metavar="N",
        help="every token must be below N, which chooses the dtype too (default: as "
        "the tokenizer says, or what the dtype holds)",
    )


def _add_shards(group: Any) -> None:
    group.add_argument(
        "--exist",
        choices=get_args(Exist),
        default="keep",
        help="if the corpus exists: keep it if the same command wrote it, replace "
        "it, append a new version, or stop (default: keep)",
    )
    group.add_argument(
        "--split",
        type=values.split,
        metavar="NAME=SHARE",
        help="hold out this share of the documents, chosen by their content, in a "
        "second corpus: valid=0.001 holds out wiki_valid_*.rox of wiki_*.rox",
    )
    group.add_argument(
        "--max-shard-bytes",
        type=size,
        metavar="BYTES",
        help="largest size of a shard, such as 1G; a larger document has a shard of "
        "its own (default: no limit)",
    )
    packing = group.add_mutually_exclusive_group()
    packing.add_argument(
        "--pack",
        type=positive,
        metavar="T",
        help="put documents whole into bins of T tokens, so that sequences of T tokens "
        "cut none but those that are longer (default: documents stay in their order)",
    )
    packing.add_argument(
        "--bucket-by-length",
        type=values.lengths,
        metavar="T,T,...",
        help="write a packed corpus for each of these lengths: 513,4097 writes "
        "wiki_513_*.rox of wiki_*.rox with the documents of up to 513 tokens, and "
        "wiki_4097_*.rox with all longer ones",
    )
    group.add_argument(
        "--block-size",
        type=size,
        default=4096,
        metavar="BYTES",
        help="bytes that one checksum covers, a power of two (default: 4096)",
    )


def _add_runners(parser: Any, then: str) -> None:
    runners = parser.add_mutually_exclusive_group()
    runners.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="run units in N processes (default: one for each 64 MiB, and "
        f"at most one for each usable core, {num_cores()} here)",
    )
    runners.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run units as tasks of the Ray cluster at ADDRESS (default: "
        "RAY_ADDRESS, or this machine)",
    )
    parser.add_argument(
        "--part",
        type=values.part,
        metavar="I/N",
        help=f"do the share of member I (from 0) of N; {then}",
    )


def _add_unit_bytes(parser: Any) -> None:
    parser.add_argument(
        "--unit-bytes",
        type=size,
        default=UNIT_BYTES,
        metavar="BYTES",
        help="minimum size of the inputs of a unit (default: 64M)",
    )
