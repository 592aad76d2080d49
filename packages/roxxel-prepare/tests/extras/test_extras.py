"""What needs the extras; collected only where they are installed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_format import Roxxel

from .commands import WRITERS, main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    names: Any = import_module("tokenizers")
    model = names.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?")
    built = names.Tokenizer(model)
    built.pre_tokenizer = names.pre_tokenizers.Whitespace()
    built.add_special_tokens(["<end>"])
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    return path


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def test_a_tokenizer_file_is_loaded_and_described(
    tmp_path: Path, tokenizer: Path
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    corpus.write(["a b a", "x"], tokenizer=tokenizer, separator=None)

    assert [each.tolist() for each in corpus.documents] == [[0, 1, 0], [2]]
    recorded = corpus.metadata["tokenizer"]
    assert recorded["name"] == "tokenizer.json"
    assert recorded["special_ids"] == {"<end>": 3}
    assert recorded["vocab_size"] == 4


def offline(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command where the hub is a folder; the library asks before it runs."""
    module = "roxxel_prepare" if arguments[0] in WRITERS else "roxxel_format"
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)},
    )


def in_hub_cache(cache: Path, tokenizer: Path) -> Path:
    """Move a tokenizer to where the library keeps someone/words; return its folder."""
    cached = cache / "models--someone--words"
    snapshot = cached / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    tokenizer.rename(snapshot / "tokenizer.json")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40, encoding="ascii")
    return snapshot


def test_a_tokenizer_is_found_by_its_name_on_the_hub(
    tmp_path: Path, tokenizer: Path
) -> None:
    in_hub_cache(tmp_path / "hub", tokenizer)
    (tmp_path / "a.txt").write_text("b a", encoding="utf-8")
    write = "write", tmp_path / "a.rox", tmp_path / "a.txt", "--separator", "none"

    done = offline(tmp_path, *write, "--tokenizer", "someone/words")

    assert done.returncode == 0, done.stderr
    corpus = Roxxel(tmp_path / "a.rox")
    assert corpus.documents[0].tolist() == [1, 0]
    assert corpus.metadata["tokenizer"]["name"] == "someone/words"
    assert offline(tmp_path, "cat", tmp_path / "a.rox").stdout == "b a\n"


def test_a_tokenizer_that_cannot_be_fetched_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    write = "write", tmp_path / "a.rox", tmp_path / "a.txt", "--tokenizer"

    done = offline(tmp_path, *write, "someone/words")

    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"roxxel-prepare: someone/words: cannot be loaded as a tokenizer \(.+\); "
        r"pass the path of a tokenizer\.json or a name on the Hugging Face hub\n",
        done.stderr,
    )
    assert not list(tmp_path.glob("*.rox"))


IMPATIENT = """
import sys, time
from roxxel_prepare.cli import main

def refuse(seconds):
    sys.exit("this waits for a hub that refuses connections")

time.sleep = refuse
sys.exit(main(sys.argv[1:]))
"""


def refused(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command where the hub refuses connections; it may not wait for it."""
    with socket.socket() as bound:  # It never listens.
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        return subprocess.run(
            [sys.executable, "-c", IMPATIENT, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home)},
        )


def test_a_hub_that_refuses_connections_is_asked_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("b", encoding="utf-8")
    write = "write", tmp_path / "a.rox", tmp_path / "a.txt", "--tokenizer"

    done = refused(tmp_path, *write, "someone/words")

    assert (done.returncode, done.stdout) == (1, "")
    assert re.search("someone/words: .*refused.*tokenizer.json", done.stderr)


def test_a_cached_tokenizer_is_used_if_the_hub_refuses_connections(
    tmp_path: Path, tokenizer: Path
) -> None:
    snapshot = in_hub_cache(tmp_path / "hub", tokenizer)
    names = json.dumps({"eos_token": "<end>"})
    (snapshot / "tokenizer_config.json").write_text(names, encoding="utf-8")
    (tmp_path / "a.txt").write_text("b", encoding="utf-8")
    write = "write", tmp_path / "a.rox", tmp_path / "a.txt", "--tokenizer"

    done = refused(tmp_path, *write, "someone/words")

    assert (done.returncode, "<end> (3)" in done.stderr) == (0, True), done.stderr
    assert Roxxel(tmp_path / "a.rox").tokens[:].tolist() == [1, 3]


def test_units_that_another_tokenizer_wrote_are_not_continued(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "0.txt").write_text("a b", encoding="utf-8")
    (tmp_path / "1.txt").write_text("b", encoding="utf-8")
    inputs = tmp_path / "0.txt", tmp_path / "1.txt"
    corpus = tmp_path / "a_*.rox"
    options = "--tokenizer", tokenizer, "--separator", "none", "--unit-bytes", 1
    assert run("write", corpus, *inputs, *options, "--part", "0/2") == 0

    other = tokenizer.read_text(encoding="utf-8").replace('"a": 0', '"c": 0')
    tokenizer.write_text(other.replace('"a":0', '"c":0'), encoding="utf-8")
    assert run("write", corpus, *inputs, *options) == 1
    assert "tokenizer is tokenizer.json@" in capsys.readouterr().err
    assert run("clean", corpus, "--abandon") == 0
    assert run("write", corpus, *inputs, *options) == 0

    documents = [each.tolist() for each in Roxxel(corpus).documents]
    assert documents == [[2, 1], [1]]


def test_tokens_are_printed_as_text(
    tmp_path: Path, tokenizer: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("a b", encoding="utf-8")
    corpus = tmp_path / "a.rox"

    options = "--tokenizer", tokenizer, "--separator", "none"
    assert run("write", corpus, text, *options) == 0
    capfdbinary.readouterr()
    assert run("cat", corpus, "--tokenizer", tokenizer) == 0

    assert capfdbinary.readouterr().out == b"a b\n"


def test_tokens_are_printed_as_text_by_the_tokenizer_that_is_kept(
    tmp_path: Path, tokenizer: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    corpus = tmp_path / "a.rox"
    Roxxel(corpus).write(["a b"], tokenizer=tokenizer, separator=None)
    tokenizer.unlink()

    assert run("cat", corpus) == 0
    assert run("cat", corpus, "--ids") == 0
    [kept] = tmp_path.glob("a.rox.tokenizer.*")
    kept.unlink()
    assert run("cat", corpus) == 0

    printed = capfdbinary.readouterr()
    assert printed.out == b"a b\n0 1\n0 1\n"
    assert str(kept).encode() in printed.err
    assert b"--tokenizer" in printed.err


def test_parquet_columns_hold_texts_or_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = library.table({"text": ["one", "two"], "ids": [[1, 2], [3]], "n": [1, 2]})
    parquet.write_table(table, path)

    assert run("write", tmp_path / "text.rox", path) == 0
    assert run("write", tmp_path / "ids.rox", path, "--field", "ids") == 0
    assert run("write", tmp_path / "no.rox", path, "--field", "body") == 1
    assert run("write", tmp_path / "no.rox", path, "--field", "n") == 1

    texts = Roxxel(tmp_path / "text.rox").documents
    assert [each.tobytes() for each in texts] == [b"one", b"two"]
    tokens = Roxxel(tmp_path / "ids.rox").documents
    assert [each.tolist() for each in tokens] == [[1, 2], [3]]
    errors = capsys.readouterr().err
    assert "has no column 'body', only text, ids, n" in errors
    assert "row 0 holds int64; a document is" in errors


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([[1], [2, None]], None, "row 1 holds a list with 1 null; a document is"),
        ([[[1]], [[2]]], None, "row 0 holds list<"),
        ([["a"]], None, "row 0 holds list<"),
        ([[True, False]], None, "row 0 holds list<element: bool>; a document is"),
        ([{"values": 1}], None, "row 0 holds struct<values: int64>; a document is"),
        (["a", None], None, "row 1 holds a null; a document is a text or a list of"),
        ([[1], None], None, "row 1 holds a null; a document is"),
        ([b"a"], None, "row 0 holds binary; a document is"),
        ([[("a", 1)]], "map", "row 0 holds map<string, int32"),
    ],
)
def test_columns_of_other_things_are_refused_by_row(
    values: list[Any],
    kind: str | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    dtype = library.map_(library.string(), library.int32()) if kind else None
    path = tmp_path / "a.parquet"
    parquet.write_table(library.table({"text": library.array(values, dtype)}), path)

    assert run("write", tmp_path / "a.rox", path) == 1

    assert f"{path}: {message}" in capsys.readouterr().err
    assert not (tmp_path / "a.rox").exists()


@pytest.mark.parametrize(
    ("value", "option"), [(None, "--skip-bad"), ({"values": 1}, "--field")]
)
def test_a_row_that_is_no_document_names_the_option_that_helps(
    value: Any, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(library.table({"text": [value]}), path)

    assert run("write", tmp_path / "a.rox", path) == 1

    assert option in capsys.readouterr().err


def test_zstandard_files_are_decompressed(tmp_path: Path) -> None:
    library: Any = import_module("zstandard")
    compress = library.ZstdCompressor().compress
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compress(b'"one"\n') + compress(b'"two"\n'))

    assert run("write", tmp_path / "a.rox", path) == 0

    documents = Roxxel(tmp_path / "a.rox").documents
    assert [each.tobytes() for each in documents] == [b"one", b"two"]


END = "<|endoftext|>"


@pytest.fixture
def bytewise(tmp_path: Path) -> Path:
    """Return the file of a tokenizer of bytes that has an end-of-text token."""
    names: Any = import_module("tokenizers")
    alphabet = sorted(names.pre_tokenizers.ByteLevel.alphabet())
    model = names.models.BPE({each: i for i, each in enumerate(alphabet)}, [])
    built = names.Tokenizer(model)
    built.pre_tokenizer = names.pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = names.decoders.ByteLevel()
    built.add_special_tokens(["<|pad|>", END])
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    return path


def test_batches_of_texts_give_the_tokens_of_single_texts(
    tmp_path: Path, bytewise: Path
) -> None:
    texts = ["", END, "a\N{POUND SIGN}" * 5, "x" * 700_000, *(["a b"] * 300), ""]
    rows = "".join(json.dumps(text) + "\n" for text in texts)
    (tmp_path / "a.jsonl").write_text(rows, encoding="utf-8")
    Roxxel(tmp_path / "one.rox").write(texts, tokenizer=bytewise)

    target = tmp_path / "c_*.rox"
    assert run("write", target, tmp_path / "a.jsonl", "--tokenizer", bytewise) == 0

    with Roxxel(target) as corpus, Roxxel(tmp_path / "one.rox") as one:
        assert corpus.tokens[:].tolist() == one.tokens[:].tolist()
        assert corpus.num_documents == len(texts)


def test_a_list_among_texts_is_an_error_that_names_it(
    tmp_path: Path, bytewise: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('"a"\n[1]\n', encoding="utf-8")
    command = "write", tmp_path / "c_*.rox", tmp_path / "a.jsonl"

    assert run(*command, "--tokenizer", bytewise) == 1

    error = capsys.readouterr().err
    assert "a.jsonl: document 1 is list, but the corpus holds text" in error


def test_the_command_says_how_documents_end(
    tmp_path: Path, bytewise: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, target = tmp_path / "a.txt", tmp_path / "c.rox"
    text.write_text("ab", encoding="utf-8")
    write = "write", target, text, "--tokenizer", bytewise, "--exist", "replace"

    assert run(*write) == 0
    assert Roxxel(target).tokens[2:].tolist() == [257]
    assert capsys.readouterr().err.startswith(
        "each document ends with <|endoftext|> (257), the end-of-text token of "
        "tokenizer.json; --separator none leaves it out\n"
    )
    for separator, tokens in (("none", []), ("<|pad|>", [256]), ("0", [0])):
        assert run(*write, "--separator", separator) == 0
        assert Roxxel(target).tokens[2:].tolist() == tokens
        assert "each document ends" not in capsys.readouterr().err
    assert run(*write, "--separator", "<|eos|>") == 1
    assert capsys.readouterr().err.endswith(
        "roxxel-prepare: tokenizer.json: has no token '<|eos|>'; name another token, "
        "such as its special tokens <|pad|>, <|endoftext|>\n"
    )


def test_a_special_token_that_a_text_spells_is_text_unless_it_is_allowed(
    tmp_path: Path, bytewise: Path
) -> None:
    text, target = tmp_path / "a.txt", tmp_path / "c.rox"
    text.write_text(f"a{END}b", encoding="utf-8")
    write = "write", target, text, "--tokenizer", bytewise, "--exist", "replace"

    assert run(*write) == 0
    assert Roxxel(target).num_tokens == 2 + len(END) + 1
    assert 257 not in Roxxel(target).documents[0]
    assert run(*write, "--special-tokens") == 0
    assert Roxxel(target).tokens[1:2].tolist() == [257]
    assert Roxxel(target).num_tokens == 4


def test_a_tokenizer_of_the_caller_is_not_changed(
    tmp_path: Path, bytewise: Path
) -> None:
    names: Any = import_module("tokenizers")
    given = names.Tokenizer.from_file(str(bytewise))
    given.enable_truncation(2)

    Roxxel(tmp_path / "c.rox").write([f"a{END}b"], tokenizer=given)

    assert Roxxel(tmp_path / "c.rox").num_tokens == 2 + len(END) + 1
    assert given.encode(f"a{END}b").ids == [*given.encode("a").ids, 257]


@pytest.mark.parametrize("by_path", [True, False])
def test_no_document_is_truncated_or_padded(
    by_path: bool, tmp_path: Path, bytewise: Path
) -> None:
    names: Any = import_module("tokenizers")
    limited = names.Tokenizer.from_file(str(bytewise))
    limited.enable_truncation(2)
    limited.enable_padding(length=4)
    limited.save(str(bytewise))

    corpus = Roxxel(tmp_path / "c.rox")
    corpus.write(["abc", "d"], tokenizer=bytewise if by_path else limited)

    assert [each.size for each in corpus.documents] == [3, 1]


def test_a_text_with_a_lone_surrogate_names_file_and_line(
    tmp_path: Path, bytewise: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "a.jsonl"
    rows.write_text('"a"\n"\\ud800"\n', encoding="utf-8")

    assert run("write", tmp_path / "c.rox", rows, "--tokenizer", bytewise) == 1

    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"roxxel-prepare: {rows}:2: holds the lone surrogate")
    target = tmp_path / "c_*.rox"
    assert run("write", target, rows, "--tokenizer", bytewise, "--skip-bad") == 0
    assert Roxxel(target).num_documents == 1


def test_a_name_of_a_separator_and_special_tokens_need_a_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "a.txt"
    text.touch()
    with pytest.raises(SystemExit) as caught:
        run("write", tmp_path / "c.rox", text, "--separator", "x")
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.endswith("or pass the --tokenizer that has this token\n")
    assert run("write", tmp_path / "c.rox", text, "--special-tokens") == 1
    assert "needs a tokenizer" in capsys.readouterr().err


def test_texts_are_held_out_by_their_tokens(tmp_path: Path, tokenizer: Path) -> None:
    """A split of the shards finds the documents that a split of the texts held out."""
    names: Any = import_module("tokenizers")
    built = names.Tokenizer.from_file(str(tokenizer))
    built.post_processor = names.processors.TemplateProcessing(
        single="<end> $A", special_tokens=[("<end>", 3)]
    )
    built.save(str(tokenizer))
    rows = [" ".join("ab"[n >> at & 1] for at in range(7)) for n in range(90)]
    options: list[object] = ["--tokenizer", tokenizer, "--separator", "<end>"]
    lines = [json.dumps(row) for row in rows]
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")

    whole, share = tmp_path / "whole_*.rox", ("--split", "held=0.3")
    assert run("write", tmp_path / "x_*.rox", source, *options, *share) == 0
    assert run("write", whole, source, *options) == 0
    assert run("write", tmp_path / "y.rox", whole, *share) == 0

    found = [
        [each.tolist() for each in Roxxel(tmp_path / name).documents]
        for name in ("x_held_*.rox", "y_held.rox", "x_*.rox", "y.rox")
    ]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert 5 < len(found[0]) < 60


@pytest.fixture
def two_ends(tmp_path: Path) -> Path:
    """Return a folder with a tokenizer that has two tokens for the end of a text."""
    names: Any = import_module("tokenizers")
    built = names.Tokenizer(names.models.WordLevel({"a": 0, "?": 1}, "?"))
    built.add_special_tokens(["<|endoftext|>", "</s>", "<|im_end|>"])
    folder = tmp_path / "model"
    folder.mkdir()
    built.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("named", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("value", ["</s>", {"content": "</s>", "lstrip": False}])
def test_the_end_of_text_that_stands_beside_the_tokenizer_decides(
    two_ends: Path, named: str, value: object
) -> None:
    (two_ends / named).write_text(json.dumps({"eos_token": value}), encoding="utf-8")

    for each in (two_ends, two_ends / "tokenizer.json"):
        corpus = Roxxel(two_ends / "c.rox")
        corpus.write(["a"], tokenizer=str(each), exist="replace")
        assert corpus.tokens[:].tolist() == [0, 3]


def test_the_end_of_a_turn_is_no_end_of_text(two_ends: Path) -> None:
    config = two_ends / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "<|im_end|>"}), encoding="utf-8")
    corpus = Roxxel(two_ends / "c.rox")

    corpus.write(["a"], tokenizer=two_ends)

    assert corpus.tokens[:].tolist() == [0, 2]


@pytest.mark.parametrize("text", ["{", json.dumps({"eos_token": "<none>"})])
def test_an_end_of_text_that_cannot_be_known_is_an_error(
    two_ends: Path, text: str
) -> None:
    config = two_ends / "tokenizer_config.json"
    config.write_text(text, encoding="utf-8")
    named = str(config) if text == "{" else "<none>"

    with pytest.raises(ValueError, match=re.escape(named)):
        Roxxel(two_ends / "c.rox").write(["a"], tokenizer=two_ends)


def test_a_tokenizer_that_drops_characters_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: Any = import_module("tokenizers")
    built = names.Tokenizer(names.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    source = tmp_path / "a.jsonl"
    rows = ["ab ж a", "жж☃", "b", "ba", "aa", "bb"]
    source.write_text("".join(f'"{row}"\n' for row in rows), encoding="utf-8")
    options = "--tokenizer", path, "--separator", "none", "--unit-bytes", 10

    split = "--split", "held=0.4"
    assert run("write", tmp_path / "d_*.rox", source, *options, *split) == 0
    said = "tokenizer.json leaves out the characters of a text that its vocabulary"
    assert capsys.readouterr().err.count(said) == 1
    corpus = Roxxel(tmp_path / "c.rox")
    whole = names.Tokenizer(names.models.BPE({"a": 0}, [], byte_fallback=True))
    unknown = names.Tokenizer(
        names.models.BPE({"a": 0}, [], unk_token="a")  # noqa: S106 - no password
    )
    for each in (whole, unknown):
        corpus.write(["a"], tokenizer=each, separator=0, exist="replace")
        assert "leaves out" not in capsys.readouterr().err


def test_a_tokenizer_that_drops_bytes_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte-level model that was trained without the whole alphabet loses bytes."""
    names: Any = import_module("tokenizers")
    alphabet: list[str] = sorted(names.pre_tokenizers.ByteLevel.alphabet())
    for count in (256, 255):
        model = names.models.BPE(
            {each: at for at, each in enumerate(alphabet[:count])}, []
        )
        corpus = Roxxel(tmp_path / "c.rox")
        tokenizer = names.Tokenizer(model)
        corpus.write(["!"], tokenizer=tokenizer, separator=None, exist="replace")
        assert ("leaves out" in capsys.readouterr().err) == (count == 255)


def test_a_split_says_once_how_documents_end(
    tmp_path: Path, two_ends: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.jsonl"
    rows = (f'"{" ".join("a" * (n + 1))}"' for n in range(40))
    source.write_text("\n".join(rows) + "\n", encoding="utf-8")
    write = "write", tmp_path / "c_*.rox", source, "--tokenizer", two_ends

    assert run(*write, "--split", "held=0.3") == 0

    assert capsys.readouterr().err.count("each document ends with") == 1
