"""The held-out sets of a run: each stays the set of its first losses.

Held-out losses of all starts of a run choose the best checkpoint, and form one curve of
`eval_loss`. So a set is pinned under its name, like the sources of a run: a corpus that
has grown is read at its first version, and other data is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_curriculum import StateMismatch
from roxxel_curriculum.state import recorded_masks

from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_curriculum import Curriculum, Sampler

    from roxxel_train.config import TrainConfig

EVAL_LOSS = "eval_loss"
"""Name of the mean loss over the held-out sets."""


@dataclass(frozen=True)
class HeldOutSets:
    """The held-out sets of a run.

    Attributes:
        samplers: The sampler of each set, by name. A run with one set may leave it
            unnamed, and the name is then empty.
        record: The record for a checkpoint and `run.json`: the state of each set that
            the run has ever had, and the names of the sets of `eval_loss`.
        notes: One sentence for each doubt about a set; see
            `Curriculum.compare_held_out`.
    """

    samplers: Mapping[str, Sampler]
    record: Mapping[str, Any]
    notes: Sequence[str]

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        training: Curriculum,
        past: Mapping[str, Any] | None,
        where: str,
    ) -> HeldOutSets:
        """Return the sets of a config, as the run in `where` has recorded them.

        `past` is the `record` of an earlier start; None for a new run.

        Raises:
            RunMismatchError: A set has other data than in the earlier start.
            CurriculumError: A set has another tokenizer than the training data.
        """
        states = dict((past or {}).get("states", {}))
        samplers: dict[str, Sampler] = {}
        for name, curriculum in config.held_out.items():
            past_state = states.get(name)
            try:
                sampler = _pinned(config, curriculum, past_state)
            except StateMismatch as error:
                raise _mismatch(where, name, error.differences) from error
            samplers[name] = sampler
            if past_state is None or not recorded_masks(past_state):
                # Masks are pinned by the first start with the field `loss_mask`.
                states[name] = sampler.state(sampler.total_steps)
        names = config.mean_sets or (past or {}).get("names", [])
        notes = [
            note
            for name, curriculum in config.held_out.items()
            for note in training.compare_held_out(curriculum, name)
        ]
        return cls(samplers, {"names": names, "states": states}, notes)

    def check(self, record: Mapping[str, Any], where: str) -> None:
        """Raise RunMismatchError if a checkpoint has measured other data.

        `record` is the checkpoint's record, which another program may have written.
        """
        for name, state in record.get("states", {}).items():
            if name in self.samplers and self.record["states"][name] != state:
                raise _mismatch(where, name, ["another program has changed it"])

    def problems(self) -> Iterator[str]:
        """Read the first and the last batch of each set; yield why this fails."""
        for name, sampler in self.samplers.items():
            try:
                for step in sorted({0, sampler.total_steps - 1}):
                    sampler.batch(step)
            except (OSError, ValueError) as error:
                what = f"held-out set {name!r}" if name else "held-out set"
                yield f"{what}: {error}"

    def check_ranking(
        self, past: Mapping[str, Any] | None, metric: str | None, where: str
    ) -> None:
        """Raise RunMismatchError if a mean over other sets ranks the checkpoints."""
        before, names = (past or {}).get("names", []), self.record["names"]
        if metric not in (None, EVAL_LOSS) or not before or not names:
            return
        if before == names:
            return
        named = next(filter(None, names), "NAME")
        raise RunMismatchError(
            f"{where}: ranks its checkpoints by {EVAL_LOSS!r}, the loss over "
            f"{_listed(before)}, and now has {_listed(names)}, so the best checkpoint "
            f"would be chosen across both; give best_metric='{EVAL_LOSS}/{named}' to "
            "rank by one set from now on, or the earlier sets"
        )


def _pinned(
    config: TrainConfig, curriculum: Curriculum, state: Mapping[str, Any] | None
) -> Sampler:
    """Return the sampler of a set; raise StateMismatch if the set has changed."""
    sampler = curriculum.sampler(config.seed, state, config.fields, config.check)
    if state is None:
        return sampler
    if sampler.total_steps != state["step"]:
        raise StateMismatch(
            [f"it had {state['step']} steps and now has {sampler.total_steps}"]
        )
    added = [each for each in sampler.withdrawals if each.step >= state["step"]]
    if added:
        raise StateMismatch([f"other documents of {added[0].source!r} are withdrawn"])
    return sampler


def _mismatch(where: str, name: str, differences: Iterable[str]) -> RunMismatchError:
    what = f"the held-out set {name!r}" if name else "the held-out set"
    return RunMismatchError(
        f"{where}: {what} is not the one that the run has measured so far: "
        f"{'; '.join(differences)}; restore the set, or give the changed set a new "
        'name: eval_curriculum={"NEW": ...}, or [eval.NEW] in a config file'
    )


def _listed(names: list[str]) -> str:
    if names == [""]:
        return "one set without a name"
    return f"the set{'s' if names[1:] else ''} {', '.join(map(repr, names))}"
