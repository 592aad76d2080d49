"""Arguments of the commands that read a run and its corpora.

`run` is the run as the user named it, for messages, and `tokenizer` as for `Tokenizer`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from roxxel_format import Roxxel
from roxxel_format.naming import documents_at
from roxxel_store.command import Progress, as_text, positive
from roxxel_train import RunFolderError

from roxxel.runs.run import open_run
from roxxel.runs.search import search

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from roxxel_format import TokenReader
    from roxxel_format.texts import TextCodec

    from roxxel.runs.run import Run
    from roxxel.runs.search import Found


def document_named(text: str) -> str:
    """Parse `SOURCE:N` or `SOURCE:NAME`."""
    if not all(text.partition(":")):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not SOURCE:N, such as web:123, nor SOURCE:NAME"
        )
    return text


def _named_path(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, path


RunName = Annotated[str, "folder of a run, or its URL: the save_path"]
RunAtStep = Annotated[
    str,
    "RUN[@STEP]",
    "folder of a run, or its URL: the save_path; @STEP takes an older checkpoint",
]
Sources = Sequence[
    Annotated[
        tuple[str, str],
        _named_path,
        "NAME=PATH",
        "where a source is now, if it moved since the run opened it; repeatable",
    ]
]
Tokenizer = Annotated[
    str | None,
    "PATH",
    "tokenizer of the corpora (default: the one that is kept with them)",
]
Model = Annotated[
    str | None,
    "MODULE:FUNCTION",
    "function that returns the model, looked for in the working folder first; needed "
    "if a program without a config trained a model that is not of roxxel.models",
]
Trust = Annotated[
    bool,
    "run the model's code even if it lies in RUN, in an installed package or in Python "
    "itself: whoever made the folder can then do whatever you can",
]
Context = Annotated[
    int | None,
    positive,
    "N",
    "most tokens that the model takes (default: what its config says)",
]
Documents = Sequence[Annotated[str, document_named, "SOURCE:N[,N...]|NAME"]]
Texts = Sequence[Annotated[str, as_text, "TEXT"]]


def opened(run: str, source: Sources, *, trust: bool = False) -> Run:
    """Return the run of the arguments."""
    with Progress(f"reading {run}"):
        return open_run(run, dict(source), trust=trust)


def model_of(of_run: Run, step: int | None, model: str | None) -> Any:
    """Return the model of a run, made by `--model` if it is given.

    Raises:
        RunFolderError: The function does not exist, or the run has no checkpoint.
    """
    if model is None:
        return of_run.model(step)
    name, _, function = model.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        make = getattr(importlib.import_module(name), function)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise RunFolderError(
            f"--model {model}: {error}; give MODULE:FUNCTION, such as tiny:make"
        ) from error
    finally:
        sys.path.remove(folder)
    made = make()
    return of_run.model(step, made[0] if isinstance(made, tuple) else made)


def codec_of(
    source: str,
    corpus: TokenReader,
    run: str,
    tokenizer: str | None,
    *,
    special_tokens: bool | None = None,
) -> TextCodec:
    """Return the codec of a source's text; `special_tokens` as for `text_codec`.

    Raises:
        RunFolderError: The source's tokenizer is unknown or cannot be loaded.
    """
    from roxxel_format.texts import text_codec

    try:
        codec = text_codec(corpus, tokenizer, special_tokens=special_tokens)
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise RunFolderError(
            f"{run}: the tokenizer of source {source!r} cannot be loaded "
            f"({error}); pass --tokenizer PATH"
        ) from error
    if codec is None:
        raise RunFolderError(
            f"{run}: source {source!r} records no tokenizer; pass --tokenizer PATH"
        )
    return codec


def codec_of_run(
    corpora: Mapping[str, TokenReader],
    run: str,
    tokenizer: str | None,
    *,
    special_tokens: bool | None = None,
) -> TextCodec:
    """Return the codec of the first source that records a tokenizer.

    The sources of a run share one tokenizer: a curriculum refuses others.

    Raises:
        RunFolderError: No tokenizer is known, or it cannot be loaded.
    """
    recorded = (name for name, corpus in corpora.items() if corpus.tokenizer)
    name = next(recorded, next(iter(corpora)))  # The primary is first.
    return codec_of(name, corpora[name], run, tokenizer, special_tokens=special_tokens)


def ends_of(
    corpora: Mapping[str, TokenReader], model: Any, codec: TextCodec | None
) -> dict[int, str]:
    """Return every token that ends a document, and the source or model that says so.

    The tokenizer's token after a text counts if no source records a separator of one
    token. Without such a token either, the model's own tokens count.
    """
    found: dict[int, str] = {}
    for name, corpus in corpora.items():
        separator = corpus.separator
        if len(separator) == 1:
            found.setdefault(separator[0], f"source {name!r}")
    if codec is not None and codec.after and not found:
        found[codec.after[-1]] = "the tokenizer"
    own = getattr(getattr(model, "config", None), "end_tokens", ())
    return found or dict.fromkeys(own, "the model")


def one_end(ends: Mapping[int, str], why: str, run: str) -> int:
    """Return the one token that ends documents; `why` says why there must be one.

    Raises:
        RunFolderError: There is none, or the sources disagree.
    """
    if len(ends) == 1:
        return next(iter(ends))
    named = " and ".join(f"token {token} in {who}" for token, who in ends.items())
    found = f"documents end with {named}" if ends else "no token ends its documents"
    raise RunFolderError(
        f"{run}: {found}, but {why}; write the corpora with one separator"
    )


def documents_of(
    text: str, corpora: Mapping[str, TokenReader], run: str
) -> tuple[str, Sequence[int]]:
    """Return the source and the documents that `SOURCE:N` or `SOURCE:NAME` names."""
    name, document = _split(text, [*corpora])
    corpus = named_source(name, corpora, run)
    if not isinstance(corpus, Roxxel):
        raise RunFolderError(
            f"{run}: source {name!r} is a {type(corpus).__name__}, in "
            "which documents have no numbers; give --tokens"
        )
    try:
        return name, documents_at(corpus, document)
    except (IndexError, ValueError) as error:
        raise RunFolderError(f"{run}: source {name!r}: {error}") from error


def named_source(
    name: str, corpora: Mapping[str, TokenReader], run: str
) -> TokenReader:
    """Return the corpus of a source."""
    if name not in corpora:
        raise RunFolderError(
            f"{run}: the run has no source {name!r}; "
            f"its sources are {', '.join(map(repr, corpora))}"
        )
    return corpora[name]


def found_in(
    corpora: Mapping[str, TokenReader],
    wanted: str | Sequence[int],
    run: str,
    tokenizer: str | None,
) -> Iterator[tuple[str, Iterator[Found]]]:
    """Yield each source, and the places of a text or of ids in it, in groups.

    Raises:
        RunFolderError: The text is empty, or a source's tokenizer is unknown.
    """
    if not len(wanted):
        raise RunFolderError("--text is empty; give a text to find")
    for name, corpus in corpora.items():
        is_text = isinstance(wanted, str)
        codec = codec_of(name, corpus, run, tokenizer) if is_text else None
        with Progress(f"searching {name}") as progress:
            shown = partial(_share_of, progress, corpus.num_tokens)
            yield name, search(corpus, wanted, codec, shown)


def chosen_documents(
    corpora: Mapping[str, TokenReader],
    named: Sequence[str],
    texts: Sequence[str],
    run: str,
    tokenizer: str | None,
) -> dict[str, list[Any]]:
    """Return, by source, the documents that arguments name or that contain texts.

    `named` has items `SOURCE:N[,N...]` or `SOURCE:NAME`.

    Raises:
        RunFolderError: There is no such document, or no document contains a text.
    """
    found: dict[str, list[Any]] = {}
    for text in named:
        head, *more = text.split(",")
        if not all(each.isdecimal() for each in [head.rpartition(":")[2], *more]):
            head, more = text, []  # A name may hold commas.
        source, numbers = documents_of(head, corpora, run)
        found.setdefault(source, []).extend([*numbers, *map(int, more)])
    for text in texts:
        holding = {
            source: {int(number) for part in parts for number in part.documents}
            for source, parts in found_in(corpora, text, run, tokenizer)
        }
        if not any(holding.values()):
            raise RunFolderError(
                f"{run}: no source of the run holds the text {text!r} "
                f"{searched_words(corpora)}"
            )
        for source, numbers in holding.items():
            found.setdefault(source, []).extend(sorted(numbers))
    return found


def searched_words(corpora: Iterable[str]) -> str:
    """Describe what was searched, for a text that no source contains."""
    return (
        f"(searched: {', '.join(corpora)}; exactly, in the text that `roxxel format "
        "cat` prints, so spaces, capitals, and whether an accent is a character of its "
        "own count)"
    )


def _share_of(progress: Progress, num_tokens: int, num_searched: int) -> None:
    progress(num_searched, num_tokens)


def _split(text: str, sources: Iterable[str]) -> tuple[str, str]:
    """Return source and document of `SOURCE:DOCUMENT`; both may contain colons."""
    names = sorted(sources, key=len, reverse=True)
    source = next((name for name in names if text.startswith(f"{name}:")), None)
    if source is None:
        source = text.partition(":")[0]
    return source, text[len(source) + 1 :]
