"""A corpus keeps its tokenizer: its text is read wherever the corpus goes."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_format import Roxxel, ShardError
from roxxel_format.texts import text_codec
from roxxel_prepare import write_files

from .buckets import running_bucket
from .commands import main

if TYPE_CHECKING:
    from collections.abc import Callable

# The library has no types.
tokenizers: Any = import_module("tokenizers")

WORDS = ["alpha", "beta", "gamma"]
TEXTS = [" ".join(WORDS[(n * m) % 3] for m in range(n + 1)) for n in range(27)]
CONFIG = '{"bos_token": "<s>", "pad_token": "</s>"}'
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} </s> {% endfor %}"


def made(*words: str) -> Any:
    names = ["<s>", "</s>", "<unk>", *words]
    unknown = names[2]
    vocabulary = {name: number for number, name in enumerate(names)}
    model = tokenizers.models.WordLevel(vocabulary, unk_token=unknown)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a tokenizer and inputs, which may go away."""
    (tmp_path / "tok").mkdir()
    made("alpha", "beta", "gamma").save(str(tmp_path / "tok" / "tokenizer.json"))
    (tmp_path / "tok" / "tokenizer_config.json").write_text(CONFIG)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (tmp_path / "in.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(corpus: str) -> None:
    Roxxel(corpus).write(TEXTS, tokenizer="tok", max_shard_bytes=20000)


def written_with_an_object(corpus: str) -> None:
    tokenizer = made("alpha", "beta", "gamma")
    Roxxel(corpus).write(TEXTS, tokenizer=tokenizer, max_shard_bytes=20000)


def written_as_one_file(corpus: str) -> None:
    Roxxel(corpus.replace("_*", "")).write(TEXTS, tokenizer="tok")


def written_from_files(corpus: str) -> None:
    write_files(corpus, "in.jsonl", tokenizer="tok", workers=2, unit_bytes=50)


def written_in_parts(corpus: str) -> None:
    for part in range(2):
        write_files(corpus, "in.jsonl", tokenizer="tok", part=(part, 2), unit_bytes=100)
        assert main(["clean", corpus]) == 0
    assert main(["write", corpus, "--commit"]) == 0


def written_into_a_bucket(corpus: str) -> None:
    written(f"s3://data/deep/{corpus}")
    Roxxel(f"s3://data/deep/{corpus}").copy_to(corpus)


def appended(corpus: str) -> None:
    written(corpus)
    Roxxel(corpus).write(["gamma"], tokenizer="tok", exist="append")


def replaced(corpus: str) -> None:
    Roxxel(corpus).write(["one"], tokenizer=made("one"), max_shard_bytes=20000)
    Roxxel(corpus).write(TEXTS, tokenizer="tok", exist="replace", max_shard_bytes=20000)
    assert len([*Path().glob("*.tokenizer")]) == 1


def copied(corpus: str) -> None:
    written(f"first_{corpus}")
    Roxxel(f"first_{corpus}").copy_to(corpus)


def copied_from_one_file(corpus: str) -> None:
    Roxxel("single.rox").write(TEXTS, tokenizer="tok")
    Roxxel("single.rox").copy_to(corpus)


def compacted(corpus: str) -> None:
    appended(corpus)
    Roxxel(corpus).compact()


def adopted(corpus: str) -> None:
    written(corpus)
    Path(corpus.replace("*.rox", "manifest.json")).unlink()
    Roxxel(corpus).adopt()


def split(corpus: str) -> None:
    written("whole_*.rox")
    Path(corpus).parent.mkdir(exist_ok=True)
    words = ["--split", "held=0.3", "--max-shard-bytes", "20000"]
    assert main(["write", corpus, "whole_*.rox", *words]) == 0
    assert Roxxel(corpus.replace("_*", "_held_*")).tokenizer_files


def split_into_files(corpus: str) -> None:
    Roxxel("whole.rox").write(TEXTS, tokenizer="tok")
    kept = corpus.replace("_*", "")
    assert main(["write", kept, "whole.rox", "--split", "held=0.3"]) == 0


def cleaned(corpus: str) -> None:
    written(corpus)
    assert Roxxel(corpus).remove_leftovers() == []


ROUTES = [
    written,
    written_with_an_object,
    written_as_one_file,
    written_from_files,
    written_in_parts,
    written_into_a_bucket,
    appended,
    replaced,
    copied,
    copied_from_one_file,
    compacted,
    adopted,
    split,
    split_into_files,
    cleaned,
]


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_to_a_corpus_keeps_its_tokenizer(
    route: Callable[[str], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_bucket(folder / "bucket"):
        route("c_*.rox")
        shutil.rmtree(folder / "tok")
        # Nothing but the corpus's own files goes to another folder.
        (folder / "away").mkdir()
        for path in folder.glob("c[_.]*"):
            shutil.move(path, folder / "away")
        monkeypatch.chdir(folder / "away")

        pattern = "c.rox" if Path("c.rox").exists() else "c_*.rox"
        corpus = Roxxel(pattern)
        codec = text_codec(corpus)

        assert codec is not None
        shown = {codec.decode(document).decode() for document in corpus.documents}
        assert shown <= {*TEXTS, "gamma"}
        assert shown
        assert codec.encode("alpha gamma").tolist() == [3, 5]
        if route is not written_with_an_object:
            assert codec.files["tokenizer_config.json"] == CONFIG
        assert text_codec(Roxxel([pattern])) is not None


def test_chats_keep_the_template_that_rendered_them(folder: Path) -> None:
    chat = [{"role": "alpha", "content": "beta"}, {"role": "assistant", "content": "x"}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    (folder / "own.jinja").write_text(TEMPLATE)

    write_files("c_*.rox", "chats.jsonl", tokenizer="tok", chat="own.jinja")

    files = Roxxel("c_*.rox").tokenizer_files
    assert files["chat_template.jinja"] == TEMPLATE
    assert sorted(files) == [
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_write_that_fails_leaves_no_tokenizer(folder: Path) -> None:
    for corpus in ("c_*.rox", "c.rox"):
        before = {*folder.iterdir()}
        with pytest.raises(TypeError):
            Roxxel(corpus).write(["alpha", 3], tokenizer="tok")
        new = {*folder.iterdir()} - before
        assert {path.suffix for path in new} <= {".writers"}
    Roxxel("c.rox").write(["one"], tokenizer=made("one"))
    with pytest.raises(TypeError):
        Roxxel("c.rox").write(["alpha", 3], tokenizer="tok", exist="replace")
    assert text_codec(Roxxel("c.rox")) is not None
    assert len([*folder.glob("c.*tokenizer*")]) == 1


def test_cleaning_keeps_the_tokenizer_of_a_file_that_is_damaged(folder: Path) -> None:
    corpus = Roxxel("c.rox")
    corpus.write(TEXTS, tokenizer="tok")
    [kept] = folder.glob("c.rox.tokenizer.*")
    shard = folder / "c.rox"
    shard.write_bytes(shard.read_bytes()[:-1])

    assert corpus.leftovers() == corpus.remove_leftovers() == []
    assert kept.exists()


def test_corpora_of_like_names_keep_their_own_tokenizers(folder: Path) -> None:
    del folder
    names = ["c.*.rox", "c.rox", "c*.rox", "c_*.rox", "c.rox.*.rox", "c.*.b.rox"]
    for name in names:
        Roxxel(name).write(["one"], tokenizer=made(name))
    for name in reversed(names):
        Roxxel(name).write(["two"], tokenizer=made(name, name), exist="replace")
        assert Roxxel(name).remove_leftovers() == []

    for name in names:
        codec = text_codec(Roxxel(name))
        assert codec is not None
        assert codec.encode(name).tolist() == [4]


def test_a_tokenizer_that_is_missing_or_damaged_is_named(folder: Path) -> None:
    for write, corpus in ((written, "c_*.rox"), (written_as_one_file, "d.rox")):
        write(corpus)
        [kept] = folder.glob(f"{corpus[0]}[_.]*tokenizer*")
        content = kept.read_bytes()
        assert Roxxel(corpus).verify().ok
        for change in (content.replace(b"alpha", b"alphb"), content[:-4], b""):
            kept.write_bytes(change)
            with pytest.raises(ShardError, match=kept.name):
                text_codec(Roxxel(corpus))
            [error] = Roxxel(corpus).verify().errors
            assert kept.name in str(error)
        kept.unlink()
        with pytest.raises(FileNotFoundError, match=kept.name):
            text_codec(Roxxel(corpus))
        [error] = Roxxel(corpus).verify().errors
        assert kept.name in str(error)
        assert text_codec(Roxxel(corpus), "tok") is not None


def test_a_shard_alone_asks_for_the_tokenizer(folder: Path) -> None:
    del folder
    written("c_*.rox")

    with pytest.raises(ValueError, match="--tokenizer"):
        text_codec(Roxxel(Roxxel("c_*.rox").paths[0]))


def test_a_kept_tokenizer_is_used_though_the_library_would_save_it_otherwise(
    tmp_path: Path,
) -> None:
    # The library parses this number as the one before it.
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("alpha", -3.0123284804704786)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0))
    tokenizer.add_special_tokens(["</s>"])
    definition = tokenizer.to_str()
    assert tokenizers.Tokenizer.from_str(definition).to_str() != definition
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(["alpha"], tokenizer=tokenizer)
    codec = text_codec(corpus)
    assert codec is not None
    assert codec.encode("alpha").tolist() == corpus.documents[0].tolist()
