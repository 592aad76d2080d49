"""Opens a run from its folder: its batches, metrics, checkpoints, config and model.

Everything comes from the folder and the corpora. The program that trains the run is not
needed, and edits of its config or schedule do not change what a past step shows.
Reading needs no JAX, except for `Run.model`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from roxxel_curriculum import CurriculumError, StateMismatch, recorded_sampler
from roxxel_curriculum.state import recorded_reader
from roxxel_format import Roxxel, ShardError
from roxxel_format.foreign import foreign_format, open_foreign
from roxxel_store.urls import absolute, located
from roxxel_train import RunFolder, RunFolderError

from roxxel.config import (
    RunConfig,
    check_trusted,
    make_pair,
    open_foreign_source,
    used_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from roxxel_curriculum import Field, Sampler, Withdrawal
    from roxxel_format import TokenReader
    from roxxel_train.run_folder import Checkpoint, Parent

Corpus: TypeAlias = "str | os.PathLike[str] | Sequence[str] | TokenReader"
"""Where a source is: a path, pattern, URL, list of these, or an open reader."""


def open_run(
    path: str | os.PathLike[str],
    sources: Mapping[str, Corpus] | None = None,
    *,
    trust: bool = False,
) -> Run:
    """Open a run to read what it has trained and will train.

    Args:
        path: Folder of the run, or its URL: the `save_path`.
        sources: New locations, by name, of sources that moved since the last start of
            the run. Other sources are opened at their recorded locations. A held-out
            set has the name of its table in the config: `"eval"` or `"eval.NAME"`.
        trust: Whether `Run.model` may run code in the run's folder, or of an installed
            package, if the config of the run names it. Set it only for a folder that
            you would start as a program.

    Raises:
        RunFolderError: The folder does not hold a run.
        CheckpointBucketError: The bucket cannot be read.

    Example:
        >>> try:
        ...     open_run("nowhere")
        ... except RunFolderError as error:
        ...     print(error)
        nowhere: there is no such folder; give the folder of a run
    """
    location = located(path)
    files = RunFolder(location)
    files.check()
    return Run(location, files, dict(sources or {}), trust)


@dataclass(frozen=True)
class Run:
    """A run, read from its folder; `open_run` returns it.

    Each file is read once, and each corpus is opened once. Open the run again to see
    what it has added since.

    Attributes:
        path: Folder of the run, or its URL.
        files: The files of the run, in a local folder.
        moved: New locations of sources that moved, by name.
        trust: As for `open_run`.

    Example:
        >>> from pathlib import Path
        >>> row = '{"kind": "train", "step": 3, "loss": 2.5}'
        >>> _ = Path("metrics.jsonl").write_text(row)
        >>> open_run(".").metrics[0]["loss"]
        2.5
    """

    path: Path | str
    files: RunFolder = field(repr=False)
    moved: Mapping[str, Corpus] = field(default_factory=dict[str, Any])
    trust: bool = False

    @cached_property
    def config(self) -> RunConfig | None:
        """The newest config; None if a program without a config started the run.

        Raises:
            ConfigError: The config is invalid.
        """
        return used_config(self.files)

    @property
    def parent(self) -> Parent | None:
        """The checkpoint of another run from which this run started.

        The sampler of a branch has the batches of all steps, including the steps of
        its parent. The metrics of steps up to `parent.step` are in the folder of the
        parent: `open_run(run.parent.path).metrics`.
        """
        return self.files.parent

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The undamaged rows of `metrics.jsonl`, in order."""
        return self.files.rows()[0]

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The descriptions of the undamaged checkpoints, by step."""
        return tuple(self.files.checkpoints()[0])

    def sampler(
        self,
        fields: Iterable[Field] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> Sampler:
        """Return the sampler of the run, for its trained and its planned batches.

        The batch of a past step is the one that was trained, even if the schedule was
        edited or a corpus has grown since. Later steps follow the plan of the last
        start.

        Args:
            fields: As for `Curriculum.sampler`.
            check: As for `Curriculum.sampler`.

        Raises:
            RunFolderError: A corpus cannot be opened or is not the corpus of the run,
                or the files of the run contradict each other; the message says what to
                do.
            RunMismatchError: A file of the run is damaged.
            CheckpointError: All checkpoints are damaged.
        """
        data = self.files.data()
        try:
            sampler = recorded_sampler(data.state, self._readers, fields, check)
            sampler.check(data.trained)
        except StateMismatch as error:
            raise RunFolderError(
                f"{self.path}: the corpora are not those of the run: "
                f"{'; '.join(error.differences)}; give the corpora that the run read, "
                "by sources={NAME: path} or --source NAME=PATH"
            ) from error
        except CurriculumError as error:
            raise RunFolderError(f"{self.path}: {error}") from error
        return sampler

    @cached_property
    def withdrawals(self) -> tuple[Withdrawal, ...]:
        """What the run leaves out of the loss, each from its step on."""
        return self.sampler().withdrawals

    @property
    def has_masks(self) -> bool:
        """Whether the run reads a column `loss_mask` of a corpus."""
        return any(
            source.get("loss_mask") is not None
            for source in self.files.data().state["sources"]
        )

    @property
    def primary(self) -> str:
        """Name of the primary source at the last start; `"self"` without a name."""
        return self.files.primary

    @property
    def trained_steps(self) -> int:
        """Number of steps trained at the newest sound checkpoint.

        For a run without checkpoints, such as one of a `RunLog`, its rows count.
        """
        if self.files.saved_step is not None:
            return self.files.data().trained["step"]
        row = self.files.newest_rows.get("train")
        return 0 if row is None else row["step"]

    def corpora(self) -> dict[str, TokenReader]:
        """Return the corpora of the run by source name, at the recorded versions.

        Raises:
            RunFolderError: A corpus cannot be opened.
        """
        return dict(self._corpora)

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of the recorded versions by source name."""
        sources = self.files.data().state["sources"]
        return {each["name"]: each["fingerprint"] for each in sources}

    @cached_property
    def _corpora(self) -> dict[str, TokenReader]:
        readers, state = dict(self._readers), self.files.data().state
        for name, reader in readers.items():
            try:
                readers[name] = recorded_reader(state, name, reader)
            except ShardError as error:
                raise self._cannot_open(name, error) from error
        return readers

    def model(self, step: int | None = None, model: Any = None) -> Any:
        """Return the model with the weights of a checkpoint.

        If the run's optimizer averages the weights, the model gets the average, as in
        the run's evaluations. A `model` that you pass gets the trained weights.

        Args:
            step: Step of the checkpoint; None for the newest sound checkpoint.
            model: A Flax NNX model to read the weights into. None makes the model that
                the run's config names, or the one that your program made by
                `roxxel.models`.

        Raises:
            RunFolderError: The run has no checkpoint, or no config and no `model` was
                given, or its config names code that is not trusted.
            CheckpointError: The checkpoint is missing or damaged, or does not fit.
            ConfigError: The function of the config cannot make the model.
        """
        optimizer: Any = None
        if model is None:
            model, made = self._pair()
            averaged = getattr(made, "averaged", None)
            if averaged is not None and averaged(model) is not None:
                optimizer = made

        from roxxel_ckpt import Checkpointer

        path = f"{self.path}/checkpoints"
        with Checkpointer(path, model, optimizer, read_only=True) as checkpointer:
            if not checkpointer.restore(step):
                raise RunFolderError(
                    f"{self.path}: holds no checkpoint; train the run until it saves"
                )
        if optimizer is not None:
            from flax import nnx

            nnx.update(model, optimizer.averaged(model))
        return model

    def check_trusted(self, config: RunConfig) -> None:
        """Check that the code of the run's config may run; see `open_run`.

        Raises:
            RunFolderError: The config names code that is not trusted.
        """
        if not self.trust:
            check_trusted(config, self.files.path)

    def _pair(self) -> tuple[Any, Any]:
        config = self.config
        if config is not None and config.model is not None:
            self.check_trusted(config)
            return make_pair(config, self.files.data().state)
        made_by = self.files.made_by
        if made_by is None:
            raise RunFolderError(
                f"{self.path}: a program without a config started this run, with a "
                "model that does not say who made it; give --model MODULE:FUNCTION, a "
                "function that returns the model (model= in Python)"
            )

        # Named as a config names it: this module stands below the models.
        models = import_module("roxxel.models")
        try:
            return models.remade(made_by)
        except (TypeError, ValueError) as error:
            raise RunFolderError(f"{self.path}: {error}") from error

    def with_moved(self, config: RunConfig) -> RunConfig:
        """Return a config of the run with all its corpora where they are now.

        Raises:
            RunFolderError: You gave a moved source as an open reader.
        """
        now = {
            name: tuple(map(absolute, self._paths(name, where)))
            for name, where in self.moved.items()
        }
        sources = {name: now.get(name, old) for name, old in config.sources.items()}
        held_out = config.held_out
        for key, (name, source) in config.held_out_corpora.items():
            if key in now:
                moved = {**held_out[name].sources, source: now[key]}
                held_out[name] = replace(held_out[name], sources=moved)
        sets = held_out.get("", held_out or None)
        return replace(config, sources=sources, eval=sets)

    @cached_property
    def _readers(self) -> dict[str, TokenReader]:
        """The open sources of the run, without unused sources of unknown location."""
        data = self.files.data()
        names = [entry["name"] for entry in data.state["sources"]]
        unknown = sorted(self.moved.keys() - set(names))
        if unknown:
            held_out = self.config.held_out_corpora if self.config else {}
            for name in unknown:
                if name not in held_out:
                    known = ", ".join(map(repr, [*names, *held_out]))
                    raise RunFolderError(
                        f"{self.path}: the run has no source {name!r}; its sources are "
                        f"{known}"
                    )
        drawn = {name for phase in data.state["phases"] for name in phase["weights"]}
        readers: dict[str, TokenReader] = {}
        for name in names:
            where = self.moved.get(name, data.sources.get(name))
            if where is None and self.config is not None:
                # The log has no path for a corpus of another format.
                where = self._foreign(name)
            if where is not None:
                readers[name] = self._opened(name, where)
            elif name in drawn:
                raise RunFolderError(
                    f"{self.path}: the folder does not record where source {name!r} "
                    f"is; pass sources={{{name!r}: path}}"
                )
        return readers

    def _paths(self, name: str, where: Corpus) -> list[str]:
        if isinstance(where, str | os.PathLike):
            return [os.fspath(where)]
        if isinstance(where, list | tuple):
            return list(cast("Sequence[str]", where))
        raise RunFolderError(
            f"{self.path}: source {name!r} is given as a {type(where).__name__}, but "
            "a config names sources by paths; give its path"
        )

    def _foreign(self, name: str) -> TokenReader | None:
        """Return the reader of a source whose config names another format, or None."""
        assert self.config is not None  # noqa: S101 - the caller checks it
        try:
            return open_foreign_source(self.config, name)
        except (OSError, ShardError) as error:
            raise self._cannot_open(name, error) from error

    def _opened(self, name: str, where: Corpus) -> TokenReader:
        if isinstance(where, str | os.PathLike):
            path: Any = where
        elif isinstance(where, list | tuple):
            path = list(cast("Sequence[str]", where))
        else:
            return cast("TokenReader", where)
        # The config says how a source is read, wherever its files are now.
        options = self.config.readers.get(name, {}) if self.config is not None else {}
        try:
            if options or foreign_format(path) is not None:
                return open_foreign(path, **options)
            reader = Roxxel(path)
            _ = reader.num_tokens
        except (OSError, ValueError) as error:
            raise self._cannot_open(name, error) from error
        return reader

    def _cannot_open(self, name: str, error: Exception) -> RunFolderError:
        return RunFolderError(
            f"{self.path}: source {name!r} of the run cannot be opened ({error}); "
            f"pass sources={{{name!r}: path}}, or --source {name}=PATH, if it moved"
        )
