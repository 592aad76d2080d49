from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from roxxel_format import Roxxel, ShardError


def test_a_tokenizer_by_name_needs_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    with pytest.raises(ModuleNotFoundError, match=r"gpt2.*install it: .*tokenizers"):
        Roxxel(tmp_path / "a.rox").write(["a"], tokenizer="gpt2")

    assert list(tmp_path.iterdir()) == []


class Letters:
    """Letters by their place in the alphabet."""

    def encode(self, text: str) -> list[int]:
        return [ord(each) - ord("a") for each in text]


class Library:
    """Stands for the package tokenizers."""

    class Tokenizer(Letters):
        @classmethod
        def from_file(cls, path: str) -> Letters:
            if "bad" in path:
                raise Exception("expected value")  # noqa: TRY002 - as the library does
            return cls()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: dict[str, Any] = sys.modules  # any object will do
    monkeypatch.setitem(modules, "tokenizers", Library)


@pytest.mark.usefixtures("library")
def test_a_tokenizer_is_loaded_by_its_path(tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("spelling", ["{}", "{}/"])
def test_a_folder_that_holds_a_tokenizer_is_loaded(
    spelling: str, tmp_path: Path
) -> None:
    folder = tmp_path / "someone"
    folder.mkdir()
    (folder / "tokenizer.json").touch()
    by_file, by_folder = Roxxel(tmp_path / "a.rox"), Roxxel(tmp_path / "b.rox")

    by_file.write(["abc"], separator=None, tokenizer=folder / "tokenizer.json")
    by_folder.write(["abc"], separator=None, tokenizer=spelling.format(folder))

    assert by_folder.documents[0].tolist() == [0, 1, 2]
    assert by_folder.metadata["tokenizer"] == by_file.metadata["tokenizer"]


@pytest.mark.usefixtures("library")
def test_a_pipe_is_not_a_tokenizer(tmp_path: Path) -> None:
    pipe = tmp_path / "tokenizer.json"
    os.mkfifo(pipe)

    for name in (pipe, tmp_path):
        with pytest.raises(ShardError, match=f"^{pipe}: is a pipe or a device, not"):
            Roxxel(tmp_path / "a.rox").write(["a"], tokenizer=name)


@pytest.mark.usefixtures("library")
def test_a_pointer_of_git_lfs_is_not_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 7\n",
        encoding="utf-8",
    )

    for name in (path, tmp_path):
        with pytest.raises(ShardError, match=f"^{path}: .*git lfs pull"):
            Roxxel(tmp_path / "a.rox").write(["a"], tokenizer=name)


@pytest.mark.usefixtures("library")
def test_a_folder_without_a_tokenizer_is_never_a_name_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone" / "letters").mkdir(parents=True)

    with pytest.raises(
        FileNotFoundError,
        match=r"^someone/letters: the folder holds no tokenizer\.json; pass a folder "
        r"with this file, or the path of a tokenizer\.json$",
    ):
        Roxxel("a.rox").write(["abc"], tokenizer="someone/letters")


@pytest.mark.usefixtures("library")
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
    monkeypatch.chdir(tmp_path)

    with pytest.raises(FileNotFoundError) as caught:
        Roxxel(tmp_path / "a.rox").write(["a"], tokenizer=name)

    assert str(caught.value) == (
        f"{name}: no such tokenizer file or folder; check the path"
    )
