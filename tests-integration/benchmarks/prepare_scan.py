"""Measures a scan for evaluation sets against plain reading, and checks what it finds.

The corpus is Python's own library, some files of which get a planted question in one of
seven spellings. Each way reads the same tokens in one process: `read` only reads them,
`decode` also makes their text, and `scan` searches the normalised words. Figures are
megabytes of text per CPU second, and the time divided by that of `read`.

    python tests-integration/benchmarks/prepare_scan.py [--mib 64]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import tempfile
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel.quickstart.corpus import find_library, read_library
from roxxel_format import Roxxel
from roxxel_format.scans import Scan
from roxxel_format.texts import text_codec
from roxxel_prepare import scan_corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUESTIONS = 70
CHUNK = 1 << 19
SPELLINGS: dict[str, Callable[[str], str]] = {
    "whole": str,
    "embedded": lambda text: " ".join(text.split()[3:-2]),
    "short lines": lambda text: text.replace(" ", "\n"),
    "white space": lambda text: text.replace(" ", " \u00a0\t"),
    "case": str.upper,
    "Unicode": lambda text: unicodedata.normalize("NFD", text).translate(
        {each: each + 0xFEE0 for each in range(ord("a"), ord("z") + 1)}
    ),
    "tokenisation": lambda text: text.replace("e", "e\u200b"),
}
"""The last has invisible spaces, which give other tokens but the same words."""


class Result(NamedTuple):
    """The figures of a corpus of one tokenizer."""

    mb_per_s: dict[str, float]
    recall: dict[str, int]
    masked: float
    in_documents: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        measured(Path(folder), options.mib)


def measured(folder: Path, mib: int) -> dict[str, Result]:
    """Print and return the figures of a corpus of each tokenizer."""
    questions = [_question(number) for number in range(QUESTIONS)]
    exam = folder / "exam.txt"
    exam.write_text("\n\n".join(questions), encoding="utf-8")
    texts, planted = _planted(mib << 20, questions)
    found: dict[str, Result] = {}
    for name, tokenizer in {"bytes": "bytes", "bpe": _bpe(texts[:200])}.items():
        corpus = Roxxel(folder / f"{name}.rox")
        corpus.write(texts, tokenizer=tokenizer)
        found[name] = _of_corpus(corpus, exam, planted, folder / f"{name}.json")
        size = sum(len(text.encode()) for text in texts) / 1e6
        print(f"{name}: {size:.0f} MB of text, {corpus.num_tokens:,} tokens")
        for way, rate in found[name].mb_per_s.items():
            ratio = found[name].mb_per_s["read"] / rate
            print(f"  {way:8} {rate:7.1f} MB/s of CPU, {ratio:6.1f} times read")
        for kind, count in found[name].recall.items():
            print(f"  {kind:12} {count} of {QUESTIONS // len(SPELLINGS)} found")
        share, whole = found[name].masked, found[name].in_documents
        print(f"  masked {share:.3%} of the tokens; their documents have {whole:.2%}")
    return found


def _question(number: int) -> str:
    """Return a question of made-up words, so that no file holds it by chance."""
    chosen = random.Random(number)
    syllables = ["ka", "lé", "mo", "ri", "tu", "ne", "sol", "va", "dü", "per"]
    words = ("".join(chosen.choices(syllables, k=3)) for _ in range(24))
    return " ".join(words)


def _planted(num_bytes: int, questions: list[str]) -> tuple[list[str], dict[int, str]]:
    """Return texts, and the spelling in each document that has one."""
    files = [file.content.decode() for file in read_library(find_library()).train]
    texts: list[str] = []
    size = 0
    while size < num_bytes or len(texts) < 2 * len(questions):
        text = f"# copy {len(texts)}\n{files[len(texts) % len(files)]}"
        texts.append(text)
        size += len(text)
    kinds = [*SPELLINGS]
    step = len(texts) // len(questions)
    planted: dict[int, str] = {}
    for number, question in enumerate(questions):
        kind, at = kinds[number % len(kinds)], number * step
        half = len(texts[at]) // 2
        spelled = SPELLINGS[kind](question)
        texts[at] = f"{texts[at][:half]} {spelled} {texts[at][half:]}"
        planted[at] = kind
    return texts, planted


def _bpe(texts: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=8000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def _of_corpus(
    corpus: Roxxel, exam: Path, planted: dict[int, str], receipt: Path
) -> Result:
    num_bytes = 0

    def read() -> None:
        for _ in _chunks(corpus):
            pass

    def decode() -> None:
        nonlocal num_bytes
        codec = text_codec(corpus)
        pieces = None if codec is None else codec.pieces()
        assert pieces is not None
        nowhere = np.empty(0, np.int64)
        for tokens in _chunks(corpus):
            ids = tokens.astype(np.int64)
            num_bytes += len(b"".join(pieces.of(ids, nowhere, nowhere)))

    scans: list[Any] = []

    def scan() -> None:
        scans.append(scan_corpus(str(corpus.paths[0]), exam, receipt))

    seconds: dict[str, float] = {}
    for way in (read, decode, scan):
        began = time.process_time()
        way()
        seconds[way.__name__] = time.process_time() - began
    [found] = scans
    assert isinstance(found, Scan)
    documents = {*found.found[:, 2].tolist()}
    recall = dict.fromkeys(SPELLINGS, 0)
    for document, kind in planted.items():
        recall[kind] += document in documents
    lengths = (corpus.document_range(each) for each in documents)
    in_documents = sum(stop - start for start, stop, _ in lengths)
    return Result(
        {way: num_bytes / 1e6 / took for way, took in seconds.items()},
        recall,
        found.num_found / corpus.num_tokens,
        in_documents / corpus.num_tokens,
    )


def _chunks(corpus: Roxxel) -> Iterator[Any]:
    for start in range(0, corpus.num_tokens, CHUNK):
        yield corpus.read([start], min(CHUNK, corpus.num_tokens - start))[0]


if __name__ == "__main__":
    main()
