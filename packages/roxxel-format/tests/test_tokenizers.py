from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from pathlib import Path


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
    other.write(["a"], tokenizer=Wrapped())
    assert other.documents[0].tolist() == [0]
    assert other.tokenizer == corpus.tokenizer


def test_what_a_tokenizer_cannot_do_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    with pytest.raises(TypeError, match="must return a flat list of ids"):
        corpus.write(["a"], tokenizer=Broken())
    with pytest.raises(TypeError, match="document 1 is bytes, which a tokenizer cann"):
        corpus.write(["a", b"a"], tokenizer=Letters())
    with pytest.raises(TypeError, match="tokenizer is a int without encode"):
        corpus.write(["a"], tokenizer=3)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match=r"roxxel-format\[tokenizers\]"):
        corpus.write(["a"], tokenizer="gpt2")
    assert list(tmp_path.iterdir()) == []


def test_corpora_of_different_tokenizers_do_not_mix(tmp_path: Path) -> None:
    Roxxel(tmp_path / "c_*.rox").write(["a"], tokenizer=Letters())

    with pytest.raises(ValueError, match="was written with another tokenizer"):
        Roxxel(tmp_path / "c_*.rox").write([[1]], dtype="uint16", exist="append")


class Library:
    """Stands for the package tokenizers."""

    class Tokenizer(Letters):
        @classmethod
        def from_file(cls, path: str) -> Letters:
            if "bad" in path:
                raise Exception("expected value")  # noqa: TRY002 - as the library does
            return cls()

        @classmethod
        def from_pretrained(cls, name: str) -> Letters:
            return cls.from_file(name)


def test_a_tokenizer_is_loaded_by_its_path_or_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", Library)  # pyright: ignore[reportArgumentType] - any object will do
    path = tmp_path / "tokenizer.json"
    path.touch()
    (tmp_path / "bad.json").touch()
    corpus = Roxxel(tmp_path / "a.rox")

    corpus.write(["abc"], tokenizer=path)
    assert corpus.metadata["tokenizer"]["name"] == "tokenizer.json"
    corpus.write(["abc"], tokenizer="someone/letters", exist="replace")
    assert corpus.metadata["tokenizer"]["name"] == "someone/letters"
    with pytest.raises(FileNotFoundError, match="no such tokenizer file"):
        corpus.write(["a"], tokenizer="none.json", exist="replace")
    with pytest.raises(
        ValueError, match=r"cannot be loaded as a tokenizer \(expected value"
    ):
        corpus.write(["a"], tokenizer=tmp_path / "bad.json", exist="replace")
