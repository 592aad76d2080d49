"""`roxxel withdraw`: leaves documents out of a run from its next step on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

from roxxel_store.screen import say

from roxxel.cli._arguments import (
    Documents,
    Json,
    RunName,
    Sources,
    Texts,
    Tokenizer,
    chosen_documents,
    opened,
)


def withdraw(
    run: RunName,
    *,
    documents: Documents = (),
    text: Texts = (),
    config: Annotated[str | None, "FILE"] = None,
    receipt: Annotated[str | None, "FILE"] = None,
    source: Sources = (),
    tokenizer: Tokenizer = None,
    json_: Json = False,
) -> None:
    """Answer a request to be forgotten.

    The command says which steps have learned the documents, adds them to [without] of
    the run's config, so that no later step does, says what it would cost to undo what
    was learned, and writes a receipt for whoever asked. Then start the run again with
    the same `roxxel train`.

    Args:
        documents: These documents, by number from 0, id or path; repeatable.
        text: Every document that holds this text, as `roxxel where` finds it;
            repeatable.
        config: The config with which the run goes on (default: the file in its folder
            that has RUN as its save_path).
        receipt: The receipt for whoever asked (default: RUN-withdrawn-DIGEST.json, in
            this folder).

    Example:
        roxxel withdraw runs/first --documents web:3,17
        roxxel withdraw runs/first --text 'a sentence of the page' --receipt answer.json
    """
    of_run = opened(run, source)
    chosen = chosen_documents(of_run, documents, text, tokenizer)
    from roxxel import replaying

    found = replaying.withdraw(of_run, chosen, config=config, receipt=receipt)
    say(json.dumps(asdict(found)) if json_ else str(found))
