# /// script
# requires-python = ">=3.11"
# dependencies = ["datatrove==0.10.1", "numpy", "orjson", "tokenizers"]
# ///
"""datatrove's tokenizer pipeline over JSON lines, in two worker processes.

    python prepare_datatrove.py TOKENIZER OUTPUT INPUT_FOLDER

Without arguments, its exit code only says whether datatrove is installed. Prints the
number of tokens. A batch is 1000 documents: the default of 10000 needs more than 10 GB
in each process for documents of 14 kB.
"""

from __future__ import annotations

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main() -> None:
    if not sys.argv[1:]:
        return
    tokenizer, output, inputs = sys.argv[1:]
    LocalPipelineExecutor(
        [
            JsonlReader(inputs, glob_pattern="*.jsonl"),
            DocumentTokenizer(
                output,
                tokenizer,
                eos_token="<|endoftext|>",  # noqa: S106 - a token of text
                batch_size=1000,
                shuffle_documents=False,
            ),
        ],
        tasks=len([*Path(inputs).glob("*.jsonl")]),
        workers=2,
        start_method="spawn",  # So that the times of its workers are counted.
        logging_dir=f"{output}/logs",
    ).run()
    print(sum(path.stat().st_size for path in Path(output).rglob("*.ds")) // 2)


if __name__ == "__main__":
    main()
