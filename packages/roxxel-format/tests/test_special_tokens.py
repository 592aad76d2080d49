"""The end of a text, and special tokens that a text spells."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

END = "<|endoftext|>"


class Letters:
    """Letters by their position in the alphabet; as `transformers`, without options."""

    name = "letters"
    eos_token_id: int | None = None

    def __init__(
        self, *specials: str, before: Sequence[int] = (), after: int = -1
    ) -> None:
        self.all_special_tokens = list(specials)
        self.all_special_ids = list(range(26, 26 + len(specials)))
        self._before = list(before)
        self._after = [after] if after >= 0 else []

    def encode(self, text: str) -> list[int]:
        letters = [ord(each) - ord("a") for each in text]
        return [*self._before, *letters, *self._after]

    def get_vocab(self) -> dict[str, int]:
        letters = {chr(ord("a") + i): i for i in range(26)}
        specials = zip(self.all_special_tokens, self.all_special_ids, strict=True)
        return letters | dict(specials)


def line(folder: Path, *texts: str, **options: Any) -> list[int]:
    """Write texts, and return the tokens of the corpus."""
    corpus = Roxxel(folder / "c.rox")
    corpus.write(texts, exist="replace", **options)
    return corpus.tokens[:].tolist()


@pytest.mark.parametrize(
    "end",
    ["<|endoftext|>", "<|end_of_text|>", "<|eos|>", "<eos>", "</s>", "[EOS]"],
)
def test_documents_end_with_the_tokenizers_own_token(end: str, tmp_path: Path) -> None:
    tokenizer = Letters("<pad>", end)

    assert line(tmp_path, "ab", "c", tokenizer=tokenizer) == [0, 1, 27, 2, 27]
    assert Roxxel(tmp_path / "c.rox").documents[0].tolist() == [0, 1]


def test_an_end_of_text_is_preferred_to_an_end_of_a_turn(tmp_path: Path) -> None:
    tokenizer = Letters("<|im_end|>", END)
    tokenizer.eos_token_id = 26

    assert line(tmp_path, "a", tokenizer=tokenizer) == [0, 27]


def test_the_end_that_a_tokenizer_names_is_used(tmp_path: Path) -> None:
    tokenizer = Letters("<stop>", "<pad>")
    tokenizer.eos_token_id = 26

    assert line(tmp_path, "a", tokenizer=tokenizer) == [0, 26]


def test_no_separator_is_appended_where_none_is_wanted(tmp_path: Path) -> None:
    assert line(tmp_path, "a", "b", tokenizer=Letters(END), separator=None) == [0, 1]


@pytest.mark.parametrize("separator", ["<pad>", 27, "b"])
def test_a_separator_is_a_token_or_its_name(separator: object, tmp_path: Path) -> None:
    tokens = line(tmp_path, "a", tokenizer=Letters(END, "<pad>"), separator=separator)

    assert tokens == [0, {"b": 1}.get(str(separator), 27)]


def test_a_separator_that_the_tokenizer_does_not_have_is_an_error(
    tmp_path: Path,
) -> None:
    message = (
        "letters: has no token '<|eos|>'; name another token, such as its special "
        "tokens <|endoftext|>, <pad>"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        line(tmp_path, "a", tokenizer=Letters(END, "<pad>"), separator="<|eos|>")
    with pytest.raises(TypeError, match="separator must be a token, bytes or None"):
        line(tmp_path, "a", separator="<|eos|>")


def test_a_tokenizer_without_an_end_of_text_needs_a_separator(tmp_path: Path) -> None:
    message = (
        "letters: no end-of-text token is known among its special tokens (<a>, <b>); "
        "pass separator (--separator): a token, its name, or none"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        line(tmp_path, "a", tokenizer=Letters("<a>", "<b>"))
    with pytest.raises(ValueError, match=r"^letters: has no special tokens, so no end"):
        line(tmp_path, "a", tokenizer=Letters())
    assert not list(tmp_path.glob("*.rox"))


def test_a_tokenizer_that_ends_each_text_itself_gets_no_separator(
    tmp_path: Path,
) -> None:
    both = Letters(END, "<s>", before=[27], after=26)
    other = Letters("[CLS]", "[SEP]", before=[26], after=27)

    assert line(tmp_path, "a", "", tokenizer=both) == [27, 0, 26, 27, 26]
    assert line(tmp_path, "a", tokenizer=other) == [26, 0, 27]
    assert line(tmp_path, "a", tokenizer=Letters(END, "<s>", before=[27])) == [
        27,
        0,
        26,
    ]


def test_a_corpus_without_separators_is_not_appended_to_with_them(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(["a"], tokenizer=Letters(END), separator=None)

    with pytest.raises(
        ValueError,
        match=r"c_\*\.rox: its separator is \[\], but \[26\] of the new documents; "
        "append with the same separator, or write another corpus",
    ):
        corpus.write(["b"], tokenizer=Letters(END), exist="append")
    corpus.write(["b"], tokenizer=Letters(END), separator=None, exist="append")
    assert corpus.tokens[:].tolist() == [0, 1]
    with pytest.raises(FileExistsError, match="separator is none in the corpus"):
        Roxxel(tmp_path / "c_*.rox").write(["b"], tokenizer=Letters(END))


class OfTransformers:
    """Encodes special tokens unless `split_special_tokens` is true."""

    name_or_path = "of transformers"
    vocab_size = 27
    split_special_tokens = False

    def __init__(self) -> None:
        self.all_special_tokens = [END]
        self.all_special_ids = [26]

    def encode(self, text: str, *, split_special_tokens: bool) -> list[int]:
        return [25] * len(text) if split_special_tokens else with_specials(text)


class OfTiktoken:
    """Refuses special tokens in `encode`, unless they are allowed."""

    name = "of tiktoken"
    n_vocab = 27

    def __init__(self) -> None:
        self._special_tokens = {END: 26}

    def encode_ordinary(self, text: str) -> list[int]:
        return [25] * len(text)

    def encode(self, text: str, *, allowed_special: object = ()) -> list[int]:
        assert allowed_special == "all"
        return with_specials(text)


def with_specials(text: str) -> list[int]:
    """Return 26 for each end of a text, and 0 for each part between them."""
    parts = re.split(f"({re.escape(END)})", text)
    return [26 if each == END else 0 for each in parts if each]


@pytest.mark.parametrize("tokenizer", [OfTransformers(), OfTiktoken()])
def test_a_special_token_that_a_text_spells_is_text(
    tokenizer: object, tmp_path: Path
) -> None:
    text = f"a{END}b"

    as_text = line(tmp_path, text, tokenizer=tokenizer)
    as_token = line(tmp_path, text, tokenizer=tokenizer, special_tokens=True)

    assert as_text == [25] * len(text) + [26]
    assert as_token == [0, 26, 0, 26]


def test_corpora_with_special_tokens_of_texts_are_others(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c.rox")
    corpus.write(["a"], tokenizer=Letters(END), special_tokens=True)

    with pytest.raises(FileExistsError, match="made with other arguments"):
        corpus.write(["a"], tokenizer=Letters(END))
    assert corpus.write(["a"], tokenizer=Letters(END), special_tokens=True).kept


def test_special_tokens_need_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^special_tokens needs a tokenizer; pass tokenizer$"
    ):
        line(tmp_path, "a", special_tokens=True)


def test_a_text_that_a_tokenizer_cannot_encode_is_named(tmp_path: Path) -> None:
    def encode(text: str) -> list[int]:
        if text == "bad":
            raise RuntimeError("no such\nletter.")
        return [0]

    with pytest.raises(
        ValueError,
        match=r"document 1 cannot be encoded by the tokenizer \(no such letter\); corr",
    ):
        line(
            tmp_path,
            "a",
            "bad",
            tokenizer=SimpleNamespace(encode=encode),
            separator=None,
        )


@pytest.mark.parametrize("separator", [26, "<s>", END])
def test_a_separator_that_the_tokenizer_appends_is_not_doubled(
    separator: int | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Letters("<s>", END, before=[27], after=26)

    tokens = line(tmp_path, "ab", "", tokenizer=tokenizer, separator=separator)

    if separator == END:
        assert tokens == [27, 0, 1, 26, 27, 27, 26, 27]
        return
    assert tokens == [27, 0, 1, 26, 27, 26]
    corpus = Roxxel(tmp_path / "c.rox")
    assert [each.tolist() for each in corpus.documents] == [[27, 0, 1], [27]]
    corpus.write([[3, 26]], tokenizer=tokenizer, separator=separator, exist="replace")
    assert corpus.tokens[:].tolist() == [3, 26, 26]  # Ready-made tokens.
    assert capsys.readouterr().err == ""


def test_a_pair_has_one_separator_if_the_tokenizer_appends_it(tmp_path: Path) -> None:
    tokenizer = OfTransformersWithEnd()
    corpus = Roxxel(tmp_path / "c_*.rox")

    corpus.write(
        [{"q": "ab", "a": "c"}],
        tokenizer=tokenizer,
        separator=END,
        prompt="q",
        completion="a",
    )

    assert corpus.tokens[:].tolist() == [25, 25, 25, 26]


class OfTransformersWithEnd:
    """Appends its end of text to every text."""

    name_or_path = "with end"
    vocab_size = 27
    split_special_tokens = False

    def __init__(self) -> None:
        self.all_special_tokens = [END]
        self.all_special_ids = [26]

    def encode(
        self, text: str, *, split_special_tokens: bool, add_special_tokens: bool = True
    ) -> list[int]:
        assert split_special_tokens
        return [25] * len(text) + [26] * add_special_tokens
