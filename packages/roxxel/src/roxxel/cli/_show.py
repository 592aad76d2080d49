"""`roxxel show`: shows the rows of a run's batch."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from roxxel_format.naming import named_documents, names_of
from roxxel_store.screen import say
from roxxel_train import RunFolderError

from roxxel.cli._arguments import Json, RunName, Sources, Tokenizer, codec_of, opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum import Location, Sampler
    from roxxel_format import TokenReader
    from roxxel_format.texts import TextCodec

    from roxxel.runs.run import Run


def step_or_last(text: str) -> int | None:
    """Parse a step; None is `last`."""
    if text == "last":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a step nor `last`")
    return int(text)


def show(
    run: RunName,
    *,
    step: Annotated[int | None, step_or_last, "K"],
    row: Annotated[int | None, "R"] = None,
    text: bool = False,
    source: Sources = (),
    tokenizer: Tokenizer = None,
    json_: Json = False,
) -> None:
    """Show what is in the batch of a step.

    Each row has its source, its tokens and its documents. The batch of a trained step
    is the one that was trained, even if the schedule was edited or a corpus has grown
    since. Steps count from 0: step K is the batch of update K + 1, which metrics.jsonl
    logs as step K + 1.

    Args:
        step: The step, from 0, or `last` for the last step trained.
        row: Only this row of the batch, from 0.
        text: Also show the text.

    Example:
        roxxel show runs/first --step 100
        roxxel show runs/first --step last --row 0
    """
    opened_run = opened(run, source)
    sampler = opened_run.sampler(["tokens", "source"])
    if sampler.withdrawals or opened_run.has_masks:
        sampler = opened_run.sampler(["tokens", "loss_mask"])
    step = _last(opened_run) if step is None else step
    try:
        batch_size, seq_len = sampler.shape(step)
        wanted = range(batch_size) if row is None else [row]
        places = [(index, sampler.locate(step, index)) for index in wanted]
    except IndexError as error:
        raise RunFolderError(f"{run}: {error}") from error
    corpora = opened_run.corpora()
    codecs = {
        name: codec_of(opened_run, name, tokenizer)
        for name in dict.fromkeys(place.source for _, place in places)
        if text
    }
    is_trained = step < opened_run.trained_steps
    rows = [
        _row_facts(sampler, step, index, place, corpora, codecs)
        for index, place in places
    ]
    if json_:
        head = {"step": step, "phase": sampler.phase(step), "is_trained": is_trained}
        say(json.dumps({**head, "rows": rows}))
        return
    state = "trained" if is_trained else "not trained yet"
    say(
        f"step {step}: {batch_size} x {seq_len} tokens, "
        f"phase {sampler.phase(step)}, {state}"
    )
    for shown in rows:
        _say_row(shown, corpora[shown["source"]])


def _row_facts(
    sampler: Sampler,
    step: int,
    row: int,
    place: Location,
    corpora: Mapping[str, TokenReader],
    codecs: Mapping[str, TextCodec],
) -> dict[str, Any]:
    """Return what is in a row, as `--json` prints it; no text without a codec."""
    corpus = corpora[place.source]
    facts: dict[str, Any] = {
        "row": row,
        "source": place.source,
        "start": place.start,
        "stop": place.stop,
        "documents": list(place.documents),
    }
    more = {
        "masked": _masked(sampler, step, row, place.start),
        "unread": _unread(sampler, step, place),
        "names": names_of(corpus, place.documents),
    }
    facts |= {name: found for name, found in more.items() if found}
    if place.source in codecs:
        [tokens] = sampler.rows(step, [row])["tokens"]
        decoded = codecs[place.source].decode(tokens.astype(corpus.dtype))
        facts["text"] = decoded.decode(errors="replace")
    return facts


def _last(run: Run) -> int:
    """Return the last step that a run has trained and saved."""
    step = run.trained_steps - 1
    if step < 0:
        raise RunFolderError(
            f"{run.path}: no step is trained and saved yet; give --step K"
        )
    return step


def _say_row(shown: Mapping[str, Any], corpus: TokenReader) -> None:
    say(
        f"row {shown['row']}: {shown['source']} tokens [{shown['start']}, "
        f"{shown['stop']}), {named_documents(corpus, shown['documents'])}"
    )
    for start, stop in shown.get("masked", ()):
        say(f"  masked, so not learned: tokens [{start}, {stop})")
    for start, stop in shown.get("unread", ()):
        say(f"  withdrawn, so 0 and not read: tokens [{start}, {stop})")
    if "text" in shown:
        say("  " + shown["text"].replace("\n", "\n  "))


def _masked(sampler: Sampler, step: int, row: int, start: int) -> list[list[int]]:
    """Return the ranges of a row's tokens that the loss leaves out."""
    if "loss_mask" not in sampler.fields:
        return []
    [mask] = sampler.rows(step, [row])["loss_mask"]
    edges = np.flatnonzero(np.diff(mask, prepend=1, append=1)) + start
    return edges.reshape(-1, 2).tolist()


def _unread(sampler: Sampler, step: int, place: Location) -> list[list[int]]:
    """Return the withdrawn ranges of a row's tokens, which are 0 in the batch."""
    ranges = sampler.masked_ranges(place.source, place.start, place.stop)
    return [
        [*span] for span, steps in ranges.items() if any(step in each for each in steps)
    ]
