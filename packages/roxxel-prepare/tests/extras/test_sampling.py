"""What is random in a tokenizer is switched off: equal texts have equal tokens."""

from __future__ import annotations

import json
import random
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel
from roxxel_format.texts import text_codec
from roxxel_prepare import commit_files, write_files
from roxxel_prepare.cli import main
from roxxel_prepare.tokenizers import load_tokenizer

tokenizers: Any = import_module("tokenizers")  # has no types
models: Any = tokenizers.models

TEXT = "abcabcaabbccabacadabra" * 20
TEXTS = [TEXT, TEXT[::-1], "a", ""]


def with_bytes(model: Any) -> Any:
    """Return a tokenizer of a model, with the byte alphabet and an end of text."""
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    return made


def bpe(merges: list[tuple[str, str]]) -> Any:
    words = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words += dict.fromkeys(one + other for one, other in merges)
    return with_bytes(models.BPE({word: at for at, word in enumerate(words)}, merges))


def unigram(words: dict[str, float]) -> Any:
    scores = dict.fromkeys(tokenizers.pre_tokenizers.ByteLevel.alphabet(), -9.0) | words
    return with_bytes(models.Unigram([("<unk>", 0.0), *scores.items()], 0, False))


class Holder:
    """Holds a tokenizer as the objects of `transformers` do."""

    def __init__(self, tokenizer: Any) -> None:
        self.backend_tokenizer = tokenizer
        self.name_or_path = "held"

    def encode(self, text: str) -> list[int]:
        return self.backend_tokenizer.encode(text).ids

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab()


def with_setting(tokenizer: Any, name: str, value: object) -> Any:
    """Return a copy of a tokenizer, with a setting of its model."""
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    setattr(copy.model, name, value)
    return copy


def identity_and_ids(folder: Path, tokenizer: object, **options: Any) -> Any:
    corpus = Roxxel(folder / "c_*.rox")
    summary = corpus.write(
        TEXTS, tokenizer=tokenizer, exist="replace", separator=None, **options
    )
    identity = str(corpus.tokenizer).rpartition("@")[2]
    return identity, corpus.fingerprint, summary.switched_off


letters = st.sampled_from("abcdr")
words = st.text("abcdr", min_size=2, max_size=4)
# The library reads other fractions of a file with an error in the last digit.
eighths = st.integers(-72, -8).map(lambda number: number / 8)


@settings(max_examples=6, deadline=None)
@given(
    merges=st.lists(st.tuples(letters, letters), min_size=3, unique=True),
    dropout=st.floats(0.05, 1),
)
def test_a_dropout_changes_neither_ids_nor_identity(
    merges: list[tuple[str, str]], dropout: float
) -> None:
    plain = bpe(merges)
    random_one = with_setting(plain, "dropout", dropout)
    with TemporaryDirectory() as name:
        folder = Path(name)
        named = {"plain": plain, "random": random_one}
        for each, tokenizer in named.items():
            (folder / each).mkdir()
            tokenizer.save(str(folder / each / "tokenizer.json"))
        right = identity_and_ids(folder, folder / "plain")
        assert right[2] == ""
        off = f"dropout {random_one.model.dropout:g}"

        for backend in ("tokenizers", "fastokens"):
            assert identity_and_ids(
                folder, folder / "random", tokenizer_backend=backend
            ) == (*right[:2], off)
        for given_one in (random_one, Holder(random_one)):
            assert identity_and_ids(folder, given_one) == (*right[:2], off)
        assert random_one.model.dropout is not None  # The caller's stays as it was.

        ids = plain.encode(TEXT).ids
        identity_and_ids(folder, folder / "plain")
        for known in (folder / "random", random_one):
            codec = text_codec(Roxxel(folder / "c_*.rox"), known)
            assert codec is not None
            assert codec.encode(TEXT).tolist() == ids


@settings(max_examples=6, deadline=None)
@given(
    scores=st.dictionaries(words, eighths, min_size=3),
    alpha=st.floats(0.05, 0.9),
    nbest=st.sampled_from([None, 1, 8]),
)
def test_an_alpha_changes_neither_ids_nor_identity(
    scores: dict[str, float], alpha: float, nbest: int | None
) -> None:
    plain = unigram(scores)
    random_one = with_setting(plain, "alpha", alpha)
    random_one.model.nbest_size = nbest
    with TemporaryDirectory() as name:
        folder = Path(name)
        right = identity_and_ids(folder, plain)

        for given_one in (random_one, Holder(random_one)):
            found = identity_and_ids(folder, given_one)

            assert found[:2] == right[:2]
            assert found[2].startswith("alpha ")


@pytest.fixture
def random_file(tmp_path: Path) -> str:
    """The file of a tokenizer with dropout."""
    path = tmp_path / "random.json"
    with_setting(bpe([("a", "b"), ("c", "a")]), "dropout", 0.25).save(str(path))
    return str(path)


def test_the_line_that_ends_a_write_says_what_was_switched_off(
    tmp_path: Path, random_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    corpus, words = str(tmp_path / "c_*.rox"), ["--tokenizer", random_file]
    files = [corpus, str(tmp_path / "a.txt"), *words]

    assert main(["write", *files]) == 0
    assert "dropout 0.25 was switched off" in capsys.readouterr().out
    assert main(["write", *files, "--exist", "replace", "--part", "0/1"]) == 0
    assert "dropout 0.25 was switched off" in capsys.readouterr().out


def test_parts_and_repeats_of_a_write_agree(tmp_path: Path, random_file: str) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(TEXT[number:])
    write = partial(
        write_files,
        inputs=[tmp_path / f"{number}.txt" for number in range(6)],
        tokenizer=random_file,
        unit_bytes=1,
    )

    write(tmp_path / "one_*.rox")
    for part in (1, 0):
        write(tmp_path / "two_*.rox", part=(part, 2))
    commit_files(tmp_path / "two_*.rox")

    one, two = (Roxxel(tmp_path / f"{name}_*.rox") for name in ("one", "two"))
    assert one.fingerprint == two.fingerprint


def test_every_way_to_load_a_file_is_without_chance(
    tmp_path: Path, random_file: str
) -> None:
    pytest.importorskip("fastokens")

    for backend in ("tokenizers", "fastokens", "auto"):
        named = load_tokenizer(random_file, backend)
        assert named.switched_off == "dropout 0.25"
        assert len({tuple(named.tokenizer.encode(TEXT).ids) for _ in range(9)}) == 1
        assert json.loads(named.tokenizer.to_str())["model"]["dropout"] is None

    chat = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role + m.content }}{% endfor %}")
    found: set[str] = set()
    for tokenizer in (
        random_file,
        random_file,
        tokenizers.Tokenizer.from_file(random_file),
    ):
        corpus = Roxxel(tmp_path / "c_*.rox")
        rows = [{"messages": chat}]
        corpus.write(rows, tokenizer=tokenizer, chat=template, exist="replace")
        found.add(corpus.fingerprint)
    assert len(found) == 1


class Chance:
    """A tokenizer of a user that samples."""

    def encode(self, text: str) -> list[int]:
        return [ord(each) + random.randrange(2) for each in text]


def test_an_object_that_samples_is_refused(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    with pytest.raises(ValueError, match=r"Chance: .*other tokens in each call"):
        corpus.write([TEXT], tokenizer=Chance(), separator=None)

    assert list(tmp_path.iterdir()) == []
