"""A scan finds a text whatever tokens spell it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel
from roxxel_format.scans import Scan
from roxxel_prepare import scan_corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LETTERS = "aeioulnrstdéüçøñ"


def words(number: int, seed: object) -> list[str]:
    chosen = random.Random(str(seed))
    return ["".join(chosen.choices(LETTERS, k=5)) for _ in range(number)]


LEAK = " ".join(words(20, "leak"))
DOCUMENTS = [" ".join(words(60, n)) for n in range(12)]


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([LEAK, *DOCUMENTS], trainer)
    return made


UNKNOWN = "[UNK]"


def word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece()
    trainer: Any = trainers.WordPieceTrainer(
        vocab_size=900, special_tokens=[UNKNOWN], show_progress=False
    )
    made.train_from_iterator([LEAK, *DOCUMENTS], trainer)
    return made


def decoded_whole() -> Tokenizer:
    """Return a tokenizer whose decoder changes texts across tokens."""
    made = byte_level()
    made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 0, 0)])
    return made


def as_encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text).ids


def byte_by_byte(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return other tokens of the same text, which no merge has joined."""
    byte_of = tokenizer.get_vocab()
    names = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((spelled, _),) = names.pre_tokenize_str(text)
    return [byte_of[letter] for letter in spelled]


@pytest.mark.parametrize(
    ("make", "spelled"),
    [
        (byte_level, as_encoded),
        (byte_level, byte_by_byte),
        (word_piece, as_encoded),
        (decoded_whole, as_encoded),
    ],
)
def test_a_text_is_found_whatever_tokens_spell_it(
    make: Callable[[], Tokenizer],
    spelled: Callable[[Tokenizer, str], list[int]],
    tmp_path: Path,
) -> None:
    tokenizer = make()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    leak = spelled(tokenizer, f" {LEAK}")
    documents: list[list[int]] = []
    begins: list[int] = []
    for number, text in enumerate(DOCUMENTS):
        ids = tokenizer.encode(text).ids
        half = len(ids) // 2
        if number % 3 == 0:
            begins.append(sum(map(len, documents)) + half)
            ids[half:half] = leak
        documents.append(ids)
    corpus = Roxxel(tmp_path / "ids_*.rox")
    corpus.write([np.array(ids) for ids in documents], vocab_size=1000)
    (tmp_path / "exam.txt").write_text(LEAK.upper().replace(" ", "\n"))

    scan = scan_corpus(
        str(tmp_path / "ids_*.rox"),
        tmp_path / "exam.txt",
        tmp_path / "s.json",
        tokenizer=str(tmp_path / "tokenizer.json"),
    )

    assert isinstance(scan, Scan)
    assert len(scan.ranges) == len(begins)
    # The first word may be joined with letters before it, and the last with those
    # after it; then an n-gram of the words between them is what is found.
    for (start, stop), begin in zip(scan.ranges, begins, strict=True):
        assert begin - 2 <= start <= begin + len(leak) // 3
        assert begin + len(leak) * 2 // 3 <= stop <= begin + len(leak) + 2
