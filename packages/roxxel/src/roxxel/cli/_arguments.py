"""Arguments that several commands share, and what they name."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from roxxel_format import Roxxel
from roxxel_format.naming import documents_at
from roxxel_format.scans import Scan
from roxxel_store.command import Found, Progress, as_text, positive
from roxxel_store.screen import note, say
from roxxel_store.urls import absolute
from roxxel_train import RunFolderError

from roxxel.config import load_config
from roxxel.runs.run import open_run
from roxxel.runs.search import search

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from roxxel_format import TokenReader
    from roxxel_format.texts import TextCodec

    from roxxel.config import RunConfig
    from roxxel.runs.run import Run
    from roxxel.runs.search import Found as Places


BRANCH = "trainer.branch_from="
"""`--branch FOLDER` stands for the config change `trainer.branch_from=FOLDER`."""


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


AtLeast1 = Annotated[int, positive, "N"]
ConfigFile = Annotated[Path, "a TOML file"]
Changes = Sequence[
    Annotated[
        str,
        as_text,
        "KEY=VALUE",
        "replace a value of CONFIG, such as trainer.log_every=1, phases.0.steps=20 or "
        "save_path=runs/b; repeatable. Paths are relative to CONFIG",
    ]
]
Branch = Annotated[
    str | None,
    "RUN[@STEP]",
    "begin a new run, in the save_path of CONFIG, with the whole state of another run: "
    "its newest checkpoint, or that of STEP. A branch that has begun continues from "
    "its own checkpoints",
]
Json = Annotated[bool, "print JSON"]
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
        "where a source is now, if it moved since the run opened it; a held-out set is "
        "named as in the config: eval, or eval.NAME; repeatable",
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
Receipt = Annotated[Path | None, "RECEIPT"]
Scans = Sequence[
    Annotated[
        str,
        "RECEIPT",
        "also say which steps read what this receipt of `roxxel scan` lists; "
        "repeatable (default: the receipts under [without])",
    ]
]


CONFIG_EXAMPLE = """\
an example of a config file; its paths are relative to the file:
  model = "model:make"          # returns (model, optimizer, loss_fn)
  save_path = "runs/first"

  [sources]
  self = "data/web_*.rox"       # the primary corpus
  code = "data/code.rox"

  [[phases]]
  steps = 1000
  batch_size = 16
  seq_len = 1025
  weights = { self = 0.8, code = 0.2 }

all keys, with what they mean:
  python -m pydoc roxxel.config.RunConfig          # above the tables,
  python -m pydoc roxxel.Curriculum                # and those of the schedule
  python -m pydoc roxxel.Phase                     # [[phases]]
  python -m pydoc roxxel_train.config.TrainConfig  # [trainer]
  python -m pydoc roxxel.models.llama              # [model_args] of our model,
  python -m pydoc roxxel.models.LlamaConfig        # and its sizes
  python -m pydoc roxxel.config.MeshConfig         # [mesh]

"""


def config_of(
    config: Path, changes: Sequence[str], branch: str | None = None
) -> RunConfig:
    """Read the config of a command with its changes."""
    if branch is None:
        return load_config(config, changes)
    # A path on the command line is relative to the working directory.
    where = json.dumps(absolute(branch), ensure_ascii=False)
    return load_config(config, [*changes, BRANCH + where])


def set_again(changes: Iterable[str]) -> list[str]:
    """Return changes of a config as `--set` arguments."""
    return [argument for change in changes for argument in ("--set", change)]


def shown_command(*arguments: str) -> str:
    """Return a `roxxel` command line to copy, with `uv run` if the user used it."""
    # `uv run` sets this variable in the environment of its child.
    runner = ["uv", "run"] if os.environ.get("UV_RUN_RECURSION_DEPTH") else []
    return shlex.join([*runner, "roxxel", *arguments])


def opened(run: str, source: Sources, *, trust: bool = False) -> Run:
    """Return the run of the arguments."""
    with Progress(f"reading {run}"):
        return open_run(run, dict(source), trust=trust)


def model_of(run: Run, step: int | None, model: str | None) -> Any:
    """Return the model of a run, made by `--model` if it is given.

    Raises:
        RunFolderError: The function does not exist, or the run has no checkpoint.
    """
    if model is None:
        return run.model(step)
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
    return run.model(step, made[0] if isinstance(made, tuple) else made)


def codec_of(
    run: Run,
    source: str,
    tokenizer: str | None,
    *,
    special_tokens: bool | None = None,
) -> TextCodec:
    """Return the codec of a source's text; `special_tokens` as for `text_codec`.

    Raises:
        RunFolderError: The source's tokenizer is unknown or cannot be loaded.
    """
    from roxxel_format.texts import text_codec

    corpus = run.corpora()[source]
    try:
        codec = text_codec(corpus, tokenizer, special_tokens=special_tokens)
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise RunFolderError(
            f"{run.path}: the tokenizer of source {source!r} cannot be loaded "
            f"({error}); pass --tokenizer PATH"
        ) from error
    if codec is None:
        raise RunFolderError(
            f"{run.path}: source {source!r} records no tokenizer; pass --tokenizer PATH"
        )
    return codec


def codec_of_run(
    run: Run, tokenizer: str | None, *, special_tokens: bool | None = None
) -> TextCodec:
    """Return the codec of the first source that records a tokenizer.

    The sources of a run share one tokenizer: a curriculum refuses others.

    Raises:
        RunFolderError: No tokenizer is known, or it cannot be loaded.
    """
    corpora = run.corpora()
    recorded = (name for name, corpus in corpora.items() if corpus.tokenizer)
    name = next(recorded, next(iter(corpora)))  # The primary is first.
    return codec_of(run, name, tokenizer, special_tokens=special_tokens)


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


def check_one_end(run: Run, ends: Mapping[int, str], why: str) -> None:
    """Check that one token ends documents; `why` says why there must be one.

    Raises:
        RunFolderError: There is none, or the sources disagree.
    """
    if len(ends) == 1:
        return
    named = " and ".join(f"token {token} in {who}" for token, who in ends.items())
    found = f"documents end with {named}" if ends else "no token ends its documents"
    raise RunFolderError(
        f"{run.path}: {found}, but {why}; write the corpora with one separator"
    )


def documents_of(run: Run, text: str) -> tuple[str, Sequence[int]]:
    """Return the source and the documents that `SOURCE:N` or `SOURCE:NAME` names."""
    # Both may contain colons.
    names = sorted(run.corpora(), key=len, reverse=True)
    first = text.partition(":")[0]
    name = next((name for name in names if text.startswith(f"{name}:")), first)
    corpus, document = named_source(run, name), text[len(name) + 1 :]
    if not isinstance(corpus, Roxxel):
        raise RunFolderError(
            f"{run.path}: source {name!r} is a {type(corpus).__name__}, in "
            "which documents have no numbers; give --tokens"
        )
    try:
        return name, documents_at(corpus, document)
    except (IndexError, ValueError) as error:
        raise RunFolderError(f"{run.path}: source {name!r}: {error}") from error


def named_source(run: Run, name: str) -> TokenReader:
    """Return the corpus of a source."""
    corpora = run.corpora()
    if name not in corpora:
        raise RunFolderError(
            f"{run.path}: the run has no source {name!r}; "
            f"its sources are {', '.join(map(repr, corpora))}"
        )
    return corpora[name]


def found_in(
    run: Run, wanted: str | Sequence[int], tokenizer: str | None
) -> Iterator[tuple[str, Iterator[Places]]]:
    """Yield each source, and the places of a text or of ids in it, in groups.

    Raises:
        RunFolderError: The text is empty, or a source's tokenizer is unknown.
    """
    if not len(wanted):
        raise RunFolderError("--text is empty; give a text to find")
    for name, corpus in run.corpora().items():
        is_text = isinstance(wanted, str)
        codec = codec_of(run, name, tokenizer) if is_text else None
        with Progress(f"searching {name}") as progress:
            shown = partial(progress, total=corpus.num_tokens)
            yield name, search(corpus, wanted, codec, shown)


def chosen_documents(
    run: Run, named: Sequence[str], texts: Sequence[str], tokenizer: str | None
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
        source, numbers = documents_of(run, head)
        found.setdefault(source, []).extend([*numbers, *map(int, more)])
    for text in texts:
        holding = {
            source: {int(number) for part in parts for number in part.documents}
            for source, parts in found_in(run, text, tokenizer)
        }
        if not any(holding.values()):
            raise RunFolderError(
                f"{run.path}: no source of the run holds the text {text!r} "
                f"{searched_words(run)}"
            )
        for source, numbers in holding.items():
            found.setdefault(source, []).extend(sorted(numbers))
    return found


def searched_words(run: Run) -> str:
    """Describe what was searched, for a text that no source contains."""
    names = ", ".join(run.corpora())
    return (
        f"(searched: {names}; exactly, in the text that `roxxel format cat` prints, so "
        "spaces, capitals, and whether an accent is a character of its own count)"
    )


def scans_of(config: RunConfig | None, receipts: Sequence[str]) -> list[Scan]:
    """Return the receipts that a config withdraws, and those of the arguments.

    A run may have been copied without its receipts. Then a line says so.
    """
    found = [Scan.read(path) for path in receipts]
    if config is not None:
        try:
            declared = config.schedule.relative_to(config.folder).scans
        except FileNotFoundError as error:
            note(
                f"{error.filename}: is gone, so nothing is said of this scan; pass its "
                "receipt as --scan"
            )
            declared = {}
        found += [scan for scans in declared.values() for scan in scans]
    keys = [(scan.corpus, scan.evals.digest, scan.ngram) for scan in found]
    return [*dict(zip(keys, found, strict=True)).values()]


def check_alone(
    check: Path | None, run: str | None, given: Mapping[str, object]
) -> None:
    """Check that RUN or --check is given, and no option that a receipt contains.

    Raises:
        RunFolderError: Neither is given, or --check and one of `given`.
    """
    if check is None and run is None:
        raise RunFolderError("no run is given; give the folder of a run, or --check")
    for name, value in given.items():
        if check is not None and value:
            raise RunFolderError(
                f"{name} is given with --check, whose receipt says what is trained; "
                f"omit {name}"
            )


def say_checked(check: Path, unconfirmed: Sequence[str]) -> None:
    """Print the facts of a receipt that could not be confirmed, or that all were.

    Raises:
        Found: A fact could not be confirmed.
    """
    for line in unconfirmed:
        say(line)
    if unconfirmed:
        raise Found(
            f"{check}: other values came out here, as the lines above say; on "
            "another kind of device or release, compare the losses instead"
        )
    say(f"{check}: holds, bit for bit")
