"""`roxxel export`: writes the model of a run as a folder for transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from roxxel_ckpt.locations import split_step
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
    from collections.abc import Mapping

    from roxxel_format import TokenReader

    from roxxel.models import Llama
    from roxxel.run import Run

DESCRIPTION = """\
Write the model of a run as a folder that the library transformers loads:
AutoModelForCausalLM.from_pretrained(FOLDER) has the same logits. The folder gets
weights, config.json, generation_config.json and the tokenizer's files. RUN@STEP
takes the checkpoint of a step, RUN the newest one. If the run averages its
weights, the average is written. For a model of your own, `roxxel ckpt export`
writes the weights alone.
"""


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
    """Write the folder, and say what is in it."""
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
    ends, files, note = _tokenizer(of_run, model, options)
    if model.config.eos_token_id is None and ends:
        end = ends[0] if len(ends) == 1 else ends
        model.config = replace(model.config, eos_token_id=end)
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
    say(f"{options.folder}: {count:,} parameters in {options.dtype}, {note}")


def _tokenizer(
    of_run: Run, model: Llama, options: argparse.Namespace
) -> tuple[tuple[int, ...], Mapping[str, str], str]:
    """Return the tokens that end a document, the tokenizer's files, and a note."""
    from roxxel.models.tokenizer_files import byte_definition, tokenizer_files

    corpora: Mapping[str, TokenReader] = {}
    try:
        corpora = of_run.corpora()
        codec = codec_of_run(of_run, corpora, options)
    except RunFolderError as error:
        ends = tuple(ends_of(corpora, model, None))
        return ends, {}, f"without a tokenizer, because {error}"
    ends = tuple(ends_of(corpora, model, codec))
    definition = codec.definition
    recorded = [x.tokenizer for x in corpora.values() if x.tokenizer is not None]
    if definition is None and all(x.startswith("bytes") for x in recorded):
        definition = byte_definition(has_end=bool(recorded))
    if definition is None:
        return ends, {}, "without a tokenizer, because transformers has no form of it"
    first = ends[0] if ends else None
    return ends, tokenizer_files(definition, first), "with the tokenizer"
