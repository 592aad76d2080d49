# /// script
# requires-python = ">=3.11"
# dependencies = ["awkward", "gigatoken==0.10.0"]
# ///
"""gigatoken's `encode_files` over JSON lines, in one process and one thread.

    python prepare_gigatoken.py TOKENIZER INPUTS...

Prints the number of tokens, with one separator for each document. It writes nothing.
Without arguments, its exit code only says whether gigatoken is installed.
"""

from __future__ import annotations

import sys

import awkward
import gigatoken


def main() -> None:
    if not sys.argv[1:]:
        return
    tokenizer, *inputs = sys.argv[1:]
    encoder = gigatoken.Tokenizer(tokenizer)
    num_tokens = 0
    for path in inputs:
        found = encoder.encode_files(gigatoken.JsonlFileSource([path]), parallel=False)
        num_tokens += int(awkward.count(found)) + len(found)
    print(f"{num_tokens}\n", end="")  # one write, beside another process


if __name__ == "__main__":
    main()
