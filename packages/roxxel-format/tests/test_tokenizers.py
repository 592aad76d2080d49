from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from roxxel_format import Roxxel, ShardError
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


def test_what_a_tokenizer_cannot_do_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    with pytest.raises(TypeError, match="must return a flat list of ids"):
        corpus.write(["a"], tokenizer=Broken())
    with pytest.raises(TypeError, match="document 1 is bytes, which a tokenizer cann"):
        corpus.write(["a", b"a"], separator=None, tokenizer=Letters())
    with pytest.raises(TypeError, match="tokenizer is a int without encode"):
        corpus.write(["a"], tokenizer=3)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match=r"install it: .*tokenizers"):
        corpus.write(["a"], tokenizer="gpt2")
    assert list(tmp_path.iterdir()) == []


def test_corpora_of_different_tokenizers_do_not_mix(tmp_path: Path) -> None:
    Roxxel(tmp_path / "c_*.rox").write(["a"], separator=None, tokenizer=Letters())

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


def test_a_tokenizer_is_loaded_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", Library)  # pyright: ignore[reportArgumentType] - any object will do
    path = tmp_path / "tokenizer.json"
    path.touch()
    (tmp_path / "bad.json").touch()
    corpus = Roxxel(tmp_path / "a.rox")

    corpus.write(["abc"], separator=None, tokenizer=path)
    assert corpus.metadata["tokenizer"]["name"] == "tokenizer.json"
    with pytest.raises(
        ValueError, match=r"cannot be loaded as a tokenizer \(expected value"
    ):
        corpus.write(["a"], tokenizer=tmp_path / "bad.json", exist="replace")


@pytest.mark.parametrize("spelling", ["{}", "{}/"])
def test_a_folder_that_holds_a_tokenizer_is_loaded(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", Library)  # pyright: ignore[reportArgumentType] - any object will do
    folder = tmp_path / "someone"
    folder.mkdir()
    (folder / "tokenizer.json").touch()
    by_file, by_folder = Roxxel(tmp_path / "a.rox"), Roxxel(tmp_path / "b.rox")

    by_file.write(["abc"], separator=None, tokenizer=folder / "tokenizer.json")
    by_folder.write(["abc"], separator=None, tokenizer=spelling.format(folder))

    assert by_folder.documents[0].tolist() == [0, 1, 2]
    assert by_folder.metadata["tokenizer"] == by_file.metadata["tokenizer"]


def test_a_pipe_is_not_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "tokenizer.json"
    os.mkfifo(pipe)
    monkeypatch.setitem(sys.modules, "tokenizers", Library)  # pyright: ignore[reportArgumentType] - any object will do

    for name in (pipe, tmp_path):
        with pytest.raises(ShardError, match=f"^{pipe}: is a named pipe, not a regul"):
            Roxxel(tmp_path / "a.rox").write(["a"], tokenizer=name)


def test_a_folder_without_a_tokenizer_is_never_a_name_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", Library)  # pyright: ignore[reportArgumentType] - any object will do
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone" / "letters").mkdir(parents=True)

    with pytest.raises(
        FileNotFoundError,
        match=r"^someone/letters: the folder holds no tokenizer\.json; pass a folder "
        r"with this file, or the path of a tokenizer\.json$",
    ):
        Roxxel("a.rox").write(["abc"], tokenizer="someone/letters")


@pytest.mark.parametrize(
    "name",
    [
        "none.json",
        "./letters",
        "../letters",
        "/none/letters",
        "~/letters",
        "letters/",
        "a/b/letters",
        "two words",
        Path("letters"),
    ],
)
def test_a_path_that_is_missing_is_never_a_name_on_the_hub(
    name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", Library)  # pyright: ignore[reportArgumentType] - any object will do
    monkeypatch.chdir(tmp_path)

    with pytest.raises(FileNotFoundError) as caught:
        Roxxel(tmp_path / "a.rox").write(["a"], tokenizer=name)

    assert str(caught.value) == (
        f"{name}: no such tokenizer file or folder; check the path"
    )
