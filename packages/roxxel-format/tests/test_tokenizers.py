from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from roxxel_format import Roxxel
from roxxel_format.texts import text_codec


class Letters:
    """Letters by their place in the alphabet."""

    name = "letters"
    n_vocab = 27

    def encode(self, text: str) -> list[int]:
        return [ord(each) - ord("a") for each in text]

    def get_vocab(self) -> dict[str, int]:
        return {chr(ord("a") + i): i for i in range(26)} | {"<end>": 26}


@dataclass
class Encoding:
    ids: list[int]


class Wrapped(Letters):
    def encode(self, text: str) -> Any:
        return Encoding(super().encode(text))


class Decoding(Letters):
    def decode_bytes(self, tokens: list[int]) -> bytes:
        return bytes(ord("a") + each for each in tokens)


class Broken(Letters):
    def encode(self, text: str) -> Any:
        return [text]


def test_a_tokenizer_gives_ids_dtype_and_identity(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    corpus.write(["abc", "", "z"], separator=26, tokenizer=Letters())

    assert [each.tolist() for each in corpus.documents] == [[0, 1, 2], [], [25]]
    assert corpus.dtype == "uint16"
    assert corpus.tokenizer is not None
    assert corpus.tokenizer.startswith("letters@")
    assert corpus.metadata["tokenizer"]["vocab_size"] == 27
    other = Roxxel(tmp_path / "b.rox")
    other.write(["a"], separator=None, tokenizer=Wrapped())
    assert other.documents[0].tolist() == [0]
    assert other.tokenizer == corpus.tokenizer


def test_bytes_are_a_tokenizer_without_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.chdir(tmp_path)
    corpus = Roxxel("b_*.rox")

    corpus.write(["a\u00e9", "", "<|endoftext|>"], tokenizer="bytes")

    codec = text_codec(corpus)
    assert codec is not None
    assert corpus.tokens[:].tolist()[:5] == [97, 195, 169, 256, 256]
    assert corpus.num_tokens == 3 + 1 + 1 + 13 + 1
    assert corpus.dtype == "uint16"
    assert codec.decode(corpus.tokens[:5]) == b"a\xc3\xa9" + 2 * b"<|endoftext|>"
    assert codec.encode("\u00e9").tolist() == [195, 169]
    (tmp_path / "bytes").mkdir()  # A path is never read as a name, but the record is.
    with pytest.raises((FileNotFoundError, ModuleNotFoundError)):
        corpus.write(["a"], tokenizer="bytes", exist="append")
    assert text_codec(corpus) is not None


def test_bytes_encode_the_name_of_the_special_token_if_wished(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "b.rox")

    corpus.write(["a<|endoftext|>b"], tokenizer="bytes", special_tokens=True)

    assert corpus.tokens[:].tolist() == [97, 256, 98, 256]


def test_what_a_tokenizer_cannot_do_is_an_error(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    with pytest.raises(TypeError, match="must return a flat list of ids"):
        corpus.write(["a"], tokenizer=Broken())
    with pytest.raises(TypeError, match="document 1 is bytes, which a tokenizer cann"):
        corpus.write(["a", b"a"], separator=None, tokenizer=Letters())
    with pytest.raises(TypeError, match="tokenizer is a int without encode"):
        corpus.write(["a"], tokenizer=3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gpt2", Path("tokenizer.json")])
def test_a_tokenizer_by_name_needs_the_package_that_loads_it(
    name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("roxxel_prepare", "roxxel_prepare.tokenizers"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ModuleNotFoundError) as caught:
        Roxxel(tmp_path / "a.rox").write(["a"], tokenizer=name)

    assert re.fullmatch(
        f"tokenizer='{name}' needs roxxel-prepare; install it: .*tokenizers.*",
        str(caught.value),
    )
    assert list(tmp_path.iterdir()) == []


def test_an_object_is_the_tokenizer_of_a_text_codec(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write([[0, 1]], dtype="uint16")

    codec = text_codec(corpus, Decoding())

    assert codec is not None
    assert codec.decode(corpus.tokens[:]) == b"ab"
    assert codec.encode("b").tolist() == [1]


def test_corpora_of_different_tokenizers_do_not_mix(tmp_path: Path) -> None:
    Roxxel(tmp_path / "c_*.rox").write(["a"], separator=None, tokenizer=Letters())

    with pytest.raises(ValueError, match="was written with another tokenizer"):
        Roxxel(tmp_path / "c_*.rox").write([[1]], dtype="uint16", exist="append")
