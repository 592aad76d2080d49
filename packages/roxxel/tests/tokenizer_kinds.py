"""Small tokenizers of every kind that puts tokens around a text in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS = ["alpha", "beta", "gamma", "delta"]
"""Words that every tokenizer knows."""

BOS, EOS = "<s>", "</s>"


def _word_level(*, with_unknown: bool = False) -> Tokenizer:
    names = [BOS, EOS, *(["<unk>"] if with_unknown else []), *WORDS]
    vocabulary = {name: number for number, name in enumerate(names)}
    unknown = {"unk_token": "<unk>"} if with_unknown else {}
    made = Tokenizer(models.WordLevel(vocabulary, **unknown))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_specials(made)


def _byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [BOS, EOS, *alphabet, "al", "be", "ta", "\u0120b"]
    merges = [("a", "l"), ("b", "e"), ("t", "a"), ("\u0120", "b")]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return _with_specials(made)


def _unigram() -> Tokenizer:
    letters = sorted({*"".join(WORDS)})
    pieces = [BOS, EOS, "<unk>", "\u2581", *letters, *(f"\u2581{w}" for w in WORDS)]
    scored = [(piece, -float(number)) for number, piece in enumerate(pieces)]
    made = Tokenizer(models.Unigram(scored, unk_id=2, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    return _with_specials(made)


def _with_specials(made: Tokenizer) -> Tokenizer:
    made.add_special_tokens([AddedToken(BOS), AddedToken(EOS)])
    return made


def _around(made: Tokenizer, template: str) -> Tokenizer:
    specials = [(name, number) for number, name in enumerate((BOS, EOS))]
    made.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=specials
    )
    return made


def tokenizer_kinds() -> Mapping[str, Any]:
    """Return the tokenizers by name: objects, `"bytes"`, and None for plain bytes."""
    bare = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return {
        "plain bytes": None,
        "bytes": "bytes",
        "byte-level BPE": _byte_level(),
        "byte-level BPE with BOS": _around(_byte_level(), f"{BOS} $A"),
        "words with BOS": _around(_word_level(), f"{BOS} $A"),
        "words with BOS and an unknown": _around(
            _word_level(with_unknown=True), f"{BOS} $A"
        ),
        "words with EOS": _around(_word_level(), f"$A {EOS}"),
        "words with BOS and EOS": _around(_word_level(), f"{BOS} $A {EOS}"),
        "words with two tokens before": _around(_word_level(), f"{EOS} {BOS} $A"),
        "words without special tokens": bare,
        "Unigram": _unigram(),
        "Unigram with BOS": _around(_unigram(), f"{BOS} $A"),
        "Unigram with BOS and EOS": _around(_unigram(), f"{BOS} $A {EOS}"),
    }
