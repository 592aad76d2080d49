"""The files from which transformers loads a tokenizer, and how to generate with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from roxxel_format.texts import BYTE_ALPHABET, END_OF_TEXT
from roxxel_store.records import find_object, parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_GENERATION = "generation_config.json"
_REMEDY = "correct the file, write the corpus again, or pass --tokenizer"


def tokenizer_files(
    files: Mapping[str, str],
    before: Sequence[int],
    ends: Sequence[int],
    vocab_size: int,
) -> dict[str, str]:
    """Return the texts of a tokenizer's files by name, for the folder of a model.

    These are the given files, with what they lack: the first and the last token of a
    document, and how to generate.

    Args:
        files: Texts by name; see `TextCodec.files`.
        before: The tokens before each document.
        ends: The tokens that end a document.
        vocab_size: Number of tokens of the model.

    Raises:
        ValueError: A file is damaged.
    """
    definition = find_object(files["tokenizer.json"].encode()) or {}
    added: list[dict[str, Any]] = definition.get("added_tokens") or []
    names: dict[int, str] = {token["id"]: token["content"] for token in added}
    config, known, generation = (
        parse_object(files[name].encode(), name, _REMEDY) if name in files else {}
        for name in (_CONFIG, _MAP, _GENERATION)
    )
    known = {**known, **{key: x for key, x in config.items() if x is not None}}
    config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    for key, tokens in (("bos_token", before), ("eos_token", ends)):
        if key not in known and tokens and tokens[0] in names:
            config[key] = known[key] = names[tokens[0]]
    numbers = {name: number for number, name in names.items() if number < vocab_size}
    end, pad = (numbers.get(_text(known.get(f"{x}_token"))) for x in ("eos", "pad"))
    # A chat ends with the token that the tokenizer names, a text as its corpus says.
    last = [*dict.fromkeys([*ends, *([] if end is None else [end])])]
    ids: dict[str, Any] = {
        "bos_token_id": before[0] if before else None,
        "eos_token_id": last[0] if len(last) == 1 else last or None,
        "pad_token_id": pad,
    }
    generation |= {key: x for key, x in ids.items() if x is not None}
    return {**files, _CONFIG: _json(config), _GENERATION: _json(generation)}


def _text(token: object) -> str:
    """Return the text of a token; `token` may be an object with options."""
    if isinstance(token, dict):
        token = cast("dict[str, object]", token).get("content")
    return token if isinstance(token, str) else ""


def _json(values: Mapping[str, Any]) -> str:
    return f"{json.dumps(values, indent=2, ensure_ascii=False)}\n"


def byte_definition(*, has_end: bool) -> str:
    """Return `tokenizer.json` of a corpus of bytes: byte b is token b.

    With `has_end`, the token 256 ends a text.
    """
    by_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    end = {"id": 256, "content": END_OF_TEXT, "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocabulary = {spelt: byte for byte, spelt in enumerate(BYTE_ALPHABET)}
    definition = {
        "version": "1.0",
        "added_tokens": [end] if has_end else [],
        "pre_tokenizer": by_bytes,
        "decoder": by_bytes,
        "model": {
            "type": "BPE",
            "vocab": vocabulary | ({END_OF_TEXT: 256} if has_end else {}),
            "merges": [],
        },
    }
    return json.dumps(definition, ensure_ascii=False)
