"""The runs of a sweep: a proxy for each blend, an ordinary run in a folder of its own.

A run's name is a digest of everything that decides its losses: settings, blend, the
model's code, and the fingerprints of its sources. So a sweep reuses earlier runs even
if a source has a new name, but not with another length or an edited model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from roxxel_curriculum import Phase, Schedule
from roxxel_store.screen import counted
from roxxel_train import RunFolder

from roxxel.config import (
    NOT_LEARNED,
    NOT_REPEATED,
    ConfigError,
    EvalConfig,
    blends_of,
    check_known,
    code_digest,
    open_eval_curriculum,
    open_proxy,
    whole_curriculum,
    with_total_steps,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_curriculum import Curriculum, Plan

    from roxxel.config import Blend, RunConfig, SweepConfig

_RUNS = "runs"
_SHORT = 12
_KEY = re.compile(f"[0-9a-f]{{{_SHORT}}}")
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Source:
    """A source of a sweep.

    Attributes:
        fingerprint: Fingerprint of its corpus, by which the table names it.
        name: Its name in the base config: a label.
        num_tokens: Its tokens.
    """

    fingerprint: str
    name: str
    num_tokens: int


@dataclass(frozen=True)
class Leaf:
    """The held-out text of one source in one set, for which a run has a loss.

    Attributes:
        key: Name of the set in the configs of the runs.
        of_set: Name of the set in the base config.
        label: The name to show: the set's name, and the source's name if the set has
            several.
        share: Share of the set's tokens.
    """

    key: str
    of_set: str
    label: str
    share: float


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        key: Digest of everything that decides its losses; the name of its folder.
        blend: Share of each source, by phase, in the order of `SweepRuns.sources`.
        config: Its config, which the file next to its folder has.
        plan: What it reads.
        notes: What its proxy cannot match.
    """

    key: str
    blend: Blend
    config: RunConfig
    plan: Plan
    notes: tuple[str, ...]

    @property
    def folder(self) -> RunFolder:
        """The files of the run as they are now."""
        return RunFolder(str(self.config.run_folder))

    @property
    def has_begun(self) -> bool:
        """Whether the run has begun, with the config that its file holds.

        That config may give a source another name than `config`, and the order of its
        tokens depends on its name.
        """
        return self.folder.record != {}

    @property
    def is_finished(self) -> bool:
        """Whether the run has saved its last step, and measured its losses there."""
        return self.folder.finished_step == self.plan.total_steps


@dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep, with what they have in common.

    Attributes:
        sources: The sources, by fingerprint.
        leaves: The held-out losses of each run.
        target: How much each loss of `leaves` counts; sums to 1.
        runs: The runs.
        identity: Everything that decides the losses of the runs, except their blends.
    """

    sources: tuple[Source, ...]
    leaves: tuple[Leaf, ...]
    target: tuple[float, ...]
    runs: tuple[SweepRun, ...]
    identity: Mapping[str, Any]


def runs_of(sweep: SweepConfig) -> SweepRuns:
    """Return the runs that the file of a sweep declares.

    Raises:
        ConfigError: The sources cannot be told apart, a blend cannot be trained, or
            the target names no held-out set.
        OSError, ShardError: A corpus cannot be opened.
    """
    sources, leaves, shared, identity = _common(sweep)
    names = [each.name for each in sources]
    tokens = {each.name: each.num_tokens for each in sources}
    try:
        blends = blends_of(sweep, names, tokens)
    except ConfigError as error:
        raise ConfigError(f"{sweep.file}: {error}") from error
    target = _target(sweep, leaves)
    runs = tuple(_run(sweep, shared, names, blend, identity) for blend in blends)
    return SweepRuns(sources, leaves, target, runs, identity)


def check_unchanged(sweep: SweepConfig, runs: SweepRuns) -> None:
    """Check that data and code are still those that the runs are named after.

    A run opens its corpora itself, later than the sweep. Call this function after that:
    corpora only grow, so what is the same before and after was the same in between.

    Raises:
        ConfigError: They are not.
    """
    now = _common(sweep).identity
    changed = [
        what
        for key, what in (
            ("sources", "a source"),
            ("eval", "a held-out set"),
            ("code", "the code of the model"),
        )
        if now[key] != runs.identity[key]
    ]
    if changed:
        raise ConfigError(
            f"{sweep.file}: {' and '.join(changed)} changed while the sweep ran, so "
            "further runs could not be compared with the finished ones; repeat the "
            "command, which trains every blend with what is there now"
        )


def of_earlier_files(sweep: SweepConfig, runs: SweepRuns) -> Iterator[str]:
    """Yield a note if there are runs of other settings, data or code.

    They stay: if you restore the settings, these runs are finished.
    """
    folder = sweep.folder / _RUNS
    found = {each.stem for each in folder.glob("*.toml") if _KEY.fullmatch(each.stem)}
    names = sorted(found - {run.key for run in runs.runs})
    if names:
        shown = ", ".join(names[:_MOST_SHOWN])
        more = len(names) - _MOST_SHOWN
        yield (
            f"{folder} holds {counted(len(names), 'run')} more, of other "
            f"blends, data or code than now ({shown}"
            f"{f' and {more} more' if more > 0 else ''}); delete them unless you go "
            "back to those"
        )


class _Common(NamedTuple):
    sources: tuple[Source, ...]
    leaves: tuple[Leaf, ...]
    config: RunConfig
    identity: dict[str, Any]


def _common(sweep: SweepConfig) -> _Common:
    base = sweep.base
    sources = _sources(base, whole_curriculum(base))
    leaves, sets = _held_out(base)
    config = _shared(sweep, [each.name for each in sources], sets)
    return _Common(sources, leaves, config, _identity(config, sources, leaves))


def _sources(base: RunConfig, whole: Curriculum) -> tuple[Source, ...]:
    found = [
        Source(reader.fingerprint, name, reader.num_tokens)
        for name, reader in whole.streamers.items()
    ]
    by_print: dict[str, str] = {}
    for each in found:
        if each.fingerprint in by_print:
            raise ConfigError(
                f"{base.file}: sources {by_print[each.fingerprint]!r} and "
                f"{each.name!r} are the same corpus, which a sweep cannot tell apart; "
                "keep one of them"
            )
        by_print[each.fingerprint] = each.name
    return tuple(sorted(found, key=lambda each: each.fingerprint))


def _held_out(base: RunConfig) -> tuple[tuple[Leaf, ...], dict[str, EvalConfig]]:
    """Return the held-out losses of a run, and the set that measures each.

    A set of several sources is measured source by source: a blend that is good for one
    source is bad for another, and only their sum has its best value in between.
    """
    opened = open_eval_curriculum(base)
    sets = opened if isinstance(opened, Mapping) else {"": cast("Any", opened)}
    leaves: list[Leaf] = []
    found: dict[str, EvalConfig] = {}
    for name, curriculum in sets.items():
        declared = base.held_out[name]
        shown = name or "held_out"
        plan = curriculum.plan()
        read = [each for each in plan.sources if each.tokens]
        readers = curriculum.streamers
        for each in read:
            of_several = len(read) > 1
            label = f"{shown}/{each.name}" if of_several else shown
            digest = readers[each.name].fingerprint[:_SHORT]
            leaf = Leaf(
                f"{shown}/{digest}" if of_several else shown,
                shown,
                label,
                each.tokens / plan.total_tokens,
            )
            leaves.append(leaf)
            found[leaf.key] = _one_source(declared, each.name, curriculum)
    return tuple(leaves), found


def _one_source(declared: EvalConfig, name: str, curriculum: Curriculum) -> EvalConfig:
    """Return a held-out set of one source of a set, with its share of the batches."""
    schedule = declared.schedule
    phases: list[Phase] = []
    for phase in curriculum.plan().phases:
        share = sum(each.share for each in phase.sources if each.name == name)
        if share:
            steps = max(1, round(phase.steps * share))
            phases.append(Phase(steps, phase.batch_size, phase.seq_len))
    tokenizer = schedule.tokenizers.get(name)
    return EvalConfig(
        {"self": declared.sources[name]},
        Schedule(
            tuple(phases),
            overlap=schedule.overlap,
            tokenizers={} if tokenizer is None else {"self": tokenizer},
        ),
        {"self": declared.readers[name]} if name in declared.readers else {},
    )


def _shared(
    sweep: SweepConfig, names: Sequence[str], sets: Mapping[str, EvalConfig]
) -> RunConfig:
    base = sweep.base
    trainer = replace(base.trainer, **NOT_REPEATED, keep_every=None, max_to_keep=1)
    shared = replace(
        base,
        # In the order of their fingerprints, so that a run tells which was which.
        sources={name: base.sources[name] for name in names},
        relative_to=str(base.folder.resolve()),
        proxy=sweep.proxy,
        trainer=trainer,
        eval=dict(sets),
        changes=(),
    )
    # One learning rate for all: a constant of the program, and a fair comparison.
    proxy = open_proxy(shared)
    assert proxy is not None  # noqa: S101 - `shared` has one
    return with_total_steps(shared, proxy.plan.total_steps)


def _run(
    sweep: SweepConfig,
    shared: RunConfig,
    names: Sequence[str],
    blend: Blend,
    identity: Mapping[str, Any],
) -> SweepRun:
    phases = tuple(
        replace(phase, weights=dict(zip(names, shares, strict=True)))
        for phase, shares in zip(shared.schedule.phases, blend, strict=True)
    )
    text = json.dumps({**identity, "blend": blend}, sort_keys=True, default=str)
    key = hashlib.sha256(text.encode()).hexdigest()[:_SHORT]
    folder = sweep.folder.absolute() / _RUNS / key
    config = replace(
        shared,
        file=folder.with_suffix(".toml"),
        schedule=replace(shared.schedule, phases=phases),
        save_path=str(folder),
    )
    try:
        proxy = open_proxy(config)
    except ConfigError as error:
        shown = shown_blend(names, blend)
        reason = str(error).removeprefix(f"{config.file}: ")
        raise ConfigError(
            f"{sweep.file}: the blend {shown} cannot be trained: {reason}"
        ) from error
    assert proxy is not None  # noqa: S101 - the config has one
    return SweepRun(key, blend, config, proxy.plan, proxy.notes)


def shown_blend(names: Sequence[str], blend: Sequence[Sequence[float]]) -> str:
    """Return a blend as text.

    >>> shown_blend(["web", "code"], [[0.75, 0.25], [0.75, 0.25]])
    'web 0.75, code 0.25'
    """
    return "; then ".join(
        ", ".join(f"{n} {share:.4g}" for n, share in zip(names, shares, strict=True))
        for shares in dict.fromkeys(map(tuple, blend))
    )


def _identity(
    shared: RunConfig, sources: Sequence[Source], leaves: Sequence[Leaf]
) -> dict[str, Any]:
    """Return everything that decides the losses of the runs, except their blends."""
    schedule = shared.schedule
    prints = {each.name: each.fingerprint for each in sources}
    phases = [replace(phase, weights=None) for phase in schedule.phases]
    opened = open_eval_curriculum(shared)
    assert isinstance(opened, Mapping)  # noqa: S101 - `_shared` names every set
    return {
        "model": shared.model,
        "code": code_digest(shared),
        "model_args": shared.model_args,
        "seed": shared.seed,
        "proxy": _plain(shared.proxy),
        "sources": [each.fingerprint for each in sources],
        "primary": prints[schedule.primary],
        "phases": _plain(phases),
        "rules": {
            name: _plain(value, prints)
            for name, value in vars(schedule).items()
            if name not in {"phases", "primary"}
        },
        "trainer": {
            n: _plain(x)
            for n, x in vars(shared.trainer).items()
            if n not in NOT_LEARNED
        },
        "mesh": _plain(shared.mesh),
        "eval": {
            leaf.key: [
                opened[leaf.key].primary_streamer.fingerprint,
                _plain(shared.held_out[leaf.key].schedule),
            ]
            for leaf in leaves
        },
    }


def _plain(value: Any, prints: Mapping[str, str] | None = None) -> Any:
    """Return a value for JSON, with fingerprints in place of source names."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value), prints)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {(prints or {}).get(n, n): _plain(x, prints) for n, x in table.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each, prints) for each in cast("Sequence[Any]", value)]
    return value


def _target(sweep: SweepConfig, leaves: Sequence[Leaf]) -> tuple[float, ...]:
    sets = list(dict.fromkeys(leaf.of_set for leaf in leaves))
    wanted = sweep.target or dict.fromkeys(sets, 1.0)
    for name in wanted:
        try:
            check_known(name, sets, "target", f"the [eval] of {sweep.base.file}")
        except ConfigError as error:
            raise ConfigError(f"{sweep.file}: {error}") from error
    total = sum(wanted.values())
    if not total:
        raise ConfigError(f"{sweep.file}: every set of target counts 0; let one count")
    return tuple(wanted.get(leaf.of_set, 0.0) / total * leaf.share for leaf in leaves)
