"""Tokenizes JSON lines in one process without Roxxel, in two ways, for comparison.

    python _tokenizing.py bare|loop TOKENIZER OUTPUT INPUTS...

`bare` is the upper limit of speed: it reads lines and encodes texts in batches, as
Roxxel does, but neither copies the ids out of the library nor writes them. `loop` works
like Megatron-LM's `preprocess_data.py`: it encodes line by line, and appends the ids to
a flat file. Both print the number of tokens, with one separator for each document.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_TEXTS = 256
BATCH_CHARACTERS = 1 << 20


def texts_of(paths: list[str]) -> Iterator[str]:
    for path in paths:
        with Path(path).open("rb") as file:
            for line in file:
                yield json.loads(line)["text"]


def bare(tokenizer: Any, _output: str, paths: list[str]) -> int:
    """Encode in batches; return the number of tokens."""
    batch: list[str] = []
    size = num_tokens = 0
    for text in texts_of(paths):
        batch.append(text)
        size += len(text)
        if len(batch) == BATCH_TEXTS or size >= BATCH_CHARACTERS:
            num_tokens += sum(len(each) + 1 for each in tokenizer(batch))
            batch, size = [], 0
    return num_tokens + sum(len(each) + 1 for each in tokenizer(batch))


def loop(tokenizer: Any, output: str, paths: list[str]) -> int:
    """Encode line by line into a flat file; return the number of tokens."""
    with Path(output).open("wb") as file:
        for text in texts_of(paths):
            np.array([*tokenizer(text).ids, 0], np.uint16).tofile(file)
        return file.tell() // 2


def main() -> None:
    way, path, output, *inputs = sys.argv[1:]
    tokenizer: Any = tokenizers.Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    if way == "bare":
        print(bare(tokenizer.encode_batch_fast, output, inputs))
    else:
        print(loop(tokenizer.encode, output, inputs))


if __name__ == "__main__":
    main()
