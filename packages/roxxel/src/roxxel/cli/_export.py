"""`roxxel export`: writes the model of a run as a folder for transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from roxxel_ckpt.locations import split_step
from roxxel_format.texts import TEMPLATE_FILE, TOKENIZER_FILE
from roxxel_store.screen import say
from roxxel_train import RunFolderError

from roxxel.cli._arguments import (
    Json,
    Model,
    RunAtStep,
    Sources,
    Tokenizer,
    Trust,
    codec_of_run,
    ends_of,
    model_of,
    opened,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_format import TokenReader

    from roxxel.models import Llama
    from roxxel.runs.run import Run


def export(
    run: RunAtStep,
    folder: Annotated[str, "a folder, new or empty"],
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    model: Model = None,
    source: Sources = (),
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Write the model of a run as a folder that the library transformers loads.

    AutoModelForCausalLM.from_pretrained(FOLDER) has the same logits. The folder gets
    weights, config.json, generation_config.json and the tokenizer's files. RUN@STEP
    takes the checkpoint of a step, RUN the newest one. If the run averages its weights,
    the average is written. For a model of your own, `roxxel ckpt export` writes the
    weights alone.

    Args:
        dtype: Type of the weights (default: float32, as trained).

    Example:
        roxxel export runs/first exported
    """
    name, step = split_step(run)
    of_run = opened(name, source, trust=trust)
    made = model_of(of_run, step, model)

    from roxxel.models import Llama
    from roxxel.models.huggingface import export_model

    if not isinstance(made, Llama):
        raise RunFolderError(
            f"{name}: its model is a {type(made).__name__}, which is no class "
            "of transformers; export the weights alone by `roxxel ckpt export`"
        )
    found = _tokenizer(of_run, made, tokenizer)
    config = made.config
    if config.eos_token_id is None and found.ends:
        end = found.ends[0] if len(found.ends) == 1 else found.ends
        config = replace(config, eos_token_id=end)
    if config.bos_token_id is None and found.before:
        config = replace(config, bos_token_id=found.before[0])
    made.config, files = config, found.files
    try:
        export_model(made, folder, dtype=dtype, tokenizer=files)
    except (ValueError, ModuleNotFoundError) as error:
        raise RunFolderError(f"{name}: {error}") from error
    count = made.config.num_parameters
    if json_:
        facts = {"folder": folder, "parameters": count}
        facts |= {"dtype": dtype, "has_tokenizer": bool(files)}
        say(json.dumps(facts))
        return
    say(f"{folder}: {count:,} parameters in {dtype}, {found.note}")


class _Tokenizer(NamedTuple):
    """Facts about text in the folder: the tokenizer's files, how documents end."""

    note: str
    ends: tuple[int, ...] = ()
    before: Sequence[int] = ()
    files: Mapping[str, str] = MappingProxyType({})


def _tokenizer(run: Run, model: Llama, tokenizer: str | None) -> _Tokenizer:
    from roxxel.models.tokenizer_files import byte_definition, tokenizer_files

    corpora: Mapping[str, TokenReader] = {}
    try:
        corpora = run.corpora()
        codec = codec_of_run(run, tokenizer)
        ends = tuple(ends_of(corpora, model, codec))
        before = codec.before
        found = {**_kept_files(corpora), **codec.files}
        recorded = [x.tokenizer for x in corpora.values() if x.tokenizer is not None]
        # Bytes that a write has recorded end with a token, other bytes do not.
        if not found and all(x.startswith("bytes") for x in recorded):
            found = {TOKENIZER_FILE: byte_definition(has_end=bool(recorded))}
        if TOKENIZER_FILE not in found:
            note = "without a tokenizer, because transformers has no form of it"
            return _Tokenizer(note, ends, before)
        files = tokenizer_files(found, before, ends, model.config.vocab_size)
    except (ValueError, OSError) as error:
        ends = tuple(ends_of(corpora, model, None))
        return _Tokenizer(f"without a tokenizer, because {error}", ends)
    note = f"with the tokenizer ({', '.join(sorted(files))})"
    return _Tokenizer(note, ends, before, files)


def _kept_files(corpora: Mapping[str, TokenReader]) -> dict[str, str]:
    """Return the files of the tokenizers that all sources keep.

    The sources share one `tokenizer.json`, but only chats have a template.

    Raises:
        RunFolderError: Two sources were rendered by different templates.
    """
    found: dict[str, str] = {}
    for name, corpus in corpora.items():
        files = corpus.tokenizer_files
        template = files.get(TEMPLATE_FILE)
        if template is not None and found.get(TEMPLATE_FILE, template) != template:
            raise RunFolderError(
                f"source {name!r} has another chat template than a source before it; "
                "pass the tokenizer with the template that you want by --tokenizer"
            )
        found = {**files, **found}
    return found
