"""The files from which transformers loads a tokenizer."""

from __future__ import annotations

import json
from typing import Any

from roxxel_format.texts import BYTE_ALPHABET, END_OF_TEXT
from roxxel_store.records import find_object


def tokenizer_files(definition: str, end: int | None) -> dict[str, str]:
    """Return the texts of a tokenizer's files by name.

    Args:
        definition: Content of `tokenizer.json`.
        end: The token that ends a text, if any.
    """
    found = find_object(definition.encode()) or {}
    added: list[dict[str, Any]] = found.get("added_tokens") or []
    names = [token["content"] for token in added if token["id"] == end]
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if names:
        config["eos_token"] = names[0]
    text = f"{json.dumps(config, indent=2)}\n"
    return {"tokenizer.json": definition, "tokenizer_config.json": text}


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
