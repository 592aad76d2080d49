"""`roxxel sample`: lets the model of a run continue a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from roxxel_ckpt.locations import split_step
from roxxel_store.command import as_text, positive
from roxxel_store.screen import say
from roxxel_train import RunFolderError

from roxxel.cli._arguments import (
    AtLeast1,
    Context,
    Json,
    Model,
    RunAtStep,
    Sources,
    Tokenizer,
    Trust,
    check_one_end,
    codec_of_run,
    ends_of,
    model_of,
    opened,
)

if TYPE_CHECKING:
    from roxxel.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a model continues a text.

    Attributes:
        max_tokens: Add at most N tokens.
        temperature: 0 always takes the likeliest token; 1 draws as the model predicts.
        top_k: Draw only from the K likeliest tokens.
        seed: Seed of the draws.
    """

    max_tokens: AtLeast1 = 100
    temperature: Annotated[float, "T"] = 0.7
    top_k: Annotated[int | None, positive, "K"] = None
    seed: int = 0
    context: Context = None


def sample(
    run: RunAtStep,
    *,
    prompt: Annotated[str, as_text, "TEXT"],
    sampling: Sampling,
    model: Model = None,
    source: Sources = (),
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Let the model of a run continue a text, to see what it has learned.

    RUN@STEP takes the checkpoint of a step, RUN the newest one. The text ends after
    --max-tokens tokens, or where the model ends the document. The same arguments print
    the same text.

    Args:
        prompt: The text to continue, in which the name of a special token, such as
            <|im_start|>, is this token; '' begins a document.
        sampling: The continuation.

    Example:
        roxxel sample runs/first --prompt 'Once upon a time'
    """
    name, step = split_step(run)
    of_run = opened(name, source, trust=trust)
    text, num_added = _continued(of_run, step, prompt, sampling, model, tokenizer)
    if json_:
        say(json.dumps({"prompt": prompt, "text": text, "tokens": num_added}))
        return
    say(text)


def _continued(
    run: Run,
    step: int | None,
    prompt: str,
    sampling: Sampling,
    model: str | None,
    tokenizer: str | None,
) -> tuple[str, int]:
    """Return the prompt with a model's continuation, and the number of new tokens."""
    # A prompt is yours, unlike the text of a page: `<|im_start|>` means the token.
    codec = codec_of_run(run, tokenizer, special_tokens=True)
    made = model_of(run, step, model)
    ends = ends_of(run.corpora(), made, codec)

    from roxxel.evaluate.prompts import Prompts
    from roxxel.evaluate.sampling import sample_tokens

    prompts = Prompts(codec, ends)
    if not (prompt or codec.before):
        why = "an empty --prompt begins after this token: it must be one"
        check_one_end(run, ends, why)
    try:
        begun = prompts.typed(prompt)
        added = sample_tokens(
            made,
            begun.tokens,
            sampling.max_tokens,
            seed=sampling.seed,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            stop=ends,
            context=sampling.context,
        )
    except ValueError as error:
        raise RunFolderError(f"{run.path}: {error}") from error
    return prompts.text(begun, added.tolist()).decode(errors="replace"), len(added)
