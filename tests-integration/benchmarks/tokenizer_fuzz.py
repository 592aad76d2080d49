"""Compares `fastokens` with `tokenizers` on texts that are made to break it.

For each kind of tokenizer that models use, a small one is trained on Python's standard
library: byte-level like GPT-2, with the word rules of Llama-3 and of Qwen-2 (which
normalises to NFC), and SentencePiece pieces with byte fallback like Llama-2. Both
encode every code point between letters, digits, spaces and line ends, and thousands of
documents of 15 classes. Any difference ends the program with its document.

    python tests-integration/benchmarks/tokenizer_fuzz.py [--documents 20000]
        [--step 1] [--tokenizer FILE ...]
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_prepare.tokenizers import load_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BATCH = 200
_WORDS_OF_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_OF_QWEN_2 = _WORDS_OF_LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPECIAL = "<|endoftext|>"
_UNKNOWN = "<unk>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument(
        "--step", type=int, default=1, help="compare each STEPth code point"
    )
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tokenizer", type=Path, action="append", default=[], metavar="FILE"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = options.tokenizer or write_all(Path(folder), options.vocab_size)
        for file in files:
            compare(file, options.documents, options.step, options.seed)


def compare(file: Path, num_documents: int, step: int, seed: int) -> None:
    """Encode by both; exit with the first text that differs."""
    started = time.process_time()
    named = load_tokenizer(file, "auto")
    fast = named.tokenizer
    if not hasattr(fast, "num_by_reference"):
        print(f"{file.stem}: encoded by {named.encoder}{named.note}")
        return
    right = Tokenizer.from_file(str(file))
    for each in (fast, right):
        each.encode_special_tokens = True
    num_points = _check(fast, right, points(step), file)
    num_others = fast.num_by_reference
    num_texts = _check(fast, right, documents(num_documents, seed), file)
    print(
        f"{file.stem}: {num_points:,} texts of one code point (to tokenizers: "
        f"{num_others:,}) and {num_texts:,} documents (to tokenizers: "
        f"{fast.num_by_reference - num_others:,}): same ids, "
        f"{time.process_time() - started:.0f} s of CPU"
    )


def _check(fast: Any, right: Any, texts: Iterator[str], file: Path) -> int:
    num_texts = 0
    while batch := [*islice(texts, _BATCH)]:
        found = fast.encode_batch_fast(batch)
        wanted = right.encode_batch_fast(batch)
        for text, one, other in zip(batch, found, wanted, strict=True):
            if [*getattr(one, "ids", one)] != other.ids:
                sys.exit(f"{file}: other ids for {text!a}: {one} and {other.ids}")
        num_texts += len(batch)
    return num_texts


def points(step: int) -> Iterator[str]:
    """Yield each `step`th code point between letters, digits, spaces and line ends."""
    for point in range(0, 0x110000, step):
        if not 0xD800 <= point < 0xE000:
            yield f"a{chr(point)}b1{chr(point)}2 {chr(point)} \n{chr(point)}\n"


def documents(num: int, seed: int) -> Iterator[str]:
    """Yield difficult documents of 15 classes, in turn."""
    draw = random.Random(seed)

    def wild() -> str:
        point = draw.randrange(0x110000 - 0x800)
        return chr(point if point < 0xD800 else point + 0x800)

    def some(count: int, make: Callable[[], str]) -> str:
        return "".join(make() for _ in range(draw.randrange(count)))

    def one_of(*parts: str) -> Callable[[], str]:
        return lambda: draw.choice(parts)

    classes: tuple[Callable[[], str], ...] = (
        lambda: some(400, lambda: chr(draw.randrange(32, 127))),
        lambda: some(100, wild),
        lambda: some(60, one_of(" ", "  ", "\t", "\n", "\r\n", "\v", "\f", "x")),
        lambda: some(20, one_of(_SPECIAL, "<|endoftext", "|>", "<s>", "</s>", " a")),
        lambda: some(60, one_of("e", "é", "\u0301", "\u0323", "ﬁ", "Å", "가", "각")),
        lambda: some(
            30, one_of("0", "12", "345", "6789", ".", ",", "-", "\u0661", "²", "½")
        ),
        lambda: some(
            30, one_of("don't", "I'LL ", "we'Ve", "'s", "'", "\u017f'\u017f", " 'd")
        ),
        lambda: some(60, one_of("漢", "字", "か", "な", "。", "　", "ㄱ", "a")),
        lambda: some(
            30, one_of("👨‍👩‍👧", "🏳️‍🌈", "👍🏽", "\u200d", "\ufe0f", "🇩🇪", "!")
        ),
        lambda: some(60, one_of("\u00a0", "\u2003", "\u2028", "\u200b", "\ufeff", "x")),
        lambda: "a" * draw.randrange(5000),
        lambda: some(60, one_of("\x00", "\x01", "\x7f", "\x1b", "\x85", "a")),
        lambda: some(
            40, one_of("العربية", "हिन्दी", "ไทย", "עברית", " ", "ß", "İ", "\u0131")
        ),
        lambda: some(40, one_of("def f(x):\n", "    ", "return x", "\n\n", "#", "__")),
        lambda: (
            some(8, wild) + "▁" * draw.randrange(4) + some(4, one_of("▁a", "Ġ", "Ċ"))
        ),
    )
    for number in range(num):
        yield classes[number % len(classes)]()


def write_all(folder: Path, vocab_size: int) -> list[Path]:
    """Train one tokenizer of each kind; return their files."""
    texts = [*islice(_library(), 60)]
    made: list[Path] = []
    for name, tokenizer, start in _kinds():
        trainer = BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[_SPECIAL, *start],
            initial_alphabet=[] if start else pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        made.append(folder / f"{name}.json")
        tokenizer.save(str(made[-1]))
    return made


def _kinds() -> Iterator[tuple[str, Any, list[str]]]:
    """Yield names, untrained tokenizers, and which of their tokens are bytes."""
    byte_level: Any = pre_tokenizers.ByteLevel
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = byte_level(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    yield "gpt-2", gpt2, []
    for name, words in (("llama-3", _WORDS_OF_LLAMA_3), ("qwen-2", _WORDS_OF_QWEN_2)):
        one = Tokenizer(models.BPE(ignore_merges=name == "llama-3"))
        one.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(words), "isolated"),
                byte_level(add_prefix_space=False, use_regex=False),
            ]
        )
        if name == "qwen-2":
            one.normalizer = normalizers.NFC()
        one.decoder = decoders.ByteLevel()
        yield name, one, []
    pieces = Tokenizer(
        models.BPE(byte_fallback=True, fuse_unk=True, unk_token=_UNKNOWN)
    )
    pieces.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    yield "llama-2", pieces, [_UNKNOWN, *(f"<0x{byte:02X}>" for byte in range(256))]


def _library() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text("utf-8", errors="replace")


if __name__ == "__main__":
    main()
