"""Prompts and completions: documents with the column `loss_mask`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt

PAIRS = [(f"question {n}? ", f"{n * n}" * (n % 4)) for n in range(60)]
FIELDS = ("--prompt", "prompt", "--completion", "completion", "--separator", 0)


def rows_of(pairs: Sequence[tuple[Any, Any]]) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "completion": text} for prompt, text in pairs]


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def write(corpus: Roxxel, pairs: Sequence[tuple[Any, Any]], **options: Any) -> None:
    arguments: dict[str, Any] = {"separator": 0, "block_size": 512}
    fields: dict[str, Any] = {"prompt": "prompt", "completion": "completion"}
    corpus.write(rows_of(pairs), **(arguments | fields | options))


def mask_of(pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.uint8]:
    """Return the mask of pairs of bytes that end with one separator."""
    parts = [bytes(len(prompt)) + b"\1" * (len(text) + 1) for prompt, text in pairs]
    return np.frombuffer(b"".join(parts), np.uint8)


def test_a_prompt_is_masked_and_a_completion_with_its_separator_is_not(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    write(corpus, [("ab", "xyz"), ("", "p"), ("q", "")])

    assert corpus.tokens[:].tobytes() == b"abxyz\0p\0q\0"
    assert corpus.column("loss_mask")[:].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 1]
    assert (corpus.column("loss_mask").dtype, corpus.columns) == ("u1", ["loss_mask"])
    assert corpus.verify().ok


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    pairs=st.lists(
        st.tuples(*[st.lists(st.integers(1, 90), max_size=900)] * 2),
        min_size=1,
        max_size=12,
    ),
    has_separator=st.booleans(),
)
def test_a_mask_follows_its_tokens_into_every_shard(
    pairs: list[tuple[list[int], list[int]]], tmp_path: Path, *, has_separator: bool
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    separator = 0 if has_separator else None
    options = {"separator": separator, "dtype": "uint16", "max_shard_bytes": 8_000}

    write(corpus, pairs, exist="replace", **options)

    ends = [0] * has_separator
    tokens = [token for each in pairs for token in (*each[0], *each[1], *ends)]
    mask = [
        value
        for prompt, text in pairs
        for value in [*[0] * len(prompt), *[1] * len(text + ends)]
    ]
    assert corpus.tokens[:].tolist() == tokens
    assert corpus.column("loss_mask")[:].tolist() == mask
    assert len(corpus.documents) == len(pairs)
    assert len(names_in(tmp_path)) == 2 * corpus.num_shards + 1


def test_any_runner_writes_the_same_files(tmp_path: Path) -> None:
    pairs = PAIRS * 40
    source = lines(tmp_path / "d.jsonl", rows_of(pairs))
    options = *FIELDS, "--unit-bytes", 30_000, "--max-shard-bytes", 20_000
    runners: list[list[Any]] = [["--workers", 1], ["--workers", 2]]
    runners += [["--part", f"{part}/3"] for part in range(3)]

    for runner in runners:
        folder = "parts" if runner[0] == "--part" else f"workers_{runner[1]}"
        target = tmp_path / folder / "c_*.rox"
        assert run("write", target, source, *options, *runner) == 0
    assert run("write", tmp_path / "parts" / "c_*.rox", "--commit") == 0

    folders = [tmp_path / name for name in ("workers_1", "workers_2", "parts")]
    contents = [
        {name: (folder / name).read_bytes() for name in names_in(folder)}
        for folder in folders
    ]
    assert contents[0] == contents[1] == contents[2]
    corpus = Roxxel(folders[0])
    assert corpus.num_shards > 4
    assert corpus.column("loss_mask")[:].tolist() == mask_of(pairs).tolist()


def test_a_preparation_that_is_given_up_leaves_no_column(tmp_path: Path) -> None:
    source = lines(tmp_path / "d.jsonl", rows_of(PAIRS))
    target = tmp_path / "c" / "c_*.rox"
    options = *FIELDS, "--unit-bytes", 600
    assert run("write", target, source, *options, "--part", "0/2") == 0
    assert run("clean", target) == 0
    assert [*(tmp_path / "c").glob("*.bin")]

    assert run("clean", "--abandon", target) == 0

    assert names_in(tmp_path / "c") == []


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    pairs: list[tuple[Any, Any]] = [("a" * 9000, "b"), ("c", 7)]

    with pytest.raises(TypeError, match="document 1: its completion is a int; pass an"):
        write(corpus, pairs, max_shard_bytes=12_000)

    assert names_in(tmp_path) == []


def test_parquet_and_arrow_equal_json_lines(tmp_path: Path) -> None:
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    table = pyarrow.Table.from_pylist(rows_of(PAIRS))
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=7)
    with pyarrow.ipc.new_file(str(tmp_path / "d.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    lines(tmp_path / "d.jsonl", rows_of(PAIRS))

    for name in ("jsonl", "parquet", "arrow"):
        source, target = tmp_path / f"d.{name}", tmp_path / name / "c_*.rox"
        assert run("write", target, source, *FIELDS, "--unit-bytes", 300) == 0

    for name in ("jsonl", "parquet", "arrow"):
        corpus = Roxxel(tmp_path / name)
        text = "".join(f"{prompt}{text}\0" for prompt, text in PAIRS)
        assert corpus.tokens[:].tobytes().decode() == text
        assert np.array_equal(corpus.column("loss_mask")[:], mask_of(PAIRS))


def test_both_sides_of_a_split_have_their_masks(tmp_path: Path) -> None:
    source = lines(tmp_path / "d.jsonl", rows_of(PAIRS))
    target = tmp_path / "c_*.rox"

    assert run("write", target, source, *FIELDS, "--split", "valid=0.3") == 0

    corpora = Roxxel(target), Roxxel(tmp_path / "c_valid_*.rox")
    sides = [
        {bytes(document).decode() for document in corpus.documents}
        for corpus in corpora
    ]
    assert not sides[0] & sides[1]
    for side, corpus in zip(sides, corpora, strict=True):
        pairs = [(prompt, text) for prompt, text in PAIRS if prompt + text in side]
        assert np.array_equal(corpus.column("loss_mask")[:], mask_of(pairs))


def test_an_append_adds_to_the_column(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    write(corpus, PAIRS[:9])
    first = corpus.fingerprint

    write(corpus, PAIRS[9:], exist="append")

    assert np.array_equal(corpus.column("loss_mask")[:], mask_of(PAIRS))
    earlier = Roxxel(tmp_path / "c_*.rox", version=first)
    assert np.array_equal(earlier.column("loss_mask")[:], mask_of(PAIRS[:9]))


def test_an_append_without_prompts_leaves_shards_without_the_column(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    write(corpus, PAIRS)
    lacking: Any = {"without_columns": ["loss_mask"]}
    corpus.write(["plain"], separator=0, exist="append", **lacking)

    with pytest.raises(ShardError, match=r"c_\w+.rox: the shard has no column 'los"):
        corpus.column("loss_mask")
    corpus.write_column("loss_mask", np.ones(6, np.uint8), exist="append")

    assert corpus.column("loss_mask")[-7:].tolist() == [1] * 7


def test_prompts_are_appended_to_a_corpus_without_the_column(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(["plain"], separator=0)
    with pytest.raises(ValueError, match=r"no column 'loss_mask'.*write_column"):
        write(corpus, PAIRS, exist="append")

    corpus.write_column("loss_mask", np.ones(6, np.uint8))
    write(corpus, PAIRS, exist="append")

    assert corpus.column("loss_mask")[6:].tolist() == mask_of(PAIRS).tolist()


def test_a_column_of_another_type_refuses_the_append(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(["plain"], separator=0)
    corpus.write_column("loss_mask", np.ones(6, np.int32))

    with pytest.raises(
        ValueError,
        match=r"its column 'loss_mask' holds int32 per token, so uint8 per token "
        "cannot be appended; replace that column with write_column, or write another",
    ):
        write(corpus, PAIRS, exist="append")

    assert corpus.num_documents == 1


def test_a_copy_has_the_column_and_a_damaged_one_is_found(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    write(corpus, PAIRS)

    corpus.copy_to(f"{tmp_path}/copy/")

    copy = Roxxel(tmp_path / "copy")
    assert np.array_equal(copy.column("loss_mask")[:], mask_of(PAIRS))
    (path,) = (tmp_path / "copy").glob("*.bin")
    data = path.read_bytes()
    path.write_bytes(bytes([1 - data[0]]) + data[1:])
    report = Roxxel(tmp_path / "copy").verify()
    (error,) = report.errors
    assert str(error) == (
        f"{path}: does not match its digest in the manifest; the file was damaged or "
        "replaced, so restore it, or write the column again"
    )


def test_the_same_write_keeps_the_corpus_and_other_fields_are_an_error(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    write(corpus, PAIRS)

    kept = corpus.write(
        iter(()), separator=0, block_size=512, prompt="prompt", completion="completion"
    )
    assert kept.kept

    with pytest.raises(FileExistsError, match="completion is completion in the corpus"):
        corpus.write(iter(()), separator=0, block_size=512)


class Bracketed:
    """A tokenizer of characters like those of `transformers`: 1, the text, 2."""

    name = "bracketed"
    vocab_size = 300
    split_special_tokens = True
    all_special_tokens = ("<s>", "</s>")

    def encode(
        self, text: str, *, add_special_tokens: bool = True, **_: Any
    ) -> list[int]:
        ids = [ord(each) for each in text]
        return [1, *ids, 2] if add_special_tokens else ids


def test_special_tokens_stand_around_the_pair_and_not_between(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    write(corpus, [("a", "bc"), ("", "d")], separator=None, tokenizer=Bracketed())

    assert [each.tolist() for each in corpus.documents] == [
        [1, 97, 98, 99, 2],
        [1, 100, 2],
    ]
    assert corpus.column("loss_mask")[:].tolist() == [0, 0, 1, 1, 1, 0, 1, 1]


def test_prompt_and_completion_are_encoded_apart(tmp_path: Path) -> None:
    tokenizers: Any = import_module("tokenizers")
    model = tokenizers.models.BPE(
        vocab={"a": 0, "b": 1, "ab": 2, "</s>": 3}, merges=[("a", "b")]
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["</s>"])
    corpus = Roxxel(tmp_path / "c_*.rox")

    options = {"separator": "</s>", "tokenizer": tokenizer}
    write(corpus, [("aba", "bab"), ("ab", "ab")], **options)

    assert [each.tolist() for each in corpus.documents] == [[2, 0, 1, 2], [2, 2]]
    assert corpus.column("loss_mask")[:].tolist() == [0, 0, 1, 1, 1, 0, 1, 1]


class Unknown:
    """A tokenizer that adds a token, and cannot leave it out."""

    name = "unknown"
    vocab_size = 300

    def encode(self, text: str) -> list[int]:
        return [1, *map(ord, text)]


def test_a_tokenizer_that_always_adds_tokens_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its encode adds tokens to each text"):
        write(Roxxel(tmp_path / "c_*.rox"), PAIRS, tokenizer=Unknown())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", "b"), "document 1 is a tuple; pass a mapping with the fields 'prompt' "),
        (
            {"prompt": "a"},
            "document 1 has no field 'completion', only prompt; ",
        ),
        (
            {"prompt": "a", "completion": None},
            "document 1: its completion is a None",
        ),
        (
            {"prompt": [1], "completion": "b"},
            "document 1: its prompt is list, but ",
        ),
    ],
)
def test_a_row_that_is_no_pair_is_an_error(
    row: Any, message: str, tmp_path: Path
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    rows = [{"prompt": "a", "completion": "b"}, row]

    with pytest.raises((ValueError, TypeError), match=message):
        corpus.write(rows, prompt="prompt", completion="completion")


def test_arguments_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    with pytest.raises(ValueError, match="prompt='p' is given without completion; "):
        corpus.write([], prompt="p")
    with pytest.raises(ValueError, match="completion='c' is given without prompt; "):
        corpus.write([], completion="c")
    with pytest.raises(ValueError, match=r"one.rox: is one file, so it has no columns"):
        write(Roxxel(tmp_path / "one.rox"), PAIRS)


@pytest.fixture
def error_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that writes a file, and returns the end of the error."""

    def error_of(name: str, content: str) -> str:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        assert run("write", tmp_path / "c_*.rox", path, *FIELDS) == 1
        return capsys.readouterr().err.removeprefix(f"roxxel-prepare: {path}")

    return error_of


def test_inputs_without_pairs_are_errors(error_of: Callable[..., str]) -> None:
    assert error_of("a.jsonl", '{"prompt": "a"}\n') == (
        ":1: has no field 'completion', only prompt; pass the field of the completions "
        "as --completion\n"
    )
    assert error_of("a.jsonl", '{"prompt": "a", "completion": 7}\n') == (
        ":1: field 'completion' is a number; a completion is a text or a list of "
        "tokens, so correct it, or pass --skip-bad to leave it out\n"
    )
    assert error_of("a.jsonl", '"text"\n') == (
        ":1: is a text; a row is an object with the fields 'prompt' and 'completion'\n"
    )
    error = error_of("a.txt", "text")
    assert "has no fields for --prompt prompt and --completion completion" in error
    pair = '{"prompt": "a", "completion": "b"}\n'
    bad = '{"prompt": "a", "completion": [null]}\n'
    assert error_of("a.jsonl", pair + bad).startswith(
        ": document 1: its completion holds None at index 0; pass a flat list of ints"
    )
