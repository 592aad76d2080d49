"""The branches of a replay: what each leaves out, where it begins, and its config.

Each branch is an ordinary run with a config file of its own, so every command reads it,
and the same replay continues it after a kill. All branches run the same programs: they
differ only in the values of the field `loss_mask`. So with JAX's compilation cache,
which the trainer turns on, each program is compiled once for all branches.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from roxxel_curriculum import Phase, Schedule
from roxxel_format import Roxxel
from roxxel_loader.sharding.presets import CONTEXT_AXIS
from roxxel_train import RunFolder, RunFolderError

from roxxel.config import (
    NOT_REPEATED,
    EvalConfig,
    RunConfig,
    config_differences,
    config_text,
    config_values,
    open_curriculum,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from roxxel_curriculum import Sampler
    from roxxel_format import TokenReader

    from roxxel.config import MeshConfig
    from roxxel.runs.run import Run

Listed = dict[str, list[Any]]
"""Documents and ranges of tokens by source, as JSON and TOML write them."""

CONTROL = "control"
"""The branch that leaves nothing out."""

HELD_OUT = "held_out"
"""Name of a run's only held-out set in the branches, if the run gives it none."""

_MASK = "loss_mask"
_NUM_EVALUATIONS = 8
_MOST_BATCHES = 16


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


@dataclass(frozen=True)
class Place:
    """Where the branches of a replay begin and lie.

    Attributes:
        folder: The folder that holds the branches.
        run: Absolute folder of the run, or its URL.
        start: Step at which the branches begin.
        total_steps: Steps of the whole run.
    """

    folder: Path
    run: str
    start: int
    total_steps: int


def base_config(config: RunConfig, place: Place, text: WithdrawnText) -> RunConfig:
    """Return the config that all branches share."""
    trainer = replace(config.trainer, **NOT_REPEATED)
    tail = place.total_steps - place.start
    sets = {name or HELD_OUT: each for name, each in config.held_out.items()}
    trainer = replace(
        trainer,
        fields=tuple(dict.fromkeys((*trainer.fields, _MASK))),
        eval_every=trainer.eval_every or max(1, tail // _NUM_EVALUATIONS),
        # So `eval_loss` is the mean that the run logs.
        eval_mean=[*sets] if trainer.eval_mean is None else trainer.eval_mean,
    )
    if place.start:
        branch = f"{place.run}@{place.start}"
        trainer = replace(trainer, init_from=None, branch_from=branch)
    # A batch must fill the mesh.
    texts = text.as_set(config, is_whole=trainer.strict_sharding)
    return replace(
        config,
        relative_to=str(config.folder.resolve()),
        trainer=trainer,
        eval={**sets, **texts} or None,
        changes=(),
    )


def changed_config(then: RunConfig, now: RunConfig, start: int) -> Iterator[str]:
    """Yield a note if the run's config changed after the branches begin.

    The branches follow the newest config throughout. So if the run was trained further
    under another config, its control may differ from the run.
    """
    changed = config_differences([config_values(then), config_values(now)])
    if changed:
        values = "; ".join(
            f"{key} was {before or 'not set'} and is {now or 'not set'}"
            for key, (before, now) in changed
        )
        yield (
            f"note: the run's config changed after step {start:,} ({values}); control "
            "and branches follow the newest one from there on, so the control may "
            "differ from the run"
        )


@dataclass(frozen=True)
class WithdrawnText:
    """A small corpus of what is left out, on which the branches are evaluated.

    Attributes:
        path: Its file.
        num_tokens: Number of its tokens. There is no loss if they are fewer than two,
            or fewer than the devices that split a window.
        tokenizer: Tokenizer of the run's sources; None if none is known.
        phase: The longest phase of the run: the bounds of a batch.
    """

    path: Path
    num_tokens: int
    tokenizer: str | None
    phase: Phase

    @classmethod
    def of(
        cls,
        folder: Path,
        corpora: Mapping[str, TokenReader],
        chosen: Listed,
        schedule: Schedule,
    ) -> WithdrawnText:
        """Describe the corpus, which `write` writes."""
        longest = max(schedule.phases, key=lambda phase: phase.seq_len)
        recorded = (corpora[source].tokenizer for source in chosen)
        known = [*schedule.tokenizers.values(), *filter(None, recorded)]
        # Another choice has another file, so it never finds that of an earlier one.
        of = [chosen, {source: corpora[source].fingerprint for source in chosen}]
        path = folder / f"withdrawn-{_digest(json.dumps(of))}.rox"
        sizes = (stop - start for _, start, stop in token_ranges(corpora, chosen))
        return cls(path, sum(sizes), known[0] if known else None, longest)

    def write(self, corpora: Mapping[str, TokenReader], chosen: Listed) -> None:
        """Write the corpus if it is not there."""
        if self.num_tokens and not self.path.exists():
            tokens = (
                corpora[source]
                .read([start], stop - start)[0]
                .astype(corpora[source].dtype)
                for source, start, stop in token_ranges(corpora, chosen)
                if start < stop
            )
            dtype = corpora[next(iter(chosen))].dtype
            Roxxel(self.path).write(tokens, separator=None, dtype=dtype)

    def as_set(self, config: RunConfig, *, is_whole: bool) -> dict[str, EvalConfig]:
        """Return the held-out set by its name.

        Neighbouring windows share a token, so every token after the first is predicted.
        Windows are about as long as the run's own: a short window would hide the
        context from which a text is learned. At the end, at most one token for each
        window is left out, or as many as the devices that split its columns. A large
        set is evaluated on its first windows.

        Args:
            config: The run's own config.
            is_whole: Whether a batch has as many rows as a batch of the run.
        """
        # A mesh may split the columns of a window, which it then has to divide.
        ways = _column_ways(config.mesh)
        gaps, rows = (self.num_tokens - 1) // ways, self.phase.batch_size
        if not gaps:
            return {}
        windows = -(-gaps // max(1, (self.phase.seq_len - 1) // ways))
        steps = -(-windows // rows)
        if not is_whole:  # As few rows as hold the text.
            rows = -(-windows // steps)
        # Whole batches of windows that are a little shorter; at least one token each.
        rows = min(rows, gaps // steps)
        length = gaps // (steps * rows) * ways + 1
        phase = Phase(min(steps, _MOST_BATCHES), rows, length)
        schedule = Schedule(
            (phase,),
            longest=self.num_tokens,
            overlap=1,
            tokenizers={"self": self.tokenizer} if self.tokenizer else {},
        )
        data = EvalConfig({"self": (str(self.path),)}, schedule)
        return {self.set_name(config): data}

    def set_name(self, config: RunConfig) -> str:
        """Return a name for the held-out set that no set of the run has."""
        name = "withdrawn"
        while name in config.held_out:
            name += "_"
        return name


def _column_ways(mesh: MeshConfig | None) -> int:
    """Return over how many devices the columns of a batch may be split."""
    axes = {} if mesh is None else mesh.axes
    ways = axes.get(CONTEXT_AXIS, 1)
    return ways if ways > 0 else jax.device_count() // -math.prod(axes.values())


def branch_config(
    base: RunConfig, place: Place, name: str, out: Listed, before: Listed
) -> RunConfig:
    """Return the config of one branch, which `write_configs` writes.

    The branch leaves out `out`, in addition to `before`, which the run itself leaves
    out.

    Raises:
        RunFolderError: Its file holds the config of another replay.
    """
    schedule = base.schedule
    if out:
        merged = {
            source: [*before.get(source, ()), *out.get(source, ())]
            for source in [*before, *(x for x in out if x not in before)]
        }
        schedule = replace(schedule, without=merged)
    folder = place.folder / file_name(name)
    file = place.folder / f"{folder.name}.toml"
    config = replace(base, file=file, schedule=schedule, save_path=str(folder))
    if file.exists() and file.read_text(encoding="utf-8") != config_text(config):
        raise RunFolderError(
            f"{file}: is the config of another replay; repeat that one, or give "
            "another --out"
        )
    return config


def file_name(branch: str) -> str:
    """Return the name of a branch's folder, which no other branch has.

    A plain name is kept, such as `web:3`. Any other name gets a digest after a dot.

    >>> file_name("web:3")
    'without-web-3'
    >>> file_name("my web:3")
    'without-my-web-3.376ad84aae28f774'
    """
    if branch in {CONTROL, "without"}:
        return branch
    # Some disks take capitals for small letters.
    if re.fullmatch(r"[a-z0-9_]{1,64}:[0-9]+", branch, re.ASCII):
        return f"without-{branch.replace(':', '-')}"
    words = re.sub(r"[^a-z0-9_]+", "-", branch.lower())[:48].strip("-")
    return f"without-{words}.{_digest(branch)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def begun_step(folder: Path) -> int | None:
    """Return the step at which the branches in a folder have begun; None for none."""
    for record in sorted(folder.glob("*/run.json")):
        return RunFolder(record.parent).first_step
    return None


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
    readers = curriculum.streamers
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
        masked = masked_steps(sampler, corpora[source], source, start, stop)
        for place in sampler.where(source, start, stop, until=found):
            if not any(place.step in steps for steps in masked):
                found = place.step
                break
    return found


def masked_steps(
    sampler: Sampler, corpus: TokenReader, source: str, start: int, stop: int
) -> list[range]:
    """Return the steps in which the run itself leaves out all the tokens.

    Only steps that leave them out as one range or as their one document are found.
    """
    if not sampler.withdrawals:
        return []
    ranges = sampler.masked_ranges(source, start, stop).items()
    masked = [
        each for bounds, steps in ranges for each in steps if bounds == (start, stop)
    ]
    # Withdrawn documents are not among the ranges. Padding has the document -1.
    documents = np.unique(corpus.document_spans(start, stop)[:, 0])
    if documents.size == 1 and documents[0] >= 0:
        masked += sampler.masked_steps(source, int(documents[0]))
    return masked
