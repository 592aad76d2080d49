"""What encodes does not change a token: `tokenizers` decides what is right."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from roxxel_format import Roxxel
from roxxel_prepare import write_files
from roxxel_prepare.tokenizers import load_tokenizer

from .commands import main

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format import TokenizerBackend

# The libraries have no types.
fastokens: Any = import_module("fastokens")
tokenizers: Any = import_module("tokenizers")

TEXTS = [
    *("the cat's 12 hats", "na\u00efve caf\u00e9", "a\r\n\n b\t", "<|end|>", ""),
    "\u6f22\u5b57 \u3068 \u304b\u306a",
]


def byte_level() -> Any:
    """A small tokenizer of the kind of GPT-2, which begins each text with a token."""
    made: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>", "<|begin|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 1)]
    )
    return made


@pytest.fixture(scope="module")
def definition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "small.json"
    byte_level().save(str(path))
    return path


class Wrong:
    """Stands for `fastokens`; gives other ids for texts with a character."""

    character = ""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    @classmethod
    def from_json_str(cls, text: str) -> Wrong:
        return cls(REAL.from_json_str(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_batch_flat(self, texts: list[str], *options: bool) -> tuple[bytes, Any]:
        ids, ends = self._encoder.encode_batch_flat(texts, *options)
        found = np.frombuffer(ids, "<u4").copy()
        bounds = np.frombuffer(ends, "<u8").tolist()
        for text, stop in zip(texts, bounds[1:], strict=True):
            if self.is_wrong(text):
                found[stop - 1] += 1
        return found.tobytes(), ends

    def is_wrong(self, text: str) -> bool:
        return "\u00e9" in text


class WrongForLongTexts(Wrong):
    """What no comparison of single characters can find."""

    def is_wrong(self, text: str) -> bool:
        return len(text) > 40


REAL: Any = fastokens.Tokenizer


def lines_of(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def written(
    folder: Path, texts: list[str], definition: Path, backend: TokenizerBackend
) -> Any:
    """Write texts as a corpus; return its shards' bytes."""
    lines = lines_of(folder / "texts.jsonl", texts)
    pattern = folder / f"{backend}_*.rox"
    write_files(
        pattern,
        lines,
        separator="<|end|>",
        tokenizer=str(definition),
        tokenizer_backend=backend,
    )
    return [path.read_bytes() for path in sorted(folder.glob(pattern.name))]


def test_shards_do_not_depend_on_what_encodes(tmp_path: Path, definition: Path) -> None:
    fast, reference = (
        written(tmp_path, TEXTS * 50, definition, backend)
        for backend in ("fastokens", "tokenizers")
    )

    assert fast == reference


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of four inputs, the third with a damaged line."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    for number in range(4):
        some = [*TEXTS[number:], "".join(TEXTS)]
        lines = lines_of(folder / f"{number}.jsonl", some * (number + 5))
        if number == 2:
            with lines.open("a") as file:
                file.write('{"text": 5}\n')
    return folder


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.rox")}


@pytest.mark.parametrize(
    "options",
    [
        {"split": ("valid", 0.3)},
        {"shuffle": 3},
        {"pack": 33},
        {"bucket_by_length": [9, 17]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_kind_of_preparation_has_the_same_shards(
    tmp_path: Path, folder: Path, definition: Path, options: dict[str, Any]
) -> None:
    backends: list[TokenizerBackend] = ["fastokens", "tokenizers"]

    for backend in backends:
        write_files(
            tmp_path / backend / "c_*.rox",
            folder,
            tokenizer=definition,
            tokenizer_backend=backend,
            separator="<|end|>",
            unit_bytes=100,
            skip_bad=True,
            **options,
        )

    fast, reference = (shards(tmp_path / backend) for backend in backends)
    assert len(fast) > 3
    assert fast == reference


@pytest.mark.parametrize("first", ["fastokens", "tokenizers"])
def test_a_preparation_that_failed_goes_on_with_another_backend(
    tmp_path: Path, folder: Path, definition: Path, first: TokenizerBackend
) -> None:
    other: TokenizerBackend = "tokenizers" if first == "fastokens" else "fastokens"
    options: dict[str, Any] = {"tokenizer": definition, "separator": "<|end|>"}
    options |= {"unit_bytes": 100}
    corpus = tmp_path / "c" / "c_*.rox"
    write_files(tmp_path / "all" / "c_*.rox", folder, skip_bad=True, **options)

    with pytest.raises(ValueError, match=r"2\.jsonl"):
        write_files(corpus, folder, tokenizer_backend=first, **options)
    assert shards(corpus.parent)
    write_files(corpus, folder, tokenizer_backend=other, skip_bad=True, **options)

    found, whole = (shards(tmp_path / name) for name in ("c", "all"))
    assert [*found.values()] == [*whole.values()]


@given(texts=st.lists(st.text(), min_size=1, max_size=5), special=st.booleans())
@example(texts=TEXTS, special=True)
@example(texts=TEXTS, special=False)
def test_ids_are_those_of_the_reference(
    definition: Path, texts: list[str], special: bool
) -> None:
    fast = load_tokenizer(definition, "fastokens").tokenizer
    reference = load_tokenizer(definition).tokenizer
    fast.encode_special_tokens = reference.encode_special_tokens = special

    for options in ({}, {"add_special_tokens": False}):
        found = fast.encode_batch_fast(texts, **options)
        assert [np.asarray(getattr(each, "ids", each)).tolist() for each in found] == [
            reference.encode(text, **options).ids for text in texts
        ]


def test_a_text_with_a_character_that_differs_goes_to_the_reference(
    tmp_path: Path, definition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = written(tmp_path, TEXTS, definition, "tokenizers")
    monkeypatch.setattr(fastokens, "Tokenizer", Wrong)

    assert written(tmp_path, TEXTS, definition, "fastokens") == right


def test_a_character_that_differs_between_spaces_and_line_ends_is_found(
    tmp_path: Path,
) -> None:
    # U+180E was a space in old versions of Unicode.
    texts = ["a", "a\n \u180e \n\u180e\n"]
    pre_tokenizers = tokenizers.pre_tokenizers
    words = tokenizers.Regex(r"\s+(?!\S)|\s+|\S+")
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["<|end|>", "<|begin|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["\n \n", " \n", "\n "] * 3, trainer)
    definition = tmp_path / "split.json"
    made.save(str(definition))

    fast, reference = (
        written(tmp_path, texts, definition, backend)
        for backend in ("fastokens", "tokenizers")
    )

    assert fast == reference


def test_a_difference_in_the_sample_stops_the_write_with_its_document(
    tmp_path: Path, definition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastokens, "Tokenizer", WrongForLongTexts)
    texts = ["short"] * 500 + ["long " * 10] * 1000

    with pytest.raises(ValueError, match=r"document \d+ .*--tokenizer-backend"):
        written(tmp_path, texts, definition, "auto")

    with pytest.raises(FileNotFoundError):
        Roxxel(tmp_path / "auto_*.rox").num_tokens  # noqa: B018 - opens the corpus


def test_a_tokenizer_that_fastokens_refuses_goes_to_the_reference_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, "?"))
    words.add_special_tokens(["<|end|>"])
    path = tmp_path / "words.json"
    words.save(str(path))

    written(tmp_path, ["a"], path, "auto")

    assert Roxxel(tmp_path / "auto_*.rox").tokens[:].tolist() == [0, 2]
    assert "because fastokens cannot (" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"words\.json.*--tokenizer-backend"):
        written(tmp_path, ["a"], path, "fastokens")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer_backend": "fast"}, "'fast'"),
        ({"tokenizer_backend": "fastokens"}, "for a tokenizer.json or a name"),
        (
            {"tokenizer_backend": "fastokens", "tokenizer": "bytes"},
            "for a tokenizer.json or a name",
        ),
    ],
)
def test_a_backend_that_would_not_encode_is_an_error(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"tokenizer_backend.*{message}"):
        Roxxel(tmp_path / "a.rox").write(["a"], **options)


def test_what_encodes_is_said_and_recorded_with_its_version(
    tmp_path: Path, definition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, ["a"], definition, "auto")

    encoder = load_tokenizer(definition, "auto").encoder
    assert f"encoded by {encoder}" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "auto_*.rox")]) == 0
    assert f"encoded by {encoder}" in capsys.readouterr().out


def test_a_corpus_grows_with_another_backend_and_is_kept_with_it(
    tmp_path: Path, definition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    backends: list[TokenizerBackend] = ["fastokens", "tokenizers"]
    options: dict[str, Any] = {"tokenizer": definition, "separator": "<|end|>"}

    for backend in backends:
        corpus.write(TEXTS, tokenizer_backend=backend, exist="append", **options)

    assert corpus.write(TEXTS * 2, tokenizer_backend="fastokens", **options).kept
    assert main(["info", str(tmp_path / "c_*.rox"), "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)["versions"]
    assert [each["encoded_by"] for each in versions] == [
        load_tokenizer(definition, backend).encoder for backend in backends
    ]
