"""Arguments of the commands that read a run and its corpora."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format.naming import named
from roxxel_store.command import Progress
from roxxel_train import RunFolderError

from roxxel.run import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_format import TokenReader
    from roxxel_format.texts import TextCodec

    from roxxel.run import Run


def add_run_arguments(
    parser: argparse.ArgumentParser, *, reads_text: bool = True
) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="folder of a run, or its URL: the save_path"
    )
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        type=_named_path,
        metavar="NAME=PATH",
        help="where a source is now, if it moved since the run opened it; repeatable",
    )
    if reads_text:
        parser.add_argument(
            "--tokenizer",
            metavar="PATH",
            help="tokenizer of the corpora (default: the recorded one)",
        )
    parser.add_argument("--json", action="store_true", help="print JSON")


def split_step(text: str) -> tuple[str, int | None]:
    """Return the run and the step of `RUN@STEP`, or the run and None of `RUN`."""
    run, at, digits = text.rpartition("@")
    names_step = bool(run) and bool(at) and digits.isdecimal()
    if names_step and not Path(text).exists():
        return run, int(digits)
    return text, None


def opened(options: argparse.Namespace) -> Run:
    """Return the run of the arguments."""
    with Progress(f"reading {options.run}"):
        return open_run(options.run, dict(options.source))


def codec_of(
    source: str, corpus: TokenReader, options: argparse.Namespace
) -> TextCodec:
    """Return the codec of a source's text.

    Raises:
        RunFolderError: The source's tokenizer is unknown or cannot be loaded.
    """
    from roxxel_format import Roxxel
    from roxxel_format.texts import text_codec

    try:
        codec = (
            text_codec(corpus, options.tokenizer)
            if isinstance(corpus, Roxxel)
            else None
        )
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise RunFolderError(
            f"{options.run}: the tokenizer of source {source!r} cannot be loaded "
            f"({error}); pass --tokenizer PATH"
        ) from error
    if codec is None:
        raise RunFolderError(
            f"{options.run}: source {source!r} records no tokenizer; "
            "pass --tokenizer PATH"
        )
    return codec


def named_documents(corpus: TokenReader, numbers: Sequence[int]) -> str:
    """Return documents with their ids or paths: `documents 3 (a:3), 4 (a:4)`."""
    listed = ", ".join(f"{number}{named(corpus, number)}" for number in numbers)
    return f"document{'s' * (len(numbers) != 1)} {listed}"


def _named_path(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, path
