from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardWriter

from .helpers import corpus_of, documents_of, main


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    return path


def test_text_files_are_documents(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.rox"

    assert run("write", target, text, text, "--separator", 0) == 0

    said = capsys.readouterr().out
    assert said.startswith(f"{target}: wrote 18 tokens (uint8) in 2 documents")
    assert Roxxel(target).documents[1].tobytes() == b"one\ntwo\n"
    assert run("write", target, text, text, "--separator", 0) == 0
    assert "kept 18 tokens" in capsys.readouterr().err
    assert run("write", target, text, "--separator", 1) == 1
    assert "separator is 0 in the corpus, 1 given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ([], True),
        (["--split", "valid=0.5"], True),
        (["--separator", "none"], False),
        (["--separator", "0"], False),
        (["--tokenizer", "bytes"], False),
    ],
)
def test_a_write_says_if_nothing_ends_a_document(
    given: list[str],
    is_said: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(40)))

    assert run("write", tmp_path / "c_*.rox", lines, *given) == 0

    said = capsys.readouterr().err
    assert said.count("--tokenizer bytes") == is_said
    assert said.count("ends") >= is_said


@pytest.mark.parametrize(
    ("spelling", "separator"),
    [
        (r"\n\n", b"\n\n"),
        (r"\x00", b"\0"),
        (r"\\x00\t\r", b"\\x00\t\r"),
        ("\N{POUND SIGN}\n", "\N{POUND SIGN}\n".encode()),
    ],
)
def test_a_separator_can_be_bytes(
    spelling: str, separator: bytes, tmp_path: Path, text: Path
) -> None:
    target = tmp_path / "c.rox"

    assert run("write", target, text, "--separator", f"text:{spelling}") == 0

    document = Roxxel(target).documents.with_separator[0]
    assert document.tobytes() == b"one\ntwo\n" + separator


def test_separators_that_are_none_are_wrong_arguments(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, message in (
        ([r"--separator=text:\q"], r"text:\q holds \q; write \n, \t, \r, \\ or \xNN"),
        (["--separator=text:a\\"], "holds \\; write"),
        ([r"--separator=text:\x0"], r"holds \x; write"),
        (["--separator=text:"], "separates nothing; write none"),
        (["--format", "xml"], "argument --format: 'xml' is not one of text, lines"),
    ):
        with pytest.raises(SystemExit) as caught:
            run("write", tmp_path / "c.rox", text, *wrong)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_lines_json_lines_and_arrays_are_documents(tmp_path: Path, text: Path) -> None:
    rows = tmp_path / "a.jsonl.gz"
    with gzip.open(rows, "wt", encoding="utf-8") as file:
        file.write('{"body": [1, 2]}\n\n[3]\n')
    table = tmp_path / "a.npy"
    np.save(table, np.arange(6, dtype=np.uint16).reshape(3, 2))

    assert run("write", tmp_path / "lines.rox", text, "--format", "lines") == 0
    assert run("write", tmp_path / "json.rox", rows, "--field", "body") == 0
    assert run("write", tmp_path / "table.rox", table) == 0

    lines = Roxxel(tmp_path / "lines.rox").documents
    assert [each.tobytes() for each in lines] == [b"one", b"two"]
    documents = Roxxel(tmp_path / "json.rox").documents
    assert [each.tolist() for each in documents] == [[1, 2], [3]]
    assert Roxxel(tmp_path / "table.rox").documents[2].tolist() == [4, 5]


def test_documents_come_from_the_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b'"a"\n"b"\n'))
    monkeypatch.setattr("sys.stdin", stdin)

    assert run("write", tmp_path / "c.rox", "-", "--format", "jsonl") == 0

    assert len(Roxxel(tmp_path / "c.rox").documents) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"x": 1}',
            "a.jsonl:1: has no field 'text', only x; pass the field",
        ),
        ("a.jsonl", b"[1]\n{", "a.jsonl:2: not JSON"),
        ("a.jsonl", b"3", "a.jsonl:1: is a number; a document is a text"),
        ("a.txt", b"\xff", "a.txt: not UTF-8 text .invalid start byte at byte 0"),
        ("a.npy", b"x", "a.npy: not a .npy file"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    name: str,
    content: bytes,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(content)

    assert run("write", tmp_path / "c.rox", tmp_path / name) == 1

    error = capsys.readouterr().err
    assert error.startswith("roxxel-prepare: ")
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert not list(tmp_path.glob("*.rox*"))


def test_info_says_what_a_corpus_holds(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.rox"
    run("write", target, text)
    capsys.readouterr()

    assert run("info", target, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["tokens"], facts["documents"], facts["dtype"]) == (8, 1, "uint8")
    assert facts["metadata"]["source"] == ["a.txt"]
    assert run("info", target) == 0
    assert "tokens       8\n" in capsys.readouterr().out
    assert run("info", tmp_path / "none") == 1
    assert "no such file or folder" in capsys.readouterr().err


def test_verify_tells_damage_by_its_exit_code(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.rox"
    run("write", target, text)

    assert run("verify", target) == 0
    assert "\n1 shard, 8" in capsys.readouterr().out
    data = bytearray(target.read_bytes())
    data[4097] ^= 1
    target.write_bytes(data)
    assert run("verify", target) == 3
    assert "block 0 of the tokens" in capsys.readouterr().err


def test_cat_prints_documents_and_tokens(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    target = tmp_path / "c.rox"
    Roxxel(target).write(["ä", "b"], separator=10)

    assert run("cat", target) == 0
    assert capfdbinary.readouterr().out == "ä\nb\n".encode()
    assert run("cat", target, "--document", 1, "--ids") == 0
    assert capfdbinary.readouterr().out == b"98\n"
    assert run("cat", target, "--tokens", "2:4", "--ids") == 0
    assert capfdbinary.readouterr().out == b"10 98\n"


def test_a_copy_writes_flat_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.rox"
    Roxxel(target).write([np.arange(5, dtype=np.uint16)])

    assert run("copy", target, tmp_path / "a.npy") == 0
    assert run("copy", target, tmp_path / "a.bin") == 0

    # Nothing in a .bin file says of which type its tokens are.
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{tmp_path / 'a.bin'}: 5 tokens (uint16), 10 B"
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2, 3, 4]
    assert np.fromfile(tmp_path / "a.bin", "<u2").tolist() == [0, 1, 2, 3, 4]
    assert run("copy", target, "s3://bucket/a.npy") == 1
    assert "name a path, and upload it" in capsys.readouterr().err
    Roxxel(tmp_path / "b.rox").write([np.array([5], np.uint16)], dtype="bfloat16")
    assert run("copy", tmp_path / "b.rox", tmp_path / "b.npy") == 0
    assert np.load(tmp_path / "b.npy").tolist() == [5]


def test_a_flat_copy_replaces_a_file_only_if_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, output = tmp_path / "a.rox", tmp_path / "a.bin"
    Roxxel(target).write([[1, 2]], dtype="uint8")
    output.write_bytes(b"kept")

    assert run("copy", target, output) == 1

    error = f"roxxel-prepare: {output}: exists already; add --exist replace"
    assert error in capsys.readouterr().err
    assert output.read_bytes() == b"kept"
    assert run("copy", target, output, "--exist=replace") == 0
    assert output.read_bytes() == b"\1\2"


def test_a_flat_copy_to_a_folder_or_a_broken_link_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.rox"
    Roxxel(target).write([[1, 2]], dtype="uint8")
    folder, link = tmp_path / "f.npy", tmp_path / "l.npy"
    folder.mkdir()
    link.symlink_to("missing.npy")

    assert run("copy", target, folder, "--exist=replace") == 1
    assert run("copy", target, link) == 1

    assert capsys.readouterr().err == (
        f"roxxel-prepare: {folder}: is a folder; name a file in it\n"
        f"roxxel-prepare: {link}: exists already; add --exist replace, or write "
        "elsewhere\n"
    )
    assert link.is_symlink()


def test_a_missing_input_and_a_separator_of_text_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.txt"

    assert run("write", tmp_path / "a.rox", missing) == 1

    error = capsys.readouterr().err
    assert error == (
        f"roxxel-prepare: {missing}: no such file or directory; check the path\n"
    )
    with pytest.raises(SystemExit):
        run("write", tmp_path / "a.rox", missing, "--separator", "x")
    error = capsys.readouterr().err
    assert "'x' is not a token id; write a number, text:x for" in error


def test_a_path_that_cannot_be_meant_is_refused(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty variable of a shell is not this folder, nor a file a folder."""
    for arguments, message in (
        (("write", tmp_path / "c.rox", ""), "an input is empty"),
        (("write", text, text), f"{text}: is no folder; name a corpus by"),
        (("write", text, "--commit"), f"{text}: is no folder"),
        (("clean", text), f"{text}: is no folder"),
        (("clean", "--compact", tmp_path / "c"), "no such corpus"),
        (("verify", "--adopt", tmp_path / "c_*.rox"), "no .rox file"),
    ):
        assert run(*arguments) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert message in line
    assert [*tmp_path.iterdir()] == [text]


@pytest.mark.parametrize("pattern", [False, True])
def test_a_link_whose_file_is_gone_is_not_passed_over(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], *, pattern: bool
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    text.rename(folder / text.name)
    (folder / "b.txt").symlink_to("gone.txt")
    (folder / ".hidden.txt").symlink_to("gone.txt")

    inputs = folder / "*.txt" if pattern else folder
    assert run("write", tmp_path / "c.rox", inputs) == 1

    assert f"{folder / 'b.txt'}: no such file" in capsys.readouterr().err
    (folder / "b.txt").unlink()
    assert run("write", tmp_path / "c.rox", inputs) == 0


def test_a_linked_folder_in_a_folder_of_inputs_is_refused(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    (folder / "more").mkdir(parents=True)
    text.rename(folder / "more" / text.name)
    (folder / "linked").symlink_to("more")

    assert run("write", tmp_path / "c.rox", folder) == 1

    assert f"{folder / 'linked'}: is a link to a folder" in capsys.readouterr().err


def test_the_standard_input_is_read_once_and_not_called_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"a"\n')))
    command = "write", tmp_path / "c.rox", "--format", "jsonl", "--separator", 0, "-"

    assert run(*command, "-") == 1
    assert "can be read only once" in capsys.readouterr().err
    assert run(*command) == 0

    assert capsys.readouterr().err == ""


def test_an_input_that_is_given_twice_is_written_twice_and_said(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("write", tmp_path / "c.rox", text, text, tmp_path / "*.txt") == 0

    assert f"{text}: is given 3 times" in capsys.readouterr().err
    assert Roxxel(tmp_path / "c.rox").num_documents == 3


def test_cat_prints_the_tokens_of_a_span(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.rox"
    Roxxel(target).write([[1, 2, 3]], dtype="uint8")

    assert run("cat", target, "--ids", "--tokens", "1:4") == 0

    assert capsys.readouterr().out == "2 3\n"
    for wrong in ("2:1", "-2:3", ":2", "1:"):
        with pytest.raises(SystemExit) as caught:
            run("cat", target, "--ids", f"--tokens={wrong}")
        assert caught.value.code == 2


def test_a_flat_copy_that_fails_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.rox"
    Roxxel(target).write([np.arange(5000, dtype=np.uint16)])
    with target.open("r+b") as file:
        file.seek(9000)
        file.write(b"damage")

    assert run("copy", target, tmp_path / "a.npy") == 1

    assert "block 1 of the tokens" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [target]


def test_sizes_have_units(tmp_path: Path, text: Path) -> None:
    pattern = tmp_path / "c_*.rox"

    assert run("write", pattern, text, "--max-shard-bytes", "1M") == 0
    for wrong in ("1X", "0", "-1", "K", "1.5M"):
        with pytest.raises(SystemExit) as caught:
            run("write", pattern, text, f"--max-shard-bytes={wrong}")
        assert caught.value.code == 2


def test_a_wrong_document_names_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rows in (("a", "[1]\n[2]\n"), ("b", "[3]\n[70000]\n")):
        (tmp_path / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    inputs = sorted(tmp_path.glob("*.jsonl"))

    assert run("write", tmp_path / "c.rox", *inputs, "--dtype", "uint16") == 1

    assert "b.jsonl: document 1: value 70000 is outside" in capsys.readouterr().err
    (tmp_path / "b.jsonl").write_text("[3]\n[0.5]\n", encoding="utf-8")
    assert run("write", tmp_path / "c.rox", *inputs) == 1
    error = capsys.readouterr().err
    assert "b.jsonl: document 1: dtype float64 cannot be stored as uint32" in error


def test_info_shows_versions_and_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_of(tmp_path, [[1]])
    corpus.write_column("mask", [1], dtype="uint8")
    first = corpus.fingerprint
    corpus = corpus_of(tmp_path, [[2]], exist="append", without_columns=["mask"])

    assert run("info", tmp_path / "c_*.rox", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"] == [
        {"fingerprint": first, "tokens": 1, "documents": 1},
        {"fingerprint": corpus.fingerprint, "tokens": 2, "documents": 2},
    ]
    mask = {"name": "mask", "per": "token", "dtype": "uint8"}
    assert facts["columns"] == [mask | {"shards": 1, "missing_shards": 1}]
    assert run("info", tmp_path / "c_*.rox") == 0
    printed = capsys.readouterr().out
    assert f"versions     {first}, 1 token in 1 document\n" in printed
    row = "columns      mask: uint8 for each token, in 1 shard, missing in 1\n"
    assert row in printed
    for raw in ("{", "}", "[", '"'):
        assert raw not in printed.partition("lengths")[0]


def test_other_inputs_are_another_corpus(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.rox"
    assert run("write", target, text) == 0
    text.write_text("longer than before", encoding="utf-8")

    assert run("write", target, text) == 1

    assert f"made from other inputs ({text} has 18 bytes, 8" in capsys.readouterr().err


def test_info_draws_the_lengths_of_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = [0, 1, 3, 3, 40_000]
    corpus_of(tmp_path, documents_of(*lengths))

    assert run("info", tmp_path) == 0
    drawn = capsys.readouterr().out
    assert "lengths      0 to 40,000 tokens, 8,001.4 on average\n" in drawn
    assert f"{'tokens':>24} {'documents':>12}\n{'0':>24} {1:>12} " in drawn
    assert f"{'2 to 3':>24} {2:>12} {'#' * 40}\n" in drawn
    assert run("info", tmp_path, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["lengths"]["histogram"]
    assert rows == [[0, 0, 1], [1, 1, 1], [2, 3, 2], [32768, 65535, 1]]
    assert run("info", tmp_path, "--no-lengths") == 0
    assert "lengths" not in capsys.readouterr().out


def test_split_divides_by_content_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = documents_of(*[9] * 500)
    twice = [*documents, *documents[:50]]
    Roxxel(tmp_path / "all.rox").write(twice, separator=5)
    kept, held_out = tmp_path / "train.rox", tmp_path / "train_valid.rox"
    divided = "write", kept, tmp_path / "all.rox", "--split"

    assert run(*divided, "valid=0.2") == 0

    parts = [[d.tobytes() for d in Roxxel(path).documents] for path in (kept, held_out)]
    assert sorted(parts[0] + parts[1]) == sorted(d.tobytes() for d in twice)
    assert not set(parts[0]) & set(parts[1])
    assert 60 < len(parts[1]) < 160
    assert Roxxel(kept).documents.with_separator[0][-1] == 5
    assert run(*divided, "valid=0.3") == 1
    error = capsys.readouterr().err
    assert "split is valid=0.2 in the corpus, valid=0.3 given" in error
    with pytest.raises(SystemExit):
        run(*divided, "valid=2")
    assert "'valid=2' is not NAME=SHARE with a share" in capsys.readouterr().err


def test_a_split_that_leaves_one_side_empty_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "all.rox"
    Roxxel(target).write([[1, 2], [3]])

    assert run("write", tmp_path / "a.rox", target, "--split", "b=0.02") == 1
    error = capsys.readouterr().err
    assert "a_b.rox: none of 2 documents would be in this corpus with share" in error
    assert list(tmp_path.iterdir()) == [target]


def test_the_command_works_in_every_locale(tmp_path: Path) -> None:
    folder = tmp_path / "\N{LATIN SMALL LETTER U WITH DIAERESIS}[1]"
    folder.mkdir()
    (folder / "\N{LATIN SMALL LETTER U WITH DIAERESIS}.txt").write_bytes(b"text")
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    name = folder / "c_*.rox"
    inputs = [str(path) for path in folder.iterdir()]

    for module, *arguments in (
        ["roxxel_prepare", "write", str(name), *inputs, "--separator", "none"],
        ["roxxel_format", "info", str(name)],
    ):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", module, *arguments],
            capture_output=True,
            check=False,
            env=os.environ | settings,
        )
        assert (done.returncode, done.stderr) == (0, b"")

    assert Roxxel(name).metadata["source"] == [Path(inputs[0]).name]


def test_a_command_that_passes_on_to_this_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing.rox")

    assert main(["info", missing], prog="roxxel format") == 1
    assert capsys.readouterr().err.startswith("roxxel format: ")
    with pytest.raises(SystemExit):
        main(["info", "--nonsense"], prog="roxxel format")
    assert capsys.readouterr().err.startswith("usage: roxxel format info ")


def test_damage_and_a_lost_tokenizer_are_told_by_the_name_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, lost = tmp_path / "c.rox", tmp_path / "tokenizer.json"
    metadata = {"tokenizer": {"name": str(lost)}}
    with ShardWriter(target, "uint8", vocab_size=9, metadata=metadata) as writer:
        writer.append(np.array([5, 6]))

    assert main(["cat", str(target)], prog="roxxel format") == 0
    assert capsys.readouterr().err.startswith("roxxel format: the recorded tokenizer ")
    data = bytearray(target.read_bytes())
    data[4097] ^= 1
    target.write_bytes(data)
    assert main(["verify", str(target)], prog="roxxel format") == 3
    (error,) = capsys.readouterr().err.splitlines()[-1:]
    assert error.startswith(f"roxxel format: {target}: ")


def test_clean_says_in_its_help_what_it_removes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["clean", "--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "Committed files stay, and so does a preparation that" in text
    assert "--abandon" in text


def test_clean_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(["one"])
    left = tmp_path / "c_0123456789ab_00000_000.rox"
    shutil.copy(corpus.paths[0], left)
    capsys.readouterr()

    assert run("clean", tmp_path / "c_*.rox") == 0
    assert capsys.readouterr().out == f"removed {left}\n"
    assert run("clean", tmp_path / "c_*.rox", "--abandon") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'c_*.rox'}: nothing to remove\n"


@pytest.mark.parametrize("name", ["x", "x.rox", "x_*.rox", "x/y_*.rox"])
def test_clean_of_a_path_that_does_not_exist_is_an_error(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Roxxel(tmp_path / "c_*.rox").write([[1]])
    before = sorted(tmp_path.iterdir())

    assert run("clean", tmp_path / name) == 1

    meant = tmp_path / ("x.rox" if name == "x" else name)
    expected = f"roxxel-prepare: {meant}: no such corpus; check the path\n"
    assert capsys.readouterr().err == expected
    assert sorted(tmp_path.iterdir()) == before


def test_a_token_beyond_the_vocabulary_names_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"999\] of uint16; raise vocab_size, or corr"):
        Roxxel(tmp_path / "a.rox").write([[1000]], vocab_size=1000)


@pytest.mark.parametrize("command", ["write", "copy"])
def test_a_web_server_is_read_only(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a_*.rox"
    Roxxel(source).write([[1]], vocab_size=9)
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    url = "http://127.0.0.1:9/c_*.rox"
    names = [url, tmp_path / "a.txt"] if command == "write" else [source, url]

    assert run(command, *names) == 1

    assert f"{url}: a web server is read-only; write to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        *("--field", "--document-id", "--prompt", "--completion"),
        *("--separator", "--split", "--without-columns"),
    ],
)
def test_a_name_in_letters_that_the_locale_lacks_is_a_wrong_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    in_ascii = "größe".encode().decode("ascii", "surrogateescape")

    with pytest.raises(SystemExit, match="2"):
        main(["write", str(tmp_path / "a.rox"), "-", option, in_ascii])
    assert "LC_ALL=C.UTF-8" in capsys.readouterr().err
