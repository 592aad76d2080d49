"""Handle a request to be forgotten: where documents were read, the mask, and the price.

The documents are masked from the next step on by `without` of the run's config, which
this module edits. What the run has learned stays in the weights. A replay from a
checkpoint before the first step that learned the documents would undo it; the result
gives its price.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from roxxel_format.naming import names_of
from roxxel_store.files import check_output, replace_file
from roxxel_store.screen import counted, short_duration
from roxxel_store.urls import absolute, expanded
from roxxel_train import RunFolderError

from roxxel.config import (
    ConfigError,
    begun_state,
    load_config,
    open_curriculum,
    parse_config,
    refused,
    withdrawn_text,
)
from roxxel.replaying._branches import find_start, first_learned, masked_steps
from roxxel.runs._receipts import TheRun, receipt_record

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from roxxel_curriculum import Sampler

    from roxxel.config import RunConfig
    from roxxel.runs.run import Run

_KIND = receipt_record("withdraw")


@dataclass(frozen=True)
class Asked:
    """A document that somebody wants to be forgotten.

    Attributes:
        source: Its source.
        document: Its number.
        name: Its id or the path of its file; None if it has no name.
        tokens: Its tokens `[start, stop)` in the source.
        learned: The trained steps that learned some of its tokens.
        still_planned: Number of later steps that would have read some of its tokens.
    """

    source: str
    document: int
    name: str | None
    tokens: tuple[int, int]
    learned: tuple[int, ...]
    still_planned: int

    def __str__(self) -> str:
        name = "" if self.name is None else f" ({self.name})"
        count = len(self.learned)
        some = ", ".join(map(str, self.learned[:8])) + ", ..." * (count > 8)
        steps = f"learned in {counted(count, 'step')}: {some}"
        was = steps if count else "never learned"
        return f"{self.source}:{self.document}{name}: {was}"


@dataclass(frozen=True)
class Withdrawn:
    """The result of `withdraw`; `str(result)` describes it.

    Attributes:
        run: Folder or URL of the run.
        trained_steps: Its saved steps.
        total_steps: Its planned steps, as the config has them now.
        documents: The documents, with the steps that learned them.
        config: The config file that leaves them out now; None if a program without a
            config started the run.
        masked_from: First step that does not learn them; None without a config.
        replay_from: Step of the checkpoint from which a replay would train again; None
            if no step learned them.
        replay_steps: Number of steps that the replay would train again, up to the last
            saved step.
        replay_s: Seconds that the replay would take at the run's speed; None if the log
            does not record the speed.
        receipt: The file for the person who asked.
    """

    run: str
    trained_steps: int
    total_steps: int
    documents: tuple[Asked, ...]
    config: str | None
    masked_from: int | None
    replay_from: int | None
    replay_steps: int
    replay_s: float | None
    receipt: str

    def __str__(self) -> str:
        lines = [str(each) for each in self.documents[:20]]
        if len(self.documents) > 20:
            more = len(self.documents) - 20
            lines.append(f"and {more:,} more documents, which the receipt lists")
        lines += [self._mask(), self._price(), f"receipt: {self.receipt}"]
        return "\n".join(lines)

    def _mask(self) -> str:
        if self.config is None:
            found: dict[str, list[int]] = {}
            for each in self.documents:
                found.setdefault(each.source, []).append(each.document)
            return (
                "a program without a config started the run, so nothing is masked yet: "
                f"give its Curriculum without={json.dumps(found)} and start it again"
            )
        line = f"{self.config}: leaves them out from step {self.masked_from} on"
        if self.masked_from is not None and self.masked_from >= self.total_steps:
            return f"{line}, if the run is trained further: all its steps are done"
        return f"{line}, once `roxxel train` has started the run again with this file"

    def _price(self) -> str:
        if self.replay_from is None:
            return "nothing to undo: no saved step has learned them"
        price = f"{self.replay_steps:,} steps"
        if self.replay_s is not None:
            price += f", about {short_duration(self.replay_s)}"
        return (
            f"what was learned stays in the weights; to undo it would train again "
            f"{price}, from step {self.replay_from:,}: see `roxxel replay`"
        )


def withdraw(
    run: Run,
    documents: Mapping[str, Sequence[int]],
    *,
    config: str | os.PathLike[str] | None = None,
    receipt: str | os.PathLike[str] | None = None,
) -> Withdrawn:
    """Leave documents out of a run from its next step on, and write a receipt.

    The config file of the run gets them under `[without]`; its comments stay. A call
    that is repeated changes nothing more.

    Args:
        run: The open run; see `open_run`.
        documents: Numbers of documents by source.
        config: The config file with which the run continues. None means the only file
            whose `save_path` is the run, in the folder of the run's recorded config.
        receipt: Where to write the receipt for the person who asked. None means a file
            in the working folder, named after the run and the documents.

    Raises:
        ConfigError: Not exactly one config file of the run is found, or the run cannot
            leave documents out, for example without the field `loss_mask`.
        RunFolderError: No document is named.

    Example:
        >>> from roxxel import open_run
        >>> try:
        ...     withdraw(open_run("nowhere"), {"web": [3]})
        ... except RunFolderError as error:
        ...     print(error)
        nowhere: there is no such folder; give the folder of a run
    """
    chosen = {name: sorted({*each}) for name, each in documents.items() if each}
    if not chosen:
        raise RunFolderError(f"{run.path}: no document is named; name one, as web:3")
    sampler, trained = run.sampler(), run.trained_steps
    asked = tuple(_asked(run, sampler, chosen))
    path = expanded(_name(run, chosen) if receipt is None else receipt)
    check_output(path)
    _check_receipt(path, run, chosen)
    step, seconds = _price(run, sampler, chosen)
    file, masked_from, total = None, None, sampler.total_steps
    if run.config is not None or config is not None:
        file = _file_of(run) if config is None else Path(config)
        masked_from, total = _mask(file, chosen)
    result = Withdrawn(
        run=str(run.path),
        trained_steps=trained,
        total_steps=total,
        documents=asked,
        config=None if file is None else str(file),
        masked_from=masked_from,
        replay_from=step,
        replay_steps=0 if step is None else trained - step,
        replay_s=seconds,
        receipt=str(path),
    )
    members = asdict(result) | {
        "run": msgspec.structs.asdict(TheRun.of(run)),
        "corpora": {name: run.fingerprints()[name] for name in chosen},
    }
    del members["receipt"]
    replace_file(path, _KIND.to_bytes(members))
    return result


def _check_receipt(path: Path, run: Run, chosen: Mapping[str, Sequence[int]]) -> None:
    """Raise a RunFolderError if the file is a receipt of another request."""
    if not path.exists():
        return
    before = _KIND.read(path)
    documents = [(name, number) for name, each in chosen.items() for number in each]
    try:
        answered = [(each["source"], each["document"]) for each in before["documents"]]
        is_same = answered == documents and before["run"]["id"] == TheRun.of(run).id
    except (LookupError, TypeError):
        is_same = False
    if not is_same:
        raise RunFolderError(
            f"{path}: is the receipt of another request; give this one another file "
            "by --receipt"
        )


def _asked(
    run: Run, sampler: Sampler, chosen: Mapping[str, Sequence[int]]
) -> Iterator[Asked]:
    corpora, trained = run.corpora(), run.trained_steps
    for source, numbers in chosen.items():
        corpus: Any = corpora[source]
        names = names_of(corpus, numbers) or [None] * len(numbers)
        for number, name in zip(numbers, names, strict=True):
            start, stop, _ = corpus.document_range(number)
            masked = masked_steps(sampler, corpus, source, start, stop)
            places = sampler.where(source, start, stop)
            read = sorted({each.step for each in places})
            learned = [
                step
                for step in read
                if step < trained and not any(step in each for each in masked)
            ]
            later = sum(step >= trained for step in read)
            yield Asked(source, number, name, (start, stop), tuple(learned), later)


def _price(
    run: Run, sampler: Sampler, chosen: Mapping[str, Sequence[int]]
) -> tuple[int | None, float | None]:
    """Return where a replay would begin, and the seconds that it would take."""
    listed = {name: [*numbers] for name, numbers in chosen.items()}
    first = first_learned(sampler, run.corpora(), listed)
    if first is None or first >= run.trained_steps:
        return None, None
    kept = [each.step for each in run.checkpoints if each.step <= first]
    step = find_start(run, first, None, None).step if kept else 0
    train = run.files.columns.train
    if "step_s" not in train.fields():
        return step, None
    _, seconds = train.values("step_s")
    known = seconds[~np.isnan(seconds)]
    if not known.size:
        return step, None
    return step, float(np.median(known)) * (run.trained_steps - step)


def _mask(file: Path, chosen: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Add documents to `[without]` of a config.

    Returns:
        The first step that masks them, and the steps that the config plans.

    Raises:
        ConfigError: The run cannot leave them out.
    """
    before = load_config(file)
    text = withdrawn_text(before, chosen)
    config = parse_config(text, file)
    state = begun_state(config)
    try:
        # As the trainer will: without the field `loss_mask` it refuses.
        curriculum = open_curriculum(config)
        curriculum.sampler(config.seed, state, config.trainer.fields)
    except ValueError as error:
        raise refused(config, error) from error
    if config.schedule.without != before.schedule.without:
        replace_file(file, text.encode())
    return 0 if state is None else int(state["step"]), curriculum.total_steps


def _file_of(run: Run) -> Path:
    config = run.config
    assert config is not None  # noqa: S101 - the caller looks
    found = [
        file
        for file in sorted(config.folder.glob("*.toml"))
        if _save_path(file) == absolute(run.path)
    ]
    if len(found) == 1:
        return found[0]
    what = " and ".join(map(str, found)) or f"no file in {config.folder}"
    verb = "have" if found else "has"
    raise ConfigError(
        f"{run.path}: {what} {verb} this run as save_path; give --config FILE, the "
        "file with which the run goes on"
    )


def _save_path(file: Path) -> str | None:
    try:
        config: RunConfig = load_config(file)
    except (ConfigError, OSError):
        return None
    return None if config.run_folder is None else absolute(config.run_folder)


def _name(run: Run, chosen: Mapping[str, Sequence[int]]) -> str:
    digest = hashlib.blake2b(json.dumps(chosen).encode(), digest_size=4).hexdigest()
    return f"{TheRun.of(run).name}-withdrawn-{digest}.json"
