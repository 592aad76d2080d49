"""Check `model` and `[model_args]` without JAX, so that `roxxel plan` can do it too.

The module of a model imports JAX, so this module reads the function's declaration from
its source instead. If it cannot find the function, or a decorator may have changed it,
`roxxel train` checks it after the import. For the decoders of `roxxel.models`, it knows
the sizes without JAX, and compares them with the corpora.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.arguments import Table, check_table, nearest

from roxxel.config._code import keywords_of
from roxxel.config._declaration import ConfigError
from roxxel.recipe import KEYS, OptimizerConfig, among
from roxxel.recipe.learning_rate import RECIPE, LearningRate
from roxxel.recipe.llama_config import LlamaConfig, llama_config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from roxxel_curriculum import Curriculum, ResolvedPhase
    from roxxel_format import TokenReader

    from roxxel.config._declaration import RunConfig


def check_model_args(config: RunConfig) -> None:
    """Raise ConfigError if the function that `model` names refuses its keys.

    This function imports nothing, and accepts a function that it cannot find. For the
    recipe of `roxxel.models` it also checks the values.
    """
    if config.model == RECIPE:
        _recipe_model(config)
    elif config.model is not None:
        known = keywords_of(config.folder, config.model)
        if known is not None:
            check_keys(config, known)


def check_model_data(config: RunConfig, curriculum: Curriculum) -> None:
    """Raise ConfigError if the recipe does not fit the corpora and phases.

    What another model needs is known only later, from its trace.
    """
    if config.model != RECIPE:
        return
    model = _recipe_model(config)
    recipe_rate(config, curriculum.total_steps)
    longest = max(phase.seq_len for phase in curriculum.phases)
    if longest - 1 > model.context:
        raise ConfigError(
            f"{config.file}: a phase has seq_len = {longest}, whose last token is only "
            f"a target, but the model's context is {model.context}; write context = "
            f"{longest - 1} in [model_args], or a shorter seq_len"
        )
    read = {
        source: reader
        for source, reader in curriculum.streamers.items()
        if any(phase.weights.get(source) for phase in curriculum.phases)
    }
    for source, reader in read.items():
        seen = reader.token_range_seen
        if seen is not None and seen[1] >= model.vocab_size:
            raise ConfigError(
                f"{config.file}: source {source!r} holds tokens up to {seen[1]}, but "
                f"the model has vocab_size = {model.vocab_size}; write the number of "
                f"the tokenizer's tokens, at least {seen[1] + 1}, in [model_args]"
            )
    _check_ends(config, model.end_tokens, read)


def recipe_rate(config: RunConfig, total_steps: int) -> LearningRate:
    """Return the schedule of the learning rate of a config of the recipe.

    Raises:
        ConfigError: A value is out of range.
    """
    try:
        own = {"total_steps": total_steps, **config.model_args}
        return LearningRate(**among(LearningRate, own))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config.file}: {error}") from error


def check_columns(config: RunConfig, phases: Sequence[ResolvedPhase]) -> None:
    """Raise ValueError if the recipe's model cannot split the columns of a phase.

    The sizes of all axes of the mesh must be known.
    """
    if config.model != RECIPE or config.mesh is None:
        return
    from roxxel_loader.sharding.presets import column_ways

    sizes = {**config.mesh.axes}
    sizes.pop(_recipe_model(config).tensor_axis or "", None)
    for phase in phases:
        rows = phase.batch_size // config.trainer.grad_accum_steps
        column_ways(sizes, rows, phase.seq_len - 1)


def _check_ends(
    config: RunConfig, ends: tuple[int, ...], read: Mapping[str, TokenReader]
) -> None:
    """Raise ConfigError if the model does not know a source's end-of-document token.

    A model without such tokens fits any source. A source fits any model if it records
    no separator, or one of several tokens.
    """
    first: dict[int, str] = {}
    for source, reader in read.items():
        separator = reader.separator
        if len(separator) == 1:
            first.setdefault(separator[0], source)
    if ends and first.keys() - {*ends}:
        found = " and ".join(
            f"token {token} ends the documents of source {source!r}"
            for token, source in first.items()
        )
        raise ConfigError(
            f"{config.file}: the model has eos_token_id = {_shown(ends)}, but {found}; "
            f"write eos_token_id = {_shown([*first])} in [model_args]"
        )


def _shown(tokens: Sequence[int]) -> str:
    """Return tokens in the form of `eos_token_id` in a config."""
    return str(tokens[0] if len(tokens) == 1 else [*tokens])


def _recipe_model(config: RunConfig) -> LlamaConfig:
    args = config.model_args
    check_keys(config, KEYS)
    try:
        check_table(Table(KEYS), args)
        OptimizerConfig(**among(OptimizerConfig, args))
        sizes = among(LlamaConfig, args)
        if "preset" in args:
            return llama_config(args["preset"], **sizes)
        return llama_config(**sizes)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config.file}: {error}") from error


def check_keys(config: RunConfig, accepted: Collection[str]) -> None:
    """Raise ConfigError unless every key of `[model_args]` is among the accepted."""
    for key in config.model_args:
        if key not in accepted:
            hint = nearest(key, accepted) or (
                f"the function accepts {' and '.join(accepted) or 'none'}"
            )
            raise ConfigError(
                f"{config.file}: [model_args] has the key {key!r}, which "
                f"{config.model} does not accept; {hint}"
            )
