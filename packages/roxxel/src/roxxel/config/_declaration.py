"""The content of a config file as dataclasses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from roxxel_curriculum import Schedule  # noqa: TC002 - `check` reads the types
from roxxel_store.arguments import Count, Rule, check, dotted
from roxxel_store.urls import expanded, url_of
from roxxel_train.config import Settings

Sources = Mapping[str, tuple[str, ...]]
"""Source names, and the paths or patterns of each source."""

Readers = Mapping[str, Mapping[str, Any]]
"""Source names, and the keywords of `roxxel_format.foreign.open_foreign`."""

FunctionName = Annotated[
    str,
    Rule(
        pattern=r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*\Z",
        must_be='"module:function"',
    ),
]
LocalPath = Annotated[
    str,
    Rule(pattern=r"(?!.*://)[\s\S]", must_be="the path of a folder on a local disk"),
]
NumDevices = Annotated[
    int,
    Rule(at_least=-1, must_be="a number of devices, or -1 for all remaining devices"),
]


class ConfigError(ValueError):
    """A config file is invalid, or its corpora or devices do not suffice.

    The message names the file.

    >>> from roxxel.config import parse_config
    >>> try:
    ...     parse_config("sead = 1", "first.toml")
    ... except ConfigError as error:
    ...     print(error)
    first.toml: the file has no key 'sead'; did you mean 'seed'?
    """


@dataclass(frozen=True, kw_only=True)
class TrainerConfig(Settings):
    """The settings of the trainer, as `[trainer]` of a config file declares them.

    Attributes:
        eval_fn: As `eval_fn` of `roxxel_train.config.TrainConfig`, as
            `"module:function"`.
        train_step: As `train_step` there, as `"module:function"`.

    >>> TrainerConfig(eval_fn="model:score").eval_fn
    'model:score'
    """

    eval_fn: FunctionName | None = None
    train_step: FunctionName | None = None


@dataclass(frozen=True)
class MeshConfig:
    """The mesh of devices.

    Attributes:
        preset: `"data-parallel"` splits only batches; `"fsdp"` also splits the model;
            `"hybrid"` splits the model inside each of several groups of devices.
        groups: Number of groups for `"hybrid"`, such as TPU slices; otherwise None.
        axes: Number of devices along each named axis, in order; -1 means all remaining
            devices. If `axes` is empty, the preset chooses the axes. An axis `context`
            splits the columns of batches that have too few rows for all devices.
        batch_axes: Axes that split the rows of a batch. If `batch_axes` is empty, the
            first axis of the mesh and the axis `context` split them.

    >>> MeshConfig("fsdp")
    MeshConfig(preset='fsdp', axes={}, batch_axes=(), groups=None)
    """

    preset: Literal["data-parallel", "fsdp", "hybrid"] = "data-parallel"
    axes: Mapping[str, NumDevices] = field(default_factory=dict[str, int])
    batch_axes: tuple[str, ...] = ()
    groups: Count | None = None

    def __post_init__(self) -> None:
        check(self, ConfigError)
        for name, size in self.axes.items():
            if size == 0:
                raise ConfigError(
                    f"{dotted(['axes', name])} must be a number of devices, or -1 for "
                    "all remaining devices, got 0"
                )
        for name in self.batch_axes:
            if name not in self.axes:
                raise ConfigError(
                    f"batch_axes names {name!r}, which is not among axes; write "
                    f"axes = {{ {name} = -1 }}"
                )
        if self.batch_axes and "context" in {*self.axes} - {*self.batch_axes}:
            named = ", ".join(f'"{name}"' for name in (*self.batch_axes, "context"))
            raise ConfigError(
                'axes has "context", which splits the rows of short phases and the '
                f"columns of long ones; write batch_axes = [{named}]"
            )
        if (self.groups is not None) != (self.preset == "hybrid"):
            raise ConfigError(
                'groups belongs to preset = "hybrid"; write both, or neither'
            )
        if self.groups is not None and self.axes:
            raise ConfigError('preset = "hybrid" chooses its axes; leave axes out')

    @property
    def row_axes(self) -> tuple[str, ...]:
        """Axes that split rows: `batch_axes`, or the default without it."""
        names = tuple(self.axes)
        return self.batch_axes or names[:1] + names[1:].count("context") * ("context",)


@dataclass(frozen=True)
class ProxyConfig:
    """How small the proxy of a run is; see `Curriculum.proxy`.

    Attributes:
        scale: Share of the tokens, above 0 and at most 1.
        tokens: Alternative to `scale`: the tokens of the small run.
        seed: Chooses the part of each source that the run reads.

    >>> ProxyConfig(scale=0.125)
    ProxyConfig(scale=0.125, tokens=None, seed=0)
    """

    scale: Annotated[float, Rule(above=0, at_most=1)] | None = None
    tokens: Count | None = None
    seed: Annotated[int, Rule(at_least=0)] = 0

    def __post_init__(self) -> None:
        check(self, ConfigError)
        if (self.scale is None) == (self.tokens is None):
            raise ConfigError(
                "a proxy needs scale or tokens, and not both; write scale = 0.0625, "
                "for example"
            )


@dataclass(frozen=True)
class EvalConfig:
    """The data of one held-out loss.

    Attributes:
        sources: Held-out corpora by source name; weights refer to these names.
        schedule: The held-out schedule. Each evaluation reads all its phases.
        readers: As in `RunConfig`.

    >>> from roxxel_curriculum import Phase, Schedule
    >>> held_out = EvalConfig({"self": ("a.rox",)}, Schedule((Phase(4, 16, 1025),)))
    >>> held_out.schedule.phases[0].steps
    4
    """

    sources: Sources
    schedule: Schedule
    readers: Readers = field(default_factory=dict[str, "Mapping[str, Any]"])


@dataclass(frozen=True)
class RunConfig:
    """The content of one config file.

    Attributes:
        file: Path of the config file.
        sources: Corpora by name; the primary corpus is `"self"`, or `schedule.primary`.
        schedule: The curriculum without its corpora.
        readers: How to open corpora of other formats, by source: `format`, `dtype`,
            `offset` and `separator`, as for `roxxel_format.foreign.open_foreign`.
        model: `"module:function"`; the function returns model, optimizer and loss
            function. A plan needs no model.
        model_args: Keywords of the function that `model` names.
        seed: Seed of the data order.
        save_path: Folder of the run. A plan needs no folder.
        relative_to: Base folder of the file's relative paths; a relative `relative_to`
            starts from the folder of the file.
        trainer: The settings of the trainer. In a file, `false` is the None of Python:
            `max_to_keep = false` keeps all.
        mesh: The mesh of devices; None splits batches over all devices.
        eval: Data of the held-out loss, or of several by name; None if the run has no
            held-out loss.
        proxy: Train a small run that repeats its data as the declared one would; None
            trains the declared run itself.
        cache: Folder for copies of the corpora in buckets; None for no copies.
        cache_bytes: Maximum size of this folder; see `Roxxel`.
        changes: Changes of the file's values, such as `"trainer.log_every=1"`, already
            applied to the other attributes.

    >>> from roxxel.config import parse_config
    >>> toml = '''
    ... save_path = "runs/first"
    ... sources = { self = "web_*.rox" }
    ... phases = [{ steps = 10, batch_size = 2, seq_len = 8 }]
    ... '''
    >>> config = parse_config(toml, "project/first.toml")
    >>> str(config.run_folder)
    'project/runs/first'
    """

    file: Path
    sources: Sources
    schedule: Schedule
    model: FunctionName | None = None
    model_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    save_path: str | None = None
    relative_to: str = "."
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    mesh: MeshConfig | None = None
    eval: EvalConfig | Mapping[str, EvalConfig] | None = None
    proxy: ProxyConfig | None = None
    cache: LocalPath | None = None
    cache_bytes: Count | None = None
    readers: Readers = field(default_factory=dict[str, "Mapping[str, Any]"])
    changes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        check(self, ConfigError)
        if self.cache_bytes is not None and self.cache is None:
            raise ConfigError(
                "cache_bytes is given without cache; write cache = a folder"
            )

    def needed(self, *names: str) -> None:
        """Raise ConfigError unless each of these keys, which training needs, is set."""
        examples = {"model": '"module:function"', "save_path": '"runs/first"'}
        for name in names:
            if getattr(self, name) is None:
                raise ConfigError(
                    f"{self.file}: has no {name}, which training needs; write {name} "
                    f"= {examples[name]}"
                )

    @property
    def held_out(self) -> dict[str, EvalConfig]:
        """The held-out sets by name; the name is empty for an `[eval]` of one set."""
        if self.eval is None:
            return {}
        if isinstance(self.eval, EvalConfig):
            return {"": self.eval}
        return dict(self.eval)

    @property
    def held_out_corpora(self) -> dict[str, tuple[str, str]]:
        """Set and source of each held-out corpus, by its key, such as `"eval.web"`.

        The key of a set that has several sources ends with the source.
        """
        found: dict[str, tuple[str, str]] = {}
        for name, of_set in self.held_out.items():
            for source in of_set.sources:
                ending = [source] if len(of_set.sources) > 1 else []
                found[".".join(filter(None, ["eval", name, *ending]))] = name, source
        return found

    @property
    def folder(self) -> Path:
        """Base folder of relative paths; Python searches the model here first."""
        return _without_detours(self.file.parent / self.relative_to)

    @property
    def run_folder(self) -> Path | str | None:
        """The folder of the run, or its URL as text; None without `save_path`."""
        return None if self.save_path is None else self.corpus(self.save_path)

    def corpus(self, text: str) -> Path | str:
        """Resolve the path of a corpus; check a URL, such as `s3://b/c`."""
        return url_of(text) or self.path(text)

    def path(self, text: str) -> Path:
        """Resolve a path in the file against `folder`."""
        return _without_detours(self.folder / expanded(text))


def _without_detours(path: Path) -> Path:
    """Shorten `a/../b` to `b` for messages, unless `a` is a symbolic link."""
    if ".." not in path.parts:
        return path
    short = Path(os.path.normpath(path))
    target = path.resolve()
    return short if short.resolve() == target else target
