"""`roxxel export`: writes the model of a run as a folder for transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from roxxel_ckpt.locations import split_step
from roxxel_format.texts import TEMPLATE_FILE, TOKENIZER_FILE
from roxxel_store.screen import say
from roxxel_train import RunFolderError

from roxxel.cli._runs import (
    add_run_arguments,
    add_trust_argument,
    codec_of_run,
    ends_of,
    model_of,
    opened,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from roxxel_format import TokenReader

    from roxxel.models import Llama
    from roxxel.runs.run import Run

DESCRIPTION = """\
Write the model of a run as a folder that the library transformers loads:
AutoModelForCausalLM.from_pretrained(FOLDER) has the same logits. The folder gets
weights, config.json, generation_config.json and the tokenizer's files. RUN@STEP
takes the checkpoint of a step, RUN the newest one. If the run averages its
weights, the average is written. For a model of your own, `roxxel ckpt export`
writes the weights alone.
"""

EXAMPLES = ["runs/first exported"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, has_step=True)
    add_trust_argument(parser)
    parser.add_argument("folder", metavar="FOLDER", help="a folder, new or empty")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="type of the weights (default: %(default)s, as trained)",
    )


def run(options: argparse.Namespace) -> None:
    """Write the folder, and print what is in it."""
    options.run, step = split_step(options.run)
    of_run = opened(options)
    model = model_of(of_run, step, options)

    from roxxel.models import Llama
    from roxxel.models.huggingface import export_model

    if not isinstance(model, Llama):
        raise RunFolderError(
            f"{options.run}: its model is a {type(model).__name__}, which is no class "
            "of transformers; export the weights alone by `roxxel ckpt export`"
        )
    tokenizer = _tokenizer(of_run, model, options)
    config = model.config
    if config.eos_token_id is None and tokenizer.ends:
        end = tokenizer.ends[0] if len(tokenizer.ends) == 1 else tokenizer.ends
        config = replace(config, eos_token_id=end)
    if config.bos_token_id is None and tokenizer.before:
        config = replace(config, bos_token_id=tokenizer.before[0])
    model.config, files = config, tokenizer.files
    try:
        export_model(model, options.folder, dtype=options.dtype, tokenizer=files)
    except (ValueError, ModuleNotFoundError) as error:
        raise RunFolderError(f"{options.run}: {error}") from error
    count = model.config.num_parameters
    if options.json:
        facts = {"folder": options.folder, "parameters": count}
        facts |= {"dtype": options.dtype, "has_tokenizer": bool(files)}
        say(json.dumps(facts))
        return
    say(f"{options.folder}: {count:,} parameters in {options.dtype}, {tokenizer.note}")


class _Tokenizer(NamedTuple):
    """Facts about text in the folder: the tokenizer's files, how documents end."""

    note: str
    ends: tuple[int, ...] = ()
    before: Sequence[int] = ()
    files: Mapping[str, str] = MappingProxyType({})


def _tokenizer(of_run: Run, model: Llama, options: argparse.Namespace) -> _Tokenizer:
    from roxxel.models.tokenizer_files import byte_definition, tokenizer_files

    corpora: Mapping[str, TokenReader] = {}
    try:
        corpora = of_run.corpora()
        codec = codec_of_run(corpora, options)
        ends = tuple(ends_of(corpora, model, codec))
        before = codec.before
        found = {**_kept_files(corpora), **codec.files}
        recorded = [x.tokenizer for x in corpora.values() if x.tokenizer is not None]
        if not found and all(x.startswith("bytes") for x in recorded):
            found = {TOKENIZER_FILE: byte_definition(has_end=bool(recorded))}
        if TOKENIZER_FILE not in found:
            note = "without a tokenizer, because transformers has no form of it"
            return _Tokenizer(note, ends, before)
        files = tokenizer_files(found, before, ends, model.config.vocab_size)
    except (ValueError, OSError) as error:
        ends = tuple(ends_of(corpora, model, None))
        return _Tokenizer(f"without a tokenizer, because {error}", ends)
    note = f"with the tokenizer ({', '.join(sorted(files))})"
    return _Tokenizer(note, ends, before, files)


def _kept_files(corpora: Mapping[str, TokenReader]) -> dict[str, str]:
    """Return the files of the tokenizers that all sources keep.

    The sources share one `tokenizer.json`, but only chats have a template.

    Raises:
        RunFolderError: Two sources were rendered by different templates.
    """
    found: dict[str, str] = {}
    for name, corpus in corpora.items():
        files = corpus.tokenizer_files
        template = files.get(TEMPLATE_FILE)
        if template is not None and found.get(TEMPLATE_FILE, template) != template:
            raise RunFolderError(
                f"source {name!r} has another chat template than a source before it; "
                "pass the tokenizer with the template that you want by --tokenizer"
            )
        found = {**files, **found}
    return found
