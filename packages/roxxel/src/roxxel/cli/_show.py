"""`roxxel show`: shows the rows of a run's batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format.naming import named_documents, names_of
from roxxel_store.screen import say
from roxxel_train import RunFolderError

from roxxel.cli._runs import add_run_arguments, codec_of, opened

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from roxxel_curriculum import Location, Sampler
    from roxxel_format import TokenReader

    from roxxel.runs.run import Run

DESCRIPTION = """\
Show what is in the batch of a step: the source, the tokens and the documents of
each row. The batch of a trained step is the one that was trained, even if the
schedule was edited or a corpus has grown since. Steps count from 0: step K is
the batch of update K + 1, which metrics.jsonl logs as step K + 1.
"""

EXAMPLES = ["runs/first --step 100", "runs/first --step last --row 0"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument(
        "--step",
        type=step_or_last,
        required=True,
        metavar="K",
        help="the step, from 0, or `last` for the last step trained",
    )
    parser.add_argument(
        "--row", type=int, metavar="R", help="only this row of the batch, from 0"
    )
    parser.add_argument("--text", action="store_true", help="also show the text")


def run(options: argparse.Namespace) -> None:
    """Print the rows of a batch."""
    opened_run = opened(options)
    sampler = opened_run.sampler(["tokens", "source"])
    if sampler.withdrawals or opened_run.has_masks:
        sampler = opened_run.sampler(["tokens", "loss_mask"])
    step = _last(opened_run) if options.step is None else options.step
    try:
        batch_size, seq_len = sampler.shape(step)
        wanted = range(batch_size) if options.row is None else [options.row]
        places = [(row, sampler.locate(step, row)) for row in wanted]
    except IndexError as error:
        raise RunFolderError(f"{options.run}: {error}") from error
    corpora = opened_run.corpora()
    codecs = {
        name: codec_of(name, corpora[name], options)
        for name in dict.fromkeys(place.source for _, place in places)
        if options.text
    }
    is_trained = step < opened_run.trained_steps
    rows: list[dict[str, Any]] = []
    for row, place in places:
        shown: dict[str, Any] = {
            "row": row,
            "source": place.source,
            "start": place.start,
            "stop": place.stop,
            "documents": list(place.documents),
        }
        masked = _masked(sampler, step, row, place.start)
        if masked:
            shown["masked"] = masked
        unread = _unread(sampler, step, place)
        if unread:
            shown["unread"] = unread
        names = names_of(corpora[place.source], place.documents)
        if names is not None:
            shown["names"] = names
        if options.text:
            [tokens] = sampler.rows(step, [row])["tokens"]
            dtype = corpora[place.source].dtype
            decoded = codecs[place.source].decode(tokens.astype(dtype))
            shown["text"] = decoded.decode(errors="replace")
        rows.append(shown)
    if options.json:
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


def step_or_last(text: str) -> int | None:
    """Parse a step; None is `last`. argparse shows this name in errors."""
    return None if text == "last" else int(text)


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
