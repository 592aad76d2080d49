"""Choose what a replay leaves out, and the checkpoint from which its branches begin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel
from roxxel_train import RunFolderError

from roxxel.config import open_curriculum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from roxxel_curriculum import Sampler
    from roxxel_format import TokenReader

    from roxxel.config import RunConfig
    from roxxel.runs.run import Run

Listed = dict[str, list[Any]]
"""Documents and ranges of tokens by source, as JSON and TOML write them."""


@dataclass(frozen=True)
class Start:
    """The checkpoint from which the branches of a replay begin.

    Attributes:
        step: Its step; 0 for the beginning of the run, which needs no checkpoint.
        first: First step that learns the left-out tokens; None if no step does.

    >>> str(Start(120, 130))
    'step 130 learns it first, and the newest checkpoint before it is that of step 120'
    """

    step: int
    first: int | None

    def __str__(self) -> str:
        if self.first is None:
            return f"no step learns it; the branches begin at step {self.step:,}"
        begin = f"step {self.first:,} learns it first, and "
        if not self.step:
            return f"{begin}the branches train from the beginning"
        return f"{begin}the newest checkpoint before it is that of step {self.step:,}"


def listed(
    config: RunConfig, without: Mapping[str, Any], corpora: Mapping[str, TokenReader]
) -> Listed:
    """Return what a user leaves out, as sorted numbers, pairs and ranges of tokens.

    `corpora` are the run's open corpora by name.

    Raises:
        ConfigError: A source does not exist, or lacks a document.
        RunFolderError: Documents of the source have no numbers.
    """
    schedule = replace(config.schedule, without=dict(without))
    curriculum = open_curriculum(replace(config, schedule=schedule), corpora)
    readers = {curriculum.primary: curriculum.primary_streamer}
    readers |= curriculum.mix_streamers
    found: Listed = {}
    for each in curriculum.sampler(config.seed, fields=["loss_mask"]).withdrawals:
        if not isinstance(readers[each.source], Roxxel):
            raise RunFolderError(
                f"{config.file}: source {each.source!r} is a "
                f"{type(readers[each.source]).__name__}, in which documents have no "
                "numbers; write it as a corpus first"
            )
        found[each.source] = each.listed()
    return found


def one_by_one(chosen: Listed) -> dict[str, Listed]:
    """Return each document or range of tokens alone, by a name such as `web:3`."""
    found: dict[str, Listed] = {}
    for source, items in chosen.items():
        for item in items:
            numbers = range(*item) if isinstance(item, list) else [item]
            for one in numbers:
                found[f"{source}:{one}"] = {source: [one]}
    return found


def left_out_twice(
    corpora: Mapping[str, TokenReader], chosen: Listed, before: Listed
) -> Iterator[str]:
    """Yield what is chosen, and in part left out before, by a name such as `web:3`."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for source, start, stop in token_ranges(corpora, before):
        spans.setdefault(source, []).append((start, stop))
    if not spans:
        return
    for name, one in one_by_one(chosen).items():
        for source, start, stop in token_ranges(corpora, one):
            if any(a < stop and start < b for a, b in spans.get(source, ())):
                yield name


def token_ranges(
    corpora: Mapping[str, TokenReader], chosen: Listed
) -> Iterator[tuple[str, int, int]]:
    """Yield the source and the tokens `[start, stop)` of each document or range."""
    for source, items in chosen.items():
        corpus: Any = corpora[source]
        for item in items:
            if isinstance(item, str):
                a, b = item.removeprefix("tokens:[").removesuffix(")").split(",")
                yield source, int(a), int(b)
                continue
            first, stop = item if isinstance(item, list) else (item, item + 1)
            for document in range(first, stop):
                start, end, _ = corpus.document_range(document)
                yield source, start, end


def tokens_of(
    corpora: Mapping[str, TokenReader], chosen: Listed
) -> Iterator[npt.NDArray[Any]]:
    """Yield the tokens of each document or range that is left out."""
    for source, start, stop in token_ranges(corpora, chosen):
        if start < stop:
            corpus = corpora[source]
            yield corpus.read([start], stop - start)[0].astype(corpus.dtype)


def find_start(
    run: Run, first: int | None, step: int | None, begun: int | None
) -> Start:
    """Return where the branches begin: at `step`, or as late as is exact.

    `first` is the first step that learns the left-out tokens; None if no step does.
    Branches that have begun at `begun` continue from there, even if the run has since
    removed that checkpoint.

    Raises:
        RunFolderError: The run does not learn it, or has no such checkpoint.
    """
    kept = [each.step for each in run.checkpoints]
    if begun is not None and step in {None, begun}:
        return Start(begun, first)
    if step is not None:
        _check_step(run, step, first, kept)
        return Start(step, first)
    if first is None:
        raise RunFolderError(
            f"{run.path}: no step of the run learns it, so nothing would change; give "
            "other documents, or --step STEP to train both branches anyway"
        )
    if first >= run.trained_steps:
        raise RunFolderError(
            f"{run.path}: step {first} is the first that learns it, and the run has "
            f"saved {run.trained_steps} steps; withdraw it in the run itself, by "
            "without=, or train the run further"
        )
    before = [each for each in kept if each <= first]
    if not before:
        oldest = f"its oldest checkpoint is that of step {min(kept)}" if kept else ""
        raise RunFolderError(
            f"{run.path}: step {first} learns it first, and "
            f"{oldest or 'it holds no checkpoint'}; give --step 0 to train both "
            "branches from the beginning, and for the next run a smaller keep_every, "
            "which keeps checkpoints for ever"
        )
    return Start(max(before), first)


def _check_step(run: Run, step: int, first: int | None, kept: Sequence[int]) -> None:
    if step and step not in kept:
        raise RunFolderError(
            f"{run.path}: has no checkpoint of step {step}; it has those of steps "
            f"{', '.join(map(str, kept))}; give one of them, or 0 for the beginning"
        )
    if not step and run.parent is not None and run.parent.is_branch:
        raise RunFolderError(
            f"{run.path}: is a branch of {run.parent}, so it has no step 0; give one "
            f"of its checkpoints, {', '.join(map(str, kept))}"
        )
    if first is not None and step > first:
        raise RunFolderError(
            f"{run.path}: step {first} has learned it before step {step}; give a "
            "checkpoint of an earlier step, or leave out --step"
        )
    if step == run.files.total_steps:
        raise RunFolderError(
            f"{run.path}: step {step} is its last, so the branches would train "
            "nothing; give a checkpoint of an earlier step"
        )


def first_learned(
    sampler: Sampler, corpora: Mapping[str, TokenReader], chosen: Listed
) -> int | None:
    """Return the first step that reads some of the tokens and learns them."""
    found: int | None = None
    for source, start, stop in token_ranges(corpora, chosen):
        if start == stop:
            continue
        masked = _masked_steps(sampler, corpora[source], source, start, stop)
        for place in sampler.where(source, start, stop, until=found):
            if not any(place.step in steps for steps in masked):
                found = place.step
                break
    return found


def _masked_steps(
    sampler: Sampler, corpus: TokenReader, source: str, start: int, stop: int
) -> list[range]:
    """Return the steps in which the run itself leaves out all the tokens."""
    if not sampler.withdrawals:
        return []
    ranges = sampler.masked_ranges(source, start, stop).items()
    masked = [
        each for bounds, steps in ranges for each in steps if bounds == (start, stop)
    ]
    documents = np.unique(corpus.document_spans(start, stop)[:, 0])
    if documents.size == 1 and documents[0] >= 0:
        masked += sampler.masked_steps(source, int(documents[0]))
    return masked
