"""The branches of a replay: the config of each, and its training.

Each branch is an ordinary run with a config file of its own, so every command reads it,
and the same replay continues it after a kill. All branches run the same programs: they
differ only in the values of the field `loss_mask`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
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
)
from roxxel.replaying._choice import token_ranges, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from roxxel_format import TokenReader

    from roxxel.config import MeshConfig
    from roxxel.replaying._choice import Listed

CONTROL = "control"
"""The branch that leaves nothing out."""

HELD_OUT = "held_out"
"""Name of a run's only held-out set in the branches, if the run gives it none."""

_MASK = "loss_mask"
_NUM_EVALUATIONS = 8
_MOST_BATCHES = 16


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
    sets = named_sets(config)
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


def named_sets(config: RunConfig) -> dict[str, EvalConfig]:
    """Return the held-out sets of a run; if there is only one, it may have no name."""
    return {name or HELD_OUT: each for name, each in config.held_out.items()}


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
            first = corpora[next(iter(chosen))]
            Roxxel(self.path).write(
                tokens_of(corpora, chosen), separator=None, dtype=first.dtype
            )

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
