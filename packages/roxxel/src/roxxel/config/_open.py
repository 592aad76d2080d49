"""Opens the corpora of a `RunConfig` and builds its curricula, without JAX."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from roxxel_curriculum import Curriculum, CurriculumError, StateMismatch
from roxxel_format import Roxxel
from roxxel_format.foreign import foreign_format, open_foreign
from roxxel_store.command import sentence_of
from roxxel_train import RunFolder, data_state

from roxxel.config._declaration import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from roxxel_curriculum import Proxy, Sampler, Schedule
    from roxxel_format import TokenReader

    from roxxel.config._declaration import EvalConfig, RunConfig


@dataclass(frozen=True)
class HeldOut:
    """What each evaluation reads from one held-out set.

    Attributes:
        steps: Number of batches.
        tokens: Number of tokens.
        epochs: Number of passes over each source of the set, by name.
        notes: One sentence for each doubt; see `Curriculum.compare_held_out`.
    """

    steps: int
    tokens: int
    epochs: Mapping[str, float]
    notes: Sequence[str]

    def __str__(self) -> str:
        """Return the numbers as a clause of a sentence."""
        passes = ", ".join(f"{name} {times:.3g}" for name, times in self.epochs.items())
        plural = "" if self.steps == 1 else "s"
        return (
            f"each evaluation reads {self.steps:,} step{plural}, {self.tokens:,} "
            f"tokens (epochs: {passes})"
        )


def open_curriculum(
    config: RunConfig, opened: Mapping[str, TokenReader] | None = None
) -> Curriculum:
    """Open the corpora of a config and return its curriculum.

    With `[proxy]`, this is the curriculum of the small run, whose parts follow from the
    whole corpora, so they are opened whatever is `opened`. A run in `save_path` changes
    nothing here: for its batches, use `open_sampler`.

    Args:
        config: The config.
        opened: All corpora of the config by name, if they are already open. The primary
            has its name in the config, or `"self"`.

    Raises:
        ConfigError: The corpora do not fit the schedule; the message names the file.
        OSError: A corpus is missing.
        ShardError: A shard is damaged.
    """
    proxy = open_proxy(config)
    if proxy is not None:
        return proxy.curriculum
    if opened is not None:
        return _of_opened(config, config.schedule, dict(opened), "")
    return whole_curriculum(config)


def whole_curriculum(config: RunConfig) -> Curriculum:
    """Return the curriculum of the run that a config declares, whatever its `[proxy]`.

    Raises:
        ConfigError, OSError, ShardError: As in `open_curriculum`.
    """
    return _curriculum(config, config)


def open_proxy(config: RunConfig) -> Proxy[Curriculum] | None:
    """Return the proxy that a config declares, with its big run; None without one.

    Raises:
        ConfigError, OSError, ShardError: As in `open_curriculum`.
    """
    if config.proxy is None:
        return None
    whole = whole_curriculum(config)
    try:
        return whole.proxy(**asdict(config.proxy))
    except CurriculumError as error:
        raise ConfigError(f"{config.file}: {error}") from error


def begun_state(
    config: RunConfig, folder: Path | str | None = None
) -> dict[str, Any] | None:
    """Return the data state from which the next start of a config continues.

    This is the state of the run in `save_path`, or of the checkpoint from which a new
    run branches. The result is None for a run that starts at step 0.

    Args:
        config: The config.
        folder: Folder of the run; None for the config's `save_path`.

    Raises:
        FileNotFoundError: The checkpoint to branch from does not exist.
        RunMismatchError: `run.json` is damaged or of another version, or a checkpoint
            was not written by a trainer.
        CheckpointError: All checkpoints of the run are damaged.
    """
    folder, parent = folder or config.run_folder, config.trainer.branch_from
    state = None if folder is None else RunFolder(folder).state()
    if state is None and parent is not None:
        return data_state(config.corpus(str(parent)), needs_checkpoint=True)
    return state


def open_sampler(config: RunConfig, curriculum: Curriculum | None = None) -> Sampler:
    """Return the sampler of a config, which computes the batch of any step.

    If `save_path` holds a run, the sampler returns the batches of that run, as
    `Trainer.sampler` does. Otherwise, the sampler returns the batches of a new run, or
    of a new branch.

    Args:
        config: The config.
        curriculum: Its curriculum, if it is already open.

    Raises:
        ConfigError: The corpora do not fit the schedule, or the schedule changes steps
            that the run has trained.
        OSError: A corpus is missing.
        ShardError: A shard is damaged.
        RunMismatchError, CheckpointError: As in `begun_state`.
    """
    state = begun_state(config)
    return sampler_of(config, curriculum or open_curriculum(config), state)


def sampler_of(
    config: RunConfig, curriculum: Curriculum, state: Mapping[str, Any] | None
) -> Sampler:
    """Return the sampler of a config for a run with the given state.

    Raises:
        ConfigError: The state does not fit the curriculum; the message names the file.
    """
    # Without the field `loss_mask`, a sampler would refuse withdrawn documents.
    try:
        return curriculum.sampler(config.seed, state, config.trainer.fields)
    except CurriculumError as error:
        raise refused(config, error) from error


def open_eval_curriculum(
    config: RunConfig, states: Mapping[str, Mapping[str, Any]] | None = None
) -> Curriculum | dict[str, Curriculum] | None:
    """Return the curriculum of the held-out loss; None without `[eval]`.

    If `[eval]` names several sets, the result is a dict from names to curricula.

    Args:
        config: The config.
        states: `Sampler.state` of sets as a run has read them, by name; see
            `Curriculum.as_read`. A set without a state is read as it is now.

    Raises:
        StateMismatch: A state was modified.
        ConfigError, OSError, ShardError: As in `open_curriculum`.
    """
    opened: dict[str, Curriculum] = {}
    for name, of_set in config.held_out.items():
        where = f"[eval.{name}]" if name else "[eval]"
        has_weights = any(phase.weights for phase in of_set.schedule.phases)
        if len(of_set.sources) > 1 and not has_weights:
            raise ConfigError(
                f"{config.file}: {where} has {len(of_set.sources)} sources and no "
                "weights; for a loss of each, write a table for each, as "
                f"[eval.{next(iter(of_set.sources))}] with path, steps, batch_size and "
                "seq_len; for one loss of all, give the phases weights"
            )
        try:
            curriculum = _curriculum(config, of_set, f"{where}: ")
        except FileNotFoundError as error:
            if states is None:
                raise
            corpora = config.held_out_corpora.items()
            keys = [key for key, (of, _) in corpora if of == name]
            moved = " or ".join(f"--source {key}=PATH" for key in keys)
            raise FileNotFoundError(f"{error}; if it moved, pass {moved}") from error
        state = (states or {}).get(name)
        opened[name] = curriculum if state is None else curriculum.as_read(state)
    return opened.get("", opened or None)


def compare_held_out(config: RunConfig, training: Curriculum) -> dict[str, HeldOut]:
    """Return what each evaluation of a config reads, by the set's name.

    Raises:
        ConfigError: A set does not fit its schedule or the training data.
        OSError, ShardError: As in `open_curriculum`.
    """
    opened = open_eval_curriculum(config)
    sets = {"": opened} if isinstance(opened, Curriculum) else opened or {}
    found: dict[str, HeldOut] = {}
    for name, curriculum in sets.items():
        try:
            curriculum.sampler(0, fields=config.trainer.fields)
            notes = training.compare_held_out(curriculum, name)
        except CurriculumError as error:
            raise ConfigError(f"{config.file}: {error}") from error
        plan = curriculum.plan()
        epochs = {source.name: source.epochs for source in plan.sources}
        found[name] = HeldOut(plan.total_steps, plan.total_tokens, epochs, notes)
    return found


def open_foreign_source(config: RunConfig, name: str) -> TokenReader | None:
    """Return the reader of a source of another format; None for any other source.

    Raises:
        ConfigError, OSError, ShardError: As in `open_curriculum`.
    """
    if name not in config.sources:
        return None
    reader = _opened(config, config, name)
    return None if isinstance(reader, Roxxel) else reader


def _opened(
    config: RunConfig, data: RunConfig | EvalConfig, name: str, where: str = ""
) -> TokenReader:
    """Open a source, of shards or of another format."""
    paths = [config.corpus(text) for text in data.sources[name]]
    options = data.readers.get(name, {})
    # Pass a single path as text, because errors show the repr of the corpus.
    path: Any = paths[0] if len(paths) == 1 else paths
    if options or foreign_format(path) is not None:
        try:
            return open_foreign(path, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{config.file}: {where}source {name!r}: {error}"
            ) from error
    cached: dict[str, Any] = {}
    if config.cache is not None and isinstance(paths[0], str):  # A URL.
        folder = config.path(config.cache)
        cached = {"cache": folder, "cache_bytes": config.cache_bytes}
    reader = Roxxel(path, **cached)
    try:
        _ = reader.num_tokens  # Opens the corpus.
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{config.file}: {where}source {name!r}: {sentence_of(error)}"
        ) from error
    return reader


def _curriculum(
    config: RunConfig, data: RunConfig | EvalConfig, where: str = ""
) -> Curriculum:
    corpora = {name: _opened(config, data, name, where) for name in data.sources}
    return _of_opened(config, data.schedule, corpora, where)


def _of_opened(
    config: RunConfig, schedule: Schedule, corpora: dict[str, TokenReader], where: str
) -> Curriculum:
    primary = corpora.pop(schedule.primary)
    try:
        return schedule.relative_to(config.folder).curriculum(primary, corpora)
    except CurriculumError as error:
        raise ConfigError(f"{config.file}: {where}{error}") from error


def refused(config: RunConfig, error: ValueError) -> ConfigError:
    """Return the error of a config whose curriculum does not fit its corpora or run."""
    if not isinstance(error, StateMismatch):
        return ConfigError(f"{config.file}: {error}")
    run, parent = config.run_folder, config.trainer.branch_from
    remedy = "or give another save_path"
    if run is None or (parent is not None and not RunFolder(run).holds_run):
        run, remedy = parent, "or branch from an earlier step"
    paths = [
        f"{name} is {', '.join(str(config.corpus(path)) for path in given)}"
        for name, given in config.sources.items()
        if any(f"source {name!r}" in each for each in error.differences)
    ]
    where = f" ({'; '.join(paths)})" if paths else ""
    since = f", from step {error.steps:,} on" if error.steps else ""
    return ConfigError(
        f"{config.file}: {run}: the run there does not fit this curriculum: "
        f"{'; '.join(error.differences[:3])}{where}; put this back, and change only "
        f"steps that are not trained yet{since}, {remedy}"
    )
