"""`roxxel replay`: trains a run again without some of its documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from roxxel_store.screen import note, say
from roxxel_train import RunFolderError

from roxxel.cli._arguments import (
    Documents,
    Json,
    Receipt,
    RunName,
    Sources,
    Texts,
    Tokenizer,
    Trust,
    check_alone,
    chosen_documents,
    named_source,
    opened,
    say_checked,
)
from roxxel.cli._launch import Launch, from_first, run_launched, tell

if TYPE_CHECKING:
    from roxxel.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Which documents are left out.

    Attributes:
        without: Leave out these documents, by number from 0, id or path; repeatable.
        without_text: Leave out every document that holds this text; repeatable.
        without_source: Leave out all documents of a source; repeatable.
    """

    without: Documents = ()
    without_text: Texts = ()
    without_source: Sequence[Annotated[str, "SOURCE"]] = ()


def replay(
    run: RunName | None = None,
    *,
    left_out: LeftOut,
    each: bool = False,
    step: Annotated[int | None, "STEP"] = None,
    out: Annotated[str | None, "FOLDER"] = None,
    check: Receipt = None,
    source: Sources = (),
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    json_: Json = False,
    launch: Launch,
    typed: Sequence[str],
) -> None:
    """See what some documents did to a model.

    The command goes back to the newest checkpoint before the run learned them, and
    trains the rest of the run twice with the same programs: once as it was (the
    control), and once without them. On a CPU the second branch equals, bit for bit, a
    run that never learned them. Both branches are ordinary runs, in the folder of
    --out, which `roxxel sample` and `roxxel report` take. The same command continues
    after a kill.

    Args:
        left_out: Documents.
        each: Train one branch without each document, and list them by their effect.
        step: Begin with the checkpoint of this step, or at 0 with none (default: the
            newest checkpoint before the first step that learns the documents).
        out: Folder of the branches (default: RUN-replay, beside RUN).
        check: Repeat the replay of this replay.json in a scratch folder, or in --out,
            and compare everything that the receipt says; RUN says where the run is now.
        launch: Processes.

    Raises:
        Found: Something differs from the receipt.
        Preempted: A signal stopped the run after a save.

    Example:
        roxxel replay runs/first --without web:3,17
        roxxel replay runs/first --without-text 'def quicksort' --each
        roxxel replay --check runs/first-replay/replay.json
    """
    given = {f"--{name.replace('_', '-')}": it for name, it in asdict(left_out).items()}
    given |= {
        "--each": each,
        "--step": step is not None,
    }
    check_alone(check, run, given)

    def work() -> None:
        from roxxel import replaying

        sources = dict(source)
        if check is not None:
            unconfirmed = replaying.check_replay(
                check, run, out=out, sources=sources, trust=trust, say=from_first(tell)
            )
            say_checked(check, unconfirmed)
            return
        of_run = opened(str(run), source, trust=trust)
        result = replaying.replay(
            of_run,
            _chosen(of_run, left_out, tokenizer),
            step=step,
            out=out,
            each=each,
            sources=sources,
            trust=trust,
            say=from_first(note if json_ else tell),
        )
        if json_:
            say(json.dumps(result.to_dict()))
            return
        tell("")
        say(str(result))

    run_launched(launch, typed, work)


def _chosen(run: Run, left_out: LeftOut, tokenizer: str | None) -> dict[str, Any]:
    named, texts = left_out.without, left_out.without_text
    found = chosen_documents(run, named, texts, tokenizer)
    for source in left_out.without_source:
        corpus = named_source(run, source)
        found.setdefault(source, []).append([0, len(corpus.documents)])
    if not found:
        raise RunFolderError(
            "nothing is left out; give --without, --without-text or --without-source"
        )
    return found
