"""What did these documents do? Train a run again without them, exactly.

`replay` goes back to the newest checkpoint before a run learned some documents, and
trains the rest of the run twice with the same programs: once as it was (the control),
and once without the documents. Batches are a pure function of the step, so on a CPU the
second branch equals, bit for bit, a run that never learned the documents. So the
documents caused every difference between the branches. This is leave-one-out retraining
at a lower price: only the steps after the checkpoint are trained again. Influence
functions estimate this effect (Koh and Liang, *Understanding Black-box Predictions via
Influence Functions*, 2017).
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_ckpt.coordination import process_index
from roxxel_curriculum.run_log import EVAL_LOSS
from roxxel_store.files import replace_file
from roxxel_store.screen import aligned
from roxxel_store.urls import absolute, check_on_disk, expanded
from roxxel_train import RunFolder, RunFolderError
from roxxel_train.distributed import barrier

from roxxel.config import config_text, load_config, make_trainer
from roxxel.replaying._branches import (
    CONTROL,
    HELD_OUT,
    Place,
    Start,
    WithdrawnText,
    base_config,
    begun_step,
    branch_config,
    changed_config,
    find_start,
    first_learned,
    left_out_twice,
    listed,
    one_by_one,
)
from roxxel.replaying._effects import Comparison, compare, losses, norm, parameters
from roxxel.replaying._request import Asked, Withdrawn, withdraw
from roxxel.runs._receipts import (
    REPLAY_RECEIPTS,
    Environment,
    Equality,
    ReplayReceipt,
    Result,
    TheCheckpoint,
    TheRun,
    run_of,
    unconfirmed,
)
from roxxel.runs.again import as_trained, config_of, scratch_folder
from roxxel.runs.run import Run, open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from roxxel_curriculum import Documents

    from roxxel.config import RunConfig
    from roxxel.replaying._branches import Listed
    from roxxel.runs.run import Corpus

__all__ = [
    "Asked",
    "Branch",
    "Comparison",
    "Replay",
    "Start",
    "Withdrawn",
    "check_replay",
    "replay",
    "withdraw",
]

_RECEIPT = "replay.json"


@dataclass(frozen=True)
class Branch:
    """One branch of a replay, compared with the control.

    Attributes:
        name: `"control"`, `"without"`, or the document that is left out: `"web:3"`.
        folder: Folder of the branch, an ordinary run.
        step: Its last step.
        state: The digest of model and optimizer there, as in `metrics.jsonl`.
        feed: The digest of all batches, as in `metrics.jsonl`.
        losses: Losses by name and step, as in `metrics.jsonl`.
        distance: Euclidean distance of its parameters from those of the control.
        norm: Euclidean norm of its parameters.

    Example:
        >>> losses = {"loss": {10: 2.5, 20: 2.25}}
        >>> Branch("web:3", "run-replay/without-web-3", 20, "", "", losses).final(
        ...     "loss"
        ... )
        2.25
    """

    name: str
    folder: str
    step: int
    state: str
    feed: str
    losses: Mapping[str, Mapping[int, float]] = field(repr=False)
    distance: float = 0.0
    norm: float = 0.0

    def final(self, loss: str) -> float | None:
        """Return the last value of a loss; None if the branch never logged it."""
        values = self.losses.get(loss)
        return values[max(values)] if values else None


@dataclass(frozen=True)
class Replay:
    """The result of `replay`; `str(result)` is the report.

    Attributes:
        run: Folder or URL of the run.
        without: What was left out, by source.
        start: Where the branches begin, and why.
        control: The branch that leaves nothing out.
        branches: The other branches; with `each=True`, in order of their effect.
        comparison: Whether the control is the run itself, bit for bit.
        notes: What limits the conclusions.
        seconds: Duration of the call.
        text_loss: Among the losses of the branches, the name of the loss on the text
            that is left out.
        receipt: The file that `check_replay` verifies.

    Example:
        >>> ends = {"control": 2.5, "without": 2.75}
        >>> control, without = (
        ...     Branch(name, name, 9, "", "", {"eval_loss/web": {9: end}})
        ...     for name, end in ends.items()
        ... )
        >>> comparison = Comparison(9, is_equal=True, num_rows=4, first_difference=None)
        >>> found = Replay(
        ...     run="run",
        ...     without={"web": [3]},
        ...     start=Start(5, 6),
        ...     control=control,
        ...     branches=(without,),
        ...     comparison=comparison,
        ...     notes=(),
        ...     seconds=2.0,
        ...     receipt=Path("run-replay/replay.json"),
        ... )
        >>> found.effect(without)
        0.25
    """

    run: str
    without: Mapping[str, Sequence[Any]]
    start: Start
    control: Branch
    branches: tuple[Branch, ...]
    comparison: Comparison
    notes: tuple[str, ...]
    seconds: float
    receipt: Path
    text_loss: str = f"{EVAL_LOSS}/withdrawn"

    def change(self, branch: Branch, loss: str) -> float | None:
        """Return how much higher a loss of a branch ends than the control's."""
        end, of_control = branch.final(loss), self.control.final(loss)
        return None if end is None or of_control is None else end - of_control

    def effect(self, branch: Branch) -> float:
        """Return the number by which branches are ordered.

        This is the mean change of the held-out losses. Without held-out sets, it is the
        change of the loss on all texts that are left out.
        """
        names = [n for n in self.control.losses if n.startswith(f"{EVAL_LOSS}/")]
        names = [n for n in names if n != self.text_loss] or names
        changes = [c for n in names if (c := self.change(branch, n)) is not None]
        return sum(changes) / len(changes) if changes else branch.distance

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {**asdict(self), "receipt": str(self.receipt)}

    def __str__(self) -> str:
        """Return the report as text."""
        last = self.control.step
        lines = [
            f"{self.run}: {_shown(self.without)}",
            f"{self.start}; trained: steps {self.start.step:,} to {last:,} of each",
            f"control: {self.comparison}",
            "",
            *(self._table() if len(self.branches) == 1 else self._ranking()),
            "",
            *self.notes,
            f"{self.seconds:.1f} s; receipt: {self.receipt}",
        ]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        [branch] = self.branches
        rows: list[Sequence[str]] = [("", "control", "without", "change")]
        for name in sorted(self.control.losses, key=self._place):
            ends = self.control.final(name), branch.final(name)
            if None not in ends:
                change = f"{self.change(branch, name):+.4f}"
                shown = (f"{end:.4f}" for end in ends)
                rows.append([self._named(name), *shown, change])
        share = branch.distance / self.control.norm if self.control.norm else 0.0
        apart = f"{branch.distance:.4g}, {share:.2%} of their norm"
        if not branch.distance:
            apart = "0: equal bit for bit"
        lines = aligned(rows, right=range(1, len(rows[0])))
        return [*lines, f"distance of the parameters: {apart}"]

    def _ranking(self) -> list[str]:
        names = sorted(self.control.losses, key=self._place)
        rows = [("without", "effect", *map(self._named, names), "distance")]
        for each in self.branches:
            changes = (self.change(each, name) for name in names)
            shown = ("-" if x is None else f"{x:+.5f}" for x in changes)
            effect = f"{self.effect(each):+.5f}"
            rows.append((each.name, effect, *shown, f"{each.distance:.4g}"))
        return aligned(rows, right=range(1, len(rows[0])))

    def _place(self, loss: str) -> tuple[bool, bool, str]:
        """Return the rank of a loss: the text's own, then held-out, then training."""
        return loss != self.text_loss, not loss.startswith(EVAL_LOSS), loss

    def _named(self, loss: str) -> str:
        kind, _, name = loss.partition("/")
        if loss == self.text_loss:
            return "loss on the text itself"
        if kind == EVAL_LOSS:
            return f"held-out loss {name}"
        return f"training loss of {name}" if name else "training loss"


def replay(
    run: str | os.PathLike[str] | Run,
    without: Mapping[str, Documents],
    *,
    step: int | None = None,
    out: str | os.PathLike[str] | None = None,
    each: bool = False,
    sources: Mapping[str, Corpus] | None = None,
    trust: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> Replay:
    """Train a run again without some documents, and again as it was; compare both.

    A killed call continues when it is repeated: the branches are ordinary runs. With
    several processes, all of them make the same call, and `out` is a folder that they
    share.

    Args:
        run: As for `verify`.
        without: What to leave out, as for `Curriculum`: documents by source.
        step: Begin with the checkpoint of this step; 0 trains from the beginning. None
            takes the newest checkpoint before the first step that learns the documents.
        out: Folder of the branches, of the receipt, and of a small corpus of the text
            that is left out. None is the run's folder with `-replay` after its name.
        each: Train one branch for each document instead of one without all of them.
        sources: New locations of sources that moved, as for `open_run`.
        trust: As for `open_run`.
        say: Called with a line before each branch.

    Raises:
        RunFolderError: The run has no config and does not follow from its log, no step
            learns the documents, its newest config leaves some of them out already, or
            no checkpoint is old enough.
        ConfigError: A source or document does not exist.
        Preempted: A signal stopped a branch, whose state is saved.

    Example:
        >>> try:
        ...     replay("nowhere", {"web": [3]})
        ... except RunFolderError as error:
        ...     print(error)
        nowhere: there is no such folder; give the folder of a run
    """
    opened = run if isinstance(run, Run) else open_run(run, sources, trust=trust)
    result, receipt = _replayed(opened, without, step=step, out=out, each=each, say=say)
    REPLAY_RECEIPTS.write(result.receipt, receipt)
    return result


def check_replay(
    receipt: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    sources: Mapping[str, Corpus] | None = None,
    trust: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Repeat a replay, and compare the results with its receipt.

    Every fact in the receipt is computed anew and compared, except machine and
    software, which may differ: `say` gets their differences. No receipt is written.

    Args:
        receipt: The `replay.json` of a replay, on this or on another machine.
        run: Where the run is now; None means where it was.
        out: Folder of the repeated branches; None for a temporary one, which processes
            on several hosts do not share.
        sources: As for `replay`.
        trust: As for `replay`.
        say: As for `replay`.

    Returns:
        The facts of the receipt that the repeated replay does not confirm. If there are
        any, differences of machine and software come first.

    Raises:
        RunFolderError: The file is no receipt, `out` already holds a replay, or the
            receipt's run is not next to it and no `run` is given. Also as for `replay`.
    """
    path = expanded(receipt)
    then = REPLAY_RECEIPTS.read(path)
    if out is not None and (expanded(out) / _RECEIPT).exists():
        raise RunFolderError(
            f"{out}: holds the branches of a replay, so nothing would be trained "
            "again; give another --out"
        )
    opened, other = run_of(path, then, run, sources, trust=trust)
    if other:
        return other
    with scratch_folder("replay") if out is None else nullcontext(out) as folder:
        _, now = _replayed(
            opened, then.without, step=then.start, out=folder, each=then.each, say=say
        )
    return unconfirmed(then, now, say)


def _replayed(
    run: Run,
    without: Mapping[str, Documents],
    *,
    step: int | None,
    out: str | os.PathLike[str] | None,
    each: bool,
    say: Callable[[str], object],
) -> tuple[Replay, ReplayReceipt]:
    began_s = time.monotonic()
    folder, config, corpora = _folder(run, out), config_of(run), run.corpora()
    chosen = listed(config, without, corpora)
    if not chosen:
        raise RunFolderError(
            f"{run.path}: nothing is left out; name a document, such as web:3"
        )
    sampler = run.sampler(("loss_mask",) if run.has_masks else ("tokens",))
    first = first_learned(sampler, corpora, chosen)
    start = find_start(run, first, step, begun_step(folder))
    at_start = config_of(run, start.step + 1)
    notes = [*changed_config(at_start, config, start.step), *_notes(config)]
    for line in (str(start), *notes):
        say(line)
    place = Place(folder, absolute(run.path), start.step, sampler.total_steps)
    text = WithdrawnText.of(folder, corpora, chosen, config.schedule)
    base = base_config(config, place, text)
    before = _left_out_before(run, config, chosen)
    left_out = one_by_one(chosen) if each else {"without": chosen}
    # A loss that ignores the mask is refused before the control is trained.
    configs = {
        name: branch_config(base, place, name, some, before)
        for name, some in {**left_out, CONTROL: {}}.items()
    }
    complete = {
        name
        for name, each in configs.items()
        if RunFolder(str(each.run_folder)).finished_step == place.total_steps
    }
    barrier("replay: every process has read what was there")
    if process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        text.write(corpora, chosen)
        for each_config in configs.values():
            replace_file(each_config.file, config_text(each_config).encode())
    barrier("replay: the branches can begin")
    _train(run, configs, complete, say)
    # Their code is that of the run.
    runs = {
        name: open_run(str(each.run_folder), trust=True)
        for name, each in configs.items()
    }
    branches = _read(runs, start.step)
    control = branches.pop(CONTROL)
    result = Replay(
        run=str(run.path),
        without=chosen,
        start=start,
        control=control,
        branches=tuple(branches.values()),
        comparison=compare(run, runs[CONTROL], start.step),
        notes=tuple(notes),
        seconds=time.monotonic() - began_s,
        receipt=folder / _RECEIPT,
        text_loss=f"{EVAL_LOSS}/{text.set_name(config)}",
    )
    ordered = sorted(result.branches, key=result.effect, reverse=True)
    result = replace(result, branches=tuple(ordered))
    return result, _receipt_of(result, run, runs[CONTROL], each=each)


def _left_out_before(run: Run, config: RunConfig, chosen: Listed) -> Listed:
    """Return what the run leaves out itself, which must be nothing that is chosen."""
    corpora = run.corpora()
    before = listed(config, config.schedule.without or {}, corpora)
    for name in left_out_twice(corpora, chosen, before):
        raise RunFolderError(
            f"{run.path}: the newest config of the run already leaves out {name}, so "
            "the control would be without it too; name only what it does not leave out"
        )
    return before


def _train(
    run: Run,
    configs: Mapping[str, RunConfig],
    complete: Collection[str],
    say: Callable[[str], object],
) -> None:
    again = as_trained(run, run.files.newest_start)
    held_out = {name or HELD_OUT: x for name, x in again.held_out.items()}
    again = replace(again, held_out=held_out)
    for number, (name, config) in enumerate(configs.items(), 1):
        if name not in complete:
            say(f"branch {number} of {len(configs)}: {name}")
            make_trainer(load_config(config.file), again).run()


def _folder(run: Run, out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        remedy = "branches are trained on a disk; give --out a folder there"
        check_on_disk(os.fspath(out), remedy, RunFolderError)
        return expanded(out).absolute()
    if not isinstance(run.path, Path):
        raise RunFolderError(
            f"{run.path}: is in a bucket; give --out FOLDER for the branches"
        )
    path = run.path.absolute()
    return path.with_name(f"{path.name}-replay")


def _read(runs: Mapping[str, Run], start: int) -> dict[str, Branch]:
    """Return the results of the branches, each compared with the control."""
    control = runs[CONTROL]
    of_control = parameters(control, control.trained_steps)
    found: dict[str, Branch] = {}
    for name, run in runs.items():
        step = run.trained_steps
        trained = of_control if run is control else parameters(run, step)
        found[name] = Branch(
            name=name,
            folder=str(run.path),
            step=step,
            state=run.files.saves()[step],
            feed=run.files.newest_rows.get("train", {}).get("digest", ""),
            losses=losses(run, start),
            distance=norm(trained, of_control),
            norm=norm(trained),
        )
    return found


def _notes(config: RunConfig) -> list[str]:
    if "segment_ids" in config.trainer.fields:
        return []
    note = (
        "note: batches have no segment_ids, so tokens after the text in its rows still "
        "attend to it: it is not learned, but it is still context for others"
    )
    return [note]


def _receipt_of(result: Replay, run: Run, control: Run, *, each: bool) -> ReplayReceipt:
    parent, compared = control.parent, result.comparison
    branches = (result.control, *result.branches)
    return ReplayReceipt(
        run=TheRun.of(run),
        without=result.without,
        start=result.start.step,
        each=each,
        corpora=run.fingerprints(),
        checkpoint=None
        if parent is None or not result.start.step
        else TheCheckpoint(parent.step, parent.digest),
        environment=Environment.of(control),
        control_is_the_run=Equality(
            compared.step,
            compared.is_equal,
            compared.num_rows,
            compared.first_difference,
        ),
        branches={one.name: Result(one.step, one.state, one.feed) for one in branches},
        losses={
            one.name: {name: dict(losses) for name, losses in one.losses.items()}
            for one in branches
        },
        distances={one.name: one.distance for one in branches},
    )


def _shown(without: Mapping[str, Sequence[Any]]) -> str:
    parts: list[str] = []
    for source, items in without.items():
        count = sum(len(range(*x)) if isinstance(x, list | tuple) else 1 for x in items)
        some = ", ".join(map(str, items)) if count <= 8 else f"{count:,} of them"
        parts.append(f"{source} {some}")
    return "without " + "; ".join(parts)
