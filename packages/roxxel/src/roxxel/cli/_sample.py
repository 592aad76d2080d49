"""`roxxel sample`: lets the model of a run continue a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from roxxel_ckpt.locations import split_step
from roxxel_store.command import as_text
from roxxel_store.screen import say
from roxxel_train import RunFolderError

from roxxel.cli._runs import (
    add_context_argument,
    add_run_arguments,
    add_trust_argument,
    codec_of_run,
    ends_of,
    model_of,
    one_end,
    opened,
)
from roxxel.cli._words import at_least_1

if TYPE_CHECKING:
    import argparse

    from roxxel.runs.run import Run

DESCRIPTION = """\
Let the model of a run continue a text, to see what it has learned. RUN@STEP
takes the checkpoint of a step, RUN the newest one. The text ends after --tokens
tokens, or where the model ends the document. The same arguments print the same
text.
"""

EXAMPLES = ["runs/first --prompt 'Once upon a time'"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, has_step=True)
    add_trust_argument(parser)
    parser.add_argument(
        "--prompt",
        type=as_text,
        required=True,
        metavar="TEXT",
        help="the text to continue, in which the name of a special token, such as "
        "<|im_start|>, is this token; '' begins a document",
    )
    add_sampling_arguments(parser)


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens",
        type=at_least_1,
        default=100,
        metavar="N",
        help="add at most N tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.7,
        metavar="T",
        help="0 always takes the likeliest token; 1 draws as the model predicts "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--top-k",
        type=at_least_1,
        metavar="K",
        help="draw only from the K likeliest tokens",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    add_context_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Print the prompt and its continuation."""
    options.run, step = split_step(options.run)
    text, num_added = continued(opened(options), step, options)
    if options.json:
        say(json.dumps({"prompt": options.prompt, "text": text, "tokens": num_added}))
        return
    say(text)


def continued(
    opened_run: Run, step: int | None, options: argparse.Namespace
) -> tuple[str, int]:
    """Return the prompt with a model's continuation, and the number of new tokens."""
    corpora = opened_run.corpora()
    # A prompt is yours, unlike the text of a page: `<|im_start|>` means the token.
    codec = codec_of_run(corpora, options, special_tokens=True)
    model = model_of(opened_run, step, options)
    ends = ends_of(corpora, model, codec)

    from roxxel.evaluate.prompts import Prompts
    from roxxel.evaluate.sampling import sample_tokens

    prompts = Prompts(codec, ends)
    if not (options.prompt or codec.before):
        why = "an empty --prompt begins after this token: it must be one"
        one_end(ends, why, options)
    try:
        prompt = prompts.typed(options.prompt)
        added = sample_tokens(
            model,
            prompt.tokens,
            options.tokens,
            seed=options.seed,
            temperature=options.temperature,
            top_k=options.top_k,
            stop=ends,
            context=options.context,
        )
    except ValueError as error:
        raise RunFolderError(f"{options.run}: {error}") from error
    return prompts.text(prompt, added.tolist()).decode(errors="replace"), len(added)
