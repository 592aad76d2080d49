"""`find_text` finds a text as often as it stands in the documents, by any tokenizer."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from roxxel import Roxxel
from roxxel.search import find_text, search
from roxxel_format.texts import text_codec
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from .runs import END

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel_format.texts import TextCodec

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
UNKNOWN = "<unk>"
EXTRA = "🙂👩‍🔬🇪🇹e\N{COMBINING ACUTE ACCENT}.,'!ÅB"


def a_word(chosen: random.Random) -> str:
    letters = chosen.choice(SCRIPTS)
    if chosen.random() < 0.1:
        letters += EXTRA
    return "".join(chosen.choices(letters, k=chosen.randint(1, 8)))


@cache
def words() -> list[str]:
    chosen = random.Random(5)
    return [a_word(chosen) for _ in range(400)]


@cache
def documents() -> list[str]:
    """Return documents of words of one script each, and of all of them."""
    chosen = random.Random(6)
    between = [" ", " ", " ", " ", "\n", ", ", "  ", "", "\t(", '. "']
    return [
        "".join(
            part
            for word in chosen.choices(words(), k=chosen.choice([0, 1, 5, 20, 200]))
            for part in (word, chosen.choice(between))
        )
        for _ in range(20)
    ]


def trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    """Train with a third of the words, so that others are split into their bytes."""
    tokenizer.train_from_iterator(words()[: len(words()) // 3] * 4, trainer)
    return tokenizer


def byte_level(*, add_prefix_space: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=add_prefix_space
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=[END],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )


def metaspace_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return trained(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=900, special_tokens=[END, UNKNOWN], show_progress=False
        ),
    )


def metaspace_unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return trained(
        tokenizer,
        trainers.UnigramTrainer(
            vocab_size=600,
            special_tokens=[END, UNKNOWN],
            unk_token=UNKNOWN,
            show_progress=False,
        ),
    )


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return trained(
        tokenizer,
        trainers.WordPieceTrainer(
            vocab_size=900, special_tokens=[END, UNKNOWN], show_progress=False
        ),
    )


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return trained(
        tokenizer,
        trainers.WordLevelTrainer(special_tokens=[END, UNKNOWN], show_progress=False),
    )


def byte_fallback() -> Tokenizer:
    pieces = [END, UNKNOWN, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    seen = dict.fromkeys(letter for word in words()[:150] for letter in word)
    vocabulary = {piece: n for n, piece in enumerate(dict.fromkeys([*pieces, *seen]))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [], unk_token=UNKNOWN, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([END])
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level": lambda: byte_level(add_prefix_space=False),
    "byte-level after a space": lambda: byte_level(add_prefix_space=True),
    "metaspace BPE": metaspace_bpe,
    "metaspace unigram": metaspace_unigram,
    "WordPiece": word_piece,
    "WordLevel": word_level,
    "bytes": lambda: "bytes",
    "byte fallback": byte_fallback,
}


def times(wanted: str, text: str) -> int:
    """Return how often a text stands in another; occurrences may overlap."""
    return len(re.findall(f"(?={re.escape(wanted)})", text))


def shown(codec: TextCodec, tokens: Any) -> str:
    """Return the whole characters of the first tokens of a document."""
    return (
        codec.decode(tokens)
        .decode(errors="replace")
        .rstrip("\N{REPLACEMENT CHARACTER}")
    )


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_any_word_is_found_as_often_as_it_stands_in_the_decoded_text(
    kind: str, tmp_path: Path
) -> None:
    tokenizer = TOKENIZERS[kind]()
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(documents(), tokenizer=tokenizer)
    codec = text_codec(corpus, tokenizer)
    assert codec is not None
    texts = [codec.decode(each).decode() for each in corpus.documents]
    chosen = random.Random(8)

    def piece() -> str:
        text = chosen.choice([text for text in texts if text])
        at = chosen.randrange(len(text))
        return text[at : at + chosen.randint(1, 30)]

    wanted = [*chosen.choices(words(), k=300), *(piece() for _ in range(200))]
    wanted += [*(f"{word} " for word in words()[:20]), " ", "\n", "  ", END, "\ufffd"]
    for number, each in enumerate(wanted):
        # In small parts, a long document is searched in several.
        chunk = 2**21 if number % 4 else 300
        expected = times(each, "\0".join(texts))

        found = list(search(corpus, each, codec, chunk=chunk))

        assert sum(part.documents.size for part in found) == expected, each
        if number % 9 == 0:
            places = list(find_text(corpus, codec, each, chunk=chunk))
            assert len(places) == expected
            assert places == sorted(places)
            for start, stop in places[:3]:
                check_place(corpus, codec, each, start, stop)


def check_place(
    corpus: Roxxel, codec: TextCodec, wanted: str, start: int, stop: int
) -> None:
    """Check that the tokens hold a text, and that without the last they do not."""
    [[document, *_]] = corpus.document_spans(start, stop).tolist()
    first, *_ = corpus.document_range(document)
    before = len(shown(codec, corpus.tokens[first:start]))
    assert wanted in shown(codec, corpus.tokens[first:stop])[before:]
    assert wanted not in shown(codec, corpus.tokens[first : stop - 1])[before:]
