"""Tokenizes JSON lines in one process without Roxxel, in two ways, for comparison.

    python _tokenizing.py bare|loop TOKENIZER OUTPUT INPUTS...

`bare` is the upper limit of speed: it parses lines with msgspec and encodes texts in
batches with `fastokens`, as Roxxel does, but writes nothing. `loop` works
like Megatron-LM's `preprocess_data.py`: it encodes line by line, and appends the ids to
a flat file. Both print the number of tokens, with one separator for each document.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH_TEXTS = 256
BATCH_CHARACTERS = 1 << 20


def texts_of(paths: list[str], parse: Callable[[bytes], Any]) -> Iterator[str]:
    for path in paths:
        with Path(path).open("rb") as file:
            for line in file:
                yield parse(line)["text"]


def bare(tokenizer: str, paths: list[str]) -> int:
    """Encode in batches; return the number of tokens."""
    encoder: Any = import_module("fastokens").Tokenizer.from_file(tokenizer)
    batch: list[str] = []
    size = num_tokens = 0

    def num_encoded() -> int:
        ids, _ = encoder.encode_batch_flat(batch, True, True)
        return len(ids) // 4 + len(batch)

    for text in texts_of(paths, import_module("msgspec.json").decode):
        batch.append(text)
        size += len(text)
        if len(batch) == BATCH_TEXTS or size >= BATCH_CHARACTERS:
            num_tokens += num_encoded()
            batch, size = [], 0
    return num_tokens + num_encoded()


def loop(tokenizer: str, output: str, paths: list[str]) -> int:
    """Encode line by line into a flat file; return the number of tokens."""
    encoder: Any = import_module("tokenizers").Tokenizer.from_file(tokenizer)
    encoder.encode_special_tokens = True
    with Path(output).open("wb") as file:
        for text in texts_of(paths, json.loads):
            np.array([*encoder.encode(text).ids, 0], np.uint16).tofile(file)
        return file.tell() // 2


def main() -> None:
    way, tokenizer, output, *inputs = sys.argv[1:]
    if way == "bare":
        print(f"{bare(tokenizer, inputs)}\n", end="")  # one write, beside another
    else:
        print(f"{loop(tokenizer, output, inputs)}\n", end="")


if __name__ == "__main__":
    main()
