"""Small tokenizers of every kind that turns tokens into a text in its own way."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCRIPTS = (
    "aeioubcdfghlmnprst",
    "äöüßéèàçñøåłžơươđ",
    "αβγδεζηθικλμνξοπρστυφχψωάέ",
    "абвгдежзиклмнопрстуфхцчшыья",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "कखगघचछजटडतदनपबमयरलवशसहािीुे",
    "กขคงจฉชซดตถทนบปผพมยรลวสหอะาิี",
    "的一是不了人我在有他这中大来上国",
    "ひらがなカタカナのにはをとしてー",
    "가나다라마바사아자차카타파하고도는을",
    "አበገደሀወዘሐጠየከለመነሰ",
)
"""Letters of twelve scripts."""

UNKNOWN, END = "<unk>", "<|endoftext|>"
SPECIAL: dict[str, Any] = {"special_tokens": [END, UNKNOWN], "show_progress": False}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


class OfAnotherLibrary:
    """A tokenizer of which nothing is known: two tokens may show as one letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text.replace("ß", "ss")]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        del skip_special_tokens
        return "".join(chr(each % 55_000) for each in ids).replace("ss", "ß")


@dataclass(frozen=True)
class Kind:
    """What makes a tokenizer, and the number of ids from which documents are drawn."""

    make: Callable[[], Any]
    size: int = 1100

    def __call__(self) -> Any:
        return self.make()


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of all tokens of a document, as the tokenizer's library says."""
    if tokenizer is None:
        return bytes(ids).decode(errors="replace")
    if tokenizer == "bytes":
        parts = (END.encode() if each == 256 else bytes([each]) for each in ids)
        return b"".join(parts).decode(errors="replace")
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def _trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    """Train with some words of each script, so that others are split or unknown."""
    chosen = random.Random(3)
    words = ["".join(chosen.choices(each, k=4)) for each in SCRIPTS * 12]
    tokenizer.train_from_iterator(words * 4, trainer)
    return tokenizer


def _byte_level(*, add_prefix_space: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, max_token_length=9, **SPECIAL
    )
    return _trained(made, trainer)


def _byte_level_with_added() -> Tokenizer:
    made = _byte_level()
    made.add_tokens(
        [
            AddedToken("é", normalized=False),
            AddedToken("äß"),
            AddedToken("好 é"),
            AddedToken("mask", lstrip=True, rstrip=True),
            AddedToken(" of", single_word=True),
        ]
    )
    return made


def _metaspace(model: Any, trainer: Any, scheme: str) -> Tokenizer:
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _trained(made, trainer)


def _unigram(scheme: str) -> Tokenizer:
    trainer = trainers.UnigramTrainer(vocab_size=600, unk_token=UNKNOWN, **SPECIAL)
    return _metaspace(models.Unigram(), trainer, scheme)


def _metaspace_bpe() -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=900, **SPECIAL)
    return _metaspace(models.BPE(unk_token=UNKNOWN), trainer, "always")


def _word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return _trained(made, trainers.WordPieceTrainer(vocab_size=900, **SPECIAL))


def _word_level() -> Tokenizer:
    made = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return _trained(made, trainers.WordLevelTrainer(**SPECIAL))


def _with_suffix() -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(vocab_size=900, end_of_word_suffix="</w>", **SPECIAL)
    return _trained(made, trainer)


def _byte_fallback(*steps: Any) -> Tokenizer:
    letters = [letter for script in SCRIPTS[:4] for letter in script[::2]]
    pieces = dict.fromkeys([*BYTES, END, UNKNOWN, "▁", "▁▁", *letters])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token=UNKNOWN, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(list(steps))
    made.add_special_tokens([END])
    return made


def _replace(old: Any, new: str) -> Any:
    return decoders.Replace(old, new)


def _with_decoder(made: Tokenizer, decoder: Any) -> Tokenizer:
    made.decoder = decoder
    return made


SPACES = _replace("▁", " ")
FALLBACK, FUSE, STRIP = (
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
)

TOKENIZERS: dict[str, Kind] = {
    "raw bytes": Kind(lambda: None, 256),
    "bytes": Kind(lambda: "bytes", 257),
    "byte-level": Kind(_byte_level, 720),
    "byte-level after a space": Kind(lambda: _byte_level(add_prefix_space=True), 720),
    "byte-level with added tokens": Kind(_byte_level_with_added, 720),
    "byte-level in a sequence": Kind(
        lambda: _with_decoder(_byte_level(), decoders.Sequence([decoders.ByteLevel()])),
        720,
    ),
    "byte-level of fused tokens": Kind(
        lambda: _with_decoder(
            _byte_level(), decoders.Sequence([FUSE, decoders.ByteLevel()])
        ),
        720,
    ),
    "metaspace BPE": Kind(_metaspace_bpe),
    "metaspace unigram": Kind(lambda: _unigram("first")),
    "metaspace unigram without a prefix": Kind(lambda: _unigram("never")),
    "WordPiece": Kind(_word_piece),
    "WordLevel": Kind(_word_level, 200),
    "suffix": Kind(_with_suffix),
    "CTC": Kind(lambda: _with_decoder(_word_level(), decoders.CTC(END, UNKNOWN)), 200),
    "byte fallback": Kind(lambda: _byte_fallback(SPACES, FALLBACK, FUSE, STRIP), 320),
    "byte fallback without strip": Kind(lambda: _byte_fallback(SPACES, FALLBACK), 320),
    "byte fallback before spaces": Kind(
        lambda: _byte_fallback(FALLBACK, decoders.Metaspace()), 320
    ),
    "bytes made by a step": Kind(
        lambda: _byte_fallback(_replace("▁", "<0x41>"), FALLBACK, FUSE), 320
    ),
    "strip of two": Kind(
        lambda: _byte_fallback(SPACES, FALLBACK, FUSE, decoders.Strip(" ", 2, 0)), 320
    ),
    "strip of a letter": Kind(
        lambda: _byte_fallback(SPACES, FALLBACK, FUSE, decoders.Strip("é", 1, 0)), 320
    ),
    "dropped spaces": Kind(
        lambda: _byte_fallback(_replace("▁", ""), FUSE, decoders.Strip("a", 1, 0)), 320
    ),
    "replaced at last": Kind(
        lambda: _byte_fallback(FALLBACK, FUSE, _replace(Regex("▁+|[aä]+"), " ")), 320
    ),
    "another library": Kind(OfAnotherLibrary, 0x600),
}
"""Makes each kind of tokenizer; None is for a corpus of bytes without one."""

WHOLE = [
    *("byte-level of fused tokens", "byte fallback before spaces", "CTC"),
    *("bytes made by a step", "strip of two", "strip of a letter", "dropped spaces"),
    *("replaced at last", "another library"),
]
"""The kinds whose documents are decoded whole: more than their place counts."""
