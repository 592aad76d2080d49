"""The format of an input: what its name and its first bytes agree on, or an error."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel
from roxxel_prepare._inputs.formats import FORMATS

from .helpers import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
TEXTS = ["alpha", 'a "quoted", [bracketed] {text}', "two\nlines", "é\u20ac", ""]
MARK = b"\xef\xbb\xbf"


def lines_of(texts: list[str]) -> bytes:
    return "".join(f"{json.dumps({'text': text})}\n" for text in texts).encode()


def table_of(texts: list[str]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["id", "text"])
    writer.writerows(enumerate(texts))
    return file.getvalue().encode()


def write(*arguments: object) -> int:
    return main(["write", *map(str, arguments)])


def documents(folder: Path, name: str, content: bytes, *options: object) -> list[str]:
    """Write an input, and return the texts of the corpus."""
    path = folder / name
    path.write_bytes(content)
    target = folder / "out" / "c_*.rox"
    assert write(target, path, *options, "--exist", "replace") == 0
    return [bytes(each).decode() for each in Roxxel(target).documents]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that writes an input in vain, and returns the one sentence."""

    def refuse(name: str, content: bytes, *options: object) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        capsys.readouterr()

        assert write(tmp_path / "c_*.rox", path, *options) == 1

        error = capsys.readouterr().err
        assert error.startswith(f"roxxel-prepare: {path}")
        assert error.count("\n") == 1
        assert not [*tmp_path.glob("c_*.rox")]
        return error

    return refuse


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".jsonlines", ".ndjson"])
@pytest.mark.parametrize("compressed", COMPRESS)
def test_json_lines_are_known_in_every_usual_spelling(
    ending: str, compressed: str, tmp_path: Path
) -> None:
    content = COMPRESS[compressed](lines_of(TEXTS))

    for name in (f"a{ending}{compressed}", f"A{ending}{compressed}".upper()):
        assert documents(tmp_path, name, content, "--field", "text") == TEXTS


@pytest.mark.parametrize("compressed", COMPRESS)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_one_document_for_each_item(
    compressed: str, indent: int | None, tmp_path: Path
) -> None:
    rows = [{"text": text, "meta": {"n": [1, "}]"]}} for text in TEXTS]
    content = json.dumps(rows, indent=indent, ensure_ascii=False).encode()

    found = documents(tmp_path, f"a.json{compressed}", COMPRESS[compressed](content))

    assert found == TEXTS


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8")), min_size=1), data=st.data()
)
def test_any_json_array_is_read(
    texts: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    indent = data.draw(st.sampled_from([None, 1, "\t"]))
    content = json.dumps(texts, indent=indent, ensure_ascii=data.draw(st.booleans()))
    folder = tmp_path_factory.mktemp("array")

    assert documents(folder, "a.json", content.encode()) == texts


def test_items_of_an_array_may_lie_anywhere_in_a_large_file(tmp_path: Path) -> None:
    chosen = random.Random(1)
    texts = [
        '\\"[]{},é'[: chosen.randrange(9)] * 10 ** chosen.randrange(5)
        for _ in "x" * 300
    ]
    content = json.dumps([{"text": text} for text in texts]).encode()
    assert len(content) > 1 << 21

    assert documents(tmp_path, "a.json", content) == texts


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'["one", "two"', "ends inside its array, at item 1"),
        (b'["one", "tw', "ends inside its array, at item 1"),
        (b'["one", "two",]', "item 2: not JSON"),
        (b'["one" "two"]', "item 0: not JSON"),
        (b'["one", two]', "item 1: not JSON"),
        (b'["one"} ', "does not end after its array of 1 items"),
        (b'["one"]\n["two"]\n', "does not end after its array of 1 items"),
        (b'["one", {"no": 1}]', "item 1: has no field 'text'"),
        (b'["one", null]', "item 1: is null; a document is"),
        (b"[]", "holds no documents"),
    ],
)
def test_a_damaged_array_names_the_item(
    content: bytes, problem: str, refused: Callable[..., str]
) -> None:
    assert problem in refused("a.json", content)


def test_bad_items_of_an_array_are_skipped(tmp_path: Path) -> None:
    content = b'["one", two, "three", {"no": 1}, "five"'

    found = documents(tmp_path, "a.json", content, "--skip-bad")

    assert found == ["one", "three"]


@pytest.mark.parametrize("compressed", COMPRESS)
def test_a_row_of_a_table_is_a_document(compressed: str, tmp_path: Path) -> None:
    content = COMPRESS[compressed](table_of(TEXTS))
    options = "--field", "text", "--document-id", "id"

    found = documents(tmp_path, f"a.csv{compressed}", content, *options)

    assert found == TEXTS
    assert Roxxel(tmp_path / "out" / "c_*.rox").document_name(2) == "2"


@given(texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"))))
def test_any_table_is_read(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("table")

    assert documents(folder, "a.csv", table_of(["first", *texts])) == ["first", *texts]


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0\t\r\n"), max_size=5)
hostile = st.text(st.sampled_from('"a\t\n,'), max_size=5)


@given(
    rows=st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(st.one_of(cells, st.text('"a')), min_size=width, max_size=width),
            min_size=1,
        )
    ),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_the_fields_of_tsv_are_what_lies_between_tabs(
    rows: list[list[str]], end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("table")
    names = ["text", "b", "c"][: len(rows[0])]
    lines = ["\t".join(row) + end for row in [names, *rows]]
    path = folder / "a.tsv"
    path.write_text("".join(lines), encoding="utf-8", newline="")

    found = documents(folder, "a.tsv", path.read_bytes(), "--format", "tsv")

    assert found == [row[0] for row in rows]


@given(
    texts=st.lists(hostile, min_size=1, max_size=6),
    before=st.booleans(),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_csv_with_tabs_is_never_read_as_other_texts(
    texts: list[str],
    quoting: Any,
    tmp_path_factory: pytest.TempPathFactory,
    *,
    before: bool,
) -> None:
    """It is refused, but for files without any field in quotes."""
    folder = tmp_path_factory.mktemp("table")
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter="\t", quoting=quoting)
    names = ["id", "text"] if before else ["text"]
    writer.writerows([names, *([7, each][-len(names) :] for each in texts)])
    (folder / "a.tsv").write_text(file.getvalue(), encoding="utf-8", newline="")

    done = main(["write", str(folder / "c_*.rox"), str(folder / "a.tsv")])

    if done == 0:
        corpus = Roxxel(folder / "c_*.rox")
        assert [bytes(each).decode() for each in corpus.documents] == texts
        assert '"' not in file.getvalue()


@pytest.mark.parametrize(
    "row", ['1\t"Yes," she said', '1\tabc"', '1\t5" disk', '1\t"abc" "d"']
)
def test_quotes_that_no_csv_has_are_characters_of_tsv(row: str, tmp_path: Path) -> None:
    rows = ["id\ttext", row, "2\tb"]
    content = "".join(f"{each}\n" for each in rows).encode()

    found = documents(tmp_path, "a.tsv", content)

    assert found == [row.partition("\t")[2], "b"]


def test_a_field_of_tsv_that_may_go_on_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    content = b'id\ttext\n1\t"abc\n2\tb\n3\tdef"\n4\tlast\n'

    for options in ((), ("--skip-bad",)):
        error = refused("a.tsv", content, *options)
        assert ":2: has a field in quotes" in error
        assert "--format tsv" in error
    assert documents(tmp_path, "a.tsv", content, "--format", "tsv") == [
        *('"abc', "b", 'def"', "last")
    ]


def test_a_field_of_a_table_may_be_long(tmp_path: Path) -> None:
    before = csv.field_size_limit()

    assert documents(tmp_path, "a.csv", table_of(["x" * 300_000])) == ["x" * 300_000]

    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"id,body\n1,one\n", "has no column 'text', only id, body"),
        (b"text,text\n1,one\n", "has 2 columns 'text'"),
        (b"text,id\none,1\ntwo\n", ":3: has 1 fields"),
        (b'text,id\n"one\ntwo",1\n"three\n', ":4: not a row of quoted fields"),
        (b'text,id\n"one"x,1\n', ":2: not a row of quoted fields"),
        (b"text,id\none,1\n\xff,2\n", ":3: not UTF-8"),
        (b"text,id\none,1\nt\0wo,2\n", "binary"),
        (b"text,id\n", "holds no documents"),
        (b'a\ttext\n"b"c\td\n', "has no column 'text'"),
        (b"", "holds no documents"),
    ],
)
def test_a_damaged_table_names_the_line(
    content: bytes, problem: str, refused: Callable[..., str]
) -> None:
    assert problem in refused("a.csv", content)


@pytest.mark.parametrize(
    "name",
    ["a.txt", "a.TXT", "a.md", "a.rst", "a.py", "a.cpp", "a.text.gz", "a.jl.xz"],
)
def test_text_and_source_code_are_one_document(name: str, tmp_path: Path) -> None:
    content = COMPRESS.get(name[name.rindex(".") :], bytes)(b"one\ntwo\n")

    assert documents(tmp_path, name, content) == ["one\ntwo\n"]


@pytest.mark.parametrize(
    ("name", "content", "begins"),
    [
        ("a.html", b"<html>", "HTML or XML"),
        ("a.yaml", b"a: 1", ""),
        ("train.bin", b"\1\2\3\4", ""),
        ("a.npz", b"PK\3\4\0", "a binary file"),
        ("a.tar.gz", b"\x1f\x8b", "a gzip file"),
        ("a.pdf", b"%PDF-", "a PDF document"),
        ("wiki_00", b'{"text": "a"}\n', "JSON lines"),
        ("wiki_00", b"some text", ""),
        ("a.dat", b"\0\0", "a binary file"),
        ("a.gz", gzip.compress(b"text", mtime=0), "a gzip file"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_formats_and_ways(
    name: str, content: bytes, begins: str, refused: Callable[..., str]
) -> None:
    error = refused(name, content)

    assert "--format" in error
    assert all(each in error for each in FORMATS)
    assert f"begins like {begins}" in error if begins else "begins" not in error
    assert "format copy" in error.replace("-", " ")


@pytest.mark.parametrize(
    ("name", "content", "begins"),
    [
        ("a.txt", b"<!DOCTYPE html><html>", "HTML"),
        ("a.txt", b'<?xml version="1.0"?>', "HTML or XML"),
        ("a.md", b'{"text": "a"}\n', "JSON lines"),
        ("a.txt", b'[{"text": "a"}]', "JSON"),
        ("a.txt", b"[12, 7, 9, 4, 1, 2, 3, 4, 5]\n", "ids"),
        ("a.py", b'<?xml version="1.0"?>', "HTML or XML"),
        ("a.js", b'{"text": "a"}', "JSON lines"),
        ("a.txt", gzip.compress(b"text", mtime=0), "a gzip file"),
        ("a.jsonl", gzip.compress(b'"a"\n', mtime=0), "a gzip file"),
        ("a.jsonl", b"<html><body>404</body></html>", "HTML"),
        ("a.csv", b"<html><body>404</body></html>", "HTML"),
        ("a.csv", lines_of(["a"]), "JSON lines"),
        ("a.json", b"PAR1....", "a Parquet file"),
        ("a.txt", b"a\0b\0", "binary"),
        ("a.py", np.arange(99, dtype="<u2").tobytes(), "binary"),
        ("a.jsonl", b'[{"text": "a"}]', ".json"),
        ("a.jsonl", b'[\n{"text": "a"}\n]', ".json"),
        ("a.json", b'{\n "text": "a"\n}', "jq"),
        ("a.txt.gz", gzip.compress(b"<html><body>", mtime=0), "HTML"),
    ],
)
def test_first_bytes_that_contradict_the_name_are_an_error(
    name: str, content: bytes, begins: str, refused: Callable[..., str]
) -> None:
    assert begins in refused(name, content)


COMPRESSED = {
    ".gz": gzip.compress(lines_of(TEXTS), mtime=0),
    ".xz": lzma.compress(lines_of(TEXTS)),
    ".bz2": bz2.compress(lines_of(TEXTS)),
    ".zst": b"\x28\xb5\x2f\xfd\x20\x05",
}


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_compressed_file_without_its_ending_is_to_be_renamed(
    ending: str, refused: Callable[..., str]
) -> None:
    assert f"rename it to end with {ending}," in refused("a.jsonl", COMPRESSED[ending])
    assert f"{ending} behind it" in refused("a.dat", COMPRESSED[ending])
    refused("b.jsonl", COMPRESSED[ending], "--format", "jsonl")
    refused("a.parquet", COMPRESSED[ending])


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
def test_a_plain_file_with_the_ending_of_a_compressed_one_is_refused(
    ending: str, refused: Callable[..., str]
) -> None:
    pytest.importorskip("zstandard")

    assert "are not a complete" in refused(f"a.jsonl{ending}", lines_of(TEXTS))
    other = ".xz" if ending == ".gz" else ".gz"
    assert "are not a complete" in refused(f"b.jsonl{ending}", COMPRESSED[other])


@pytest.mark.parametrize(
    ("name", "content", "ending"),
    [
        ("a.jsonl", b"PAR1\0\0\xff\0", ".parquet"),
        ("a.txt", b"ARROW1\0\0\xff", ".arrow"),
        ("a.csv", lines_of(TEXTS), ".jsonl"),
    ],
)
def test_bytes_of_another_format_name_its_ending(
    name: str, content: bytes, ending: str, refused: Callable[..., str]
) -> None:
    assert f"rename it to end with {ending}" in refused(name, content)


@pytest.mark.parametrize("form", [each for each in FORMATS if each != "ds"])
@pytest.mark.parametrize(
    "content",
    [b"PAR1\0\0\xff\0", b"\x93NUMPY\xff", gzip.compress(b"a", mtime=0), b"a\0b\0"],
)
def test_bytes_of_another_format_are_refused_whatever_is_given(
    form: str, content: bytes, refused: Callable[..., str]
) -> None:
    refused("b.dat", content, "--format", form)


def test_a_given_format_decides_alone(tmp_path: Path) -> None:
    assert documents(tmp_path, "a.html", b"<p>", "--format", "text") == ["<p>"]
    assert documents(tmp_path, "a.txt", b"<html>", "--format", "text") == ["<html>"]
    assert documents(tmp_path, "a.php", b"<html>") == ["<html>"]
    row = b'{"text": "a"}\n'
    assert documents(tmp_path, "a.txt", row, "--format", "text") == [row.decode()]
    assert documents(tmp_path, "part-0", row, "--format", "jsonl") == ["a"]
    assert documents(tmp_path, "part-0", row, "--format", "json") == ["a"]


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:" + b"4d7a2146" * 8 + b"\nsize 12345678\n"
)
FORMS = [*FORMATS]
NAMES = [
    *(f"a{ending}" for name in FORMS for ending in FORMATS[name].endings[:3]),
    *("a.jsonl.gz", "a.txt.zst", "a.parquet.xz", "a.csv.bz2", "a.safetensors", "a.bin"),
    *("a.zip", "a.idx", "a.html", "a.unknown", "a"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_pointer_of_git_lfs_is_no_input_whatever_its_name(
    name: str, refused: Callable[..., str]
) -> None:
    assert "git lfs pull" in refused(name, POINTER)


@pytest.mark.parametrize("form", [each for each in FORMS if each != "ds"])
def test_a_pointer_of_git_lfs_is_no_input_whatever_the_format(
    form: str, refused: Callable[..., str]
) -> None:
    assert "git lfs pull" in refused("a", POINTER, "--format", form)


@pytest.mark.parametrize(
    "content",
    [
        POINTER.replace(b"\n", b"\r\n"),
        POINTER.replace(b"\noid", b"\next-0-x sha256:" + b"0" * 64 + b"\noid"),
        POINTER.replace(b"git-lfs.github.com", b"hawser.github.com"),
        gzip.compress(POINTER, mtime=0),
    ],
)
def test_every_pointer_of_git_lfs_is_known(
    content: bytes, refused: Callable[..., str]
) -> None:
    name = "a.txt.gz" if content[:1] == b"\x1f" else "a.txt"

    assert "git lfs pull" in refused(name, content)


def test_an_index_that_is_a_pointer_of_git_lfs_is_named(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "a.ds.index").write_bytes(POINTER)

    assert "a.ds.index: is a pointer of Git LFS" in refused("a.ds", bytes(4))


def test_a_text_about_pointers_of_git_lfs_is_a_text(tmp_path: Path) -> None:
    for text in (POINTER.decode() + "is a pointer", f"As such: {POINTER.decode()}"):
        assert documents(tmp_path, "a.md", text.encode()) == [text]


@pytest.mark.parametrize("form", ["text", "lines"])
def test_a_nul_is_never_text(form: str, refused: Callable[..., str]) -> None:
    content = b"some text\n" * 1000 + b"\0\n"

    assert "NUL" in refused("a.dat", content, "--format", form)
    assert "NUL" in refused("a.txt", content)


@pytest.mark.parametrize("option", ["--field", "--document-id"])
@pytest.mark.parametrize("name", ["a.txt", "a.npy"])
def test_fields_of_an_input_without_fields_are_an_error(
    option: str, name: str, refused: Callable[..., str]
) -> None:
    error = refused(name, b"text", option, "url", "--skip-bad")

    assert f"{option} url" in error
    assert "fields" in error


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"alpha"),
        ("a.lines", b"alpha\n"),
        ("a.jsonl", b'"alpha"\n'),
        ("a.json", b'"alpha"\n'),
        ("b.json", b'["alpha"]'),
        ("a.csv", b"text\nalpha\n"),
        ("a.tsv", b"text\nalpha\n"),
    ],
)
def test_a_byte_order_mark_is_no_text(
    name: str,
    content: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    form = ["--format", "lines"] if name.endswith("lines") else []
    assert documents(tmp_path, name, MARK + content, *form) == ["alpha"]
    zipped = gzip.compress(MARK + content, mtime=0)
    assert documents(tmp_path, f"{name}.gz", zipped, *form) == ["alpha"]

    for encoding in ("UTF-16", "UTF-32"):
        path = tmp_path / f"wide_{name}"
        path.write_bytes(content.decode().encode(encoding))
        assert write(tmp_path / "d_*.rox", path, *form) == 1
        assert f"{path}: is {encoding}" in capsys.readouterr().err


def test_a_byte_order_mark_belongs_to_the_first_line_of_a_divided_file(
    tmp_path: Path,
) -> None:
    content = MARK + b"".join(b'"%d"\n' % number for number in range(50))

    found = documents(tmp_path, "a.json", content, "--unit-bytes", 2)

    assert found == [str(number) for number in range(50)]


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """Return a folder of data as people download or compute it."""
    folder = tmp_path / "part"
    (folder / ".cache").mkdir(parents=True)
    (folder / "part-0.jsonl").write_bytes(lines_of(["alpha"]))
    (folder / "part-1.jsonl.gz").write_bytes(gzip.compress(lines_of(["beta"])))
    for name in (
        "README.md",
        "LICENSE",
        "_SUCCESS",
        ".gitattributes",
        ".cache/part-9.jsonl",
        "dataset_infos.json",
        ".part-0.jsonl.crc",
        "part-0.jsonl.crc",
    ):
        (folder / name).write_bytes(b"about this data")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        *("_SUCCESS", "_SUCCESS.crc", "_committed_41", "_started_41", "_metadata"),
        *("_common_metadata", "day=1_$folder$", "day=1/_SUCCESS", "a/b_$folder$"),
        *("_temporary/0/part-0.txt", "_spark_metadata/0", ".DS_Store", "@eaDir/a.jpg"),
        *("day=1/.part-0.jsonl.crc", "__MACOSX/._a.txt", "_delta_log/0.json", "a.lock"),
        *(".gitattributes", ".git/config", "query.csv.metadata", "Thumbs.db"),
    ],
)
def test_a_mark_of_another_program_is_no_data(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    for each, content in ((name, b""), ("day=1/part-0.jsonl", lines_of(["alpha"]))):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_bytes(content)

    assert write(tmp_path / "c_*.rox", folder) == 0

    assert "left out 1 file" in capsys.readouterr().out
    found = [bytes(each) for each in Roxxel(tmp_path / "c_*.rox").documents]
    assert found == [b"alpha"]


@pytest.mark.parametrize("inputs", ["part", "part/*", "part/**/*"])
def test_files_that_are_no_data_are_left_out_and_counted(
    inputs: str,
    part: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["--dry-run"], []):
        assert main(["write", "c_*.rox", inputs, *words]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        number = 8 if inputs == "part" else 5
        if inputs != "part/**/*":
            assert f"left out {number} files" in last
        assert "LICENSE, README.md, _SUCCESS" in last
    assert [bytes(each) for each in Roxxel("c_*.rox").documents] == [b"alpha", b"beta"]
    assert write("c_*.rox", inputs) == 0
    assert "kept" in capsys.readouterr().err
    assert part.exists()


def test_a_folder_of_files_that_are_no_data_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "README.md").write_text("about")

    assert write(tmp_path / "c_*.rox", tmp_path / "in") == 1
    assert "README.md" in capsys.readouterr().err
    assert write(tmp_path / "c_*.rox", tmp_path / "in" / "README.md") == 0


def test_source_code_may_begin_with_an_underscore(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "__init__.py").write_text("code")

    assert write(tmp_path / "c_*.rox", tmp_path / "in") == 0


def test_files_of_different_kinds_are_counted_before_anything_is_written(
    part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (part / "notes.txt").write_text("text")
    (part / "more.txt").write_text("text")

    assert write(tmp_path / "c_*.rox", part) == 1

    error = capsys.readouterr().err
    assert "2 .jsonl, 2 .txt" in error
    assert error.count("\n") == 1
    assert write(tmp_path / "c_*.rox", part / "*.txt") == 0
    (part / "model.pt").write_bytes(b"PK")
    assert write(tmp_path / "d_*.rox", part) == 1
    error = capsys.readouterr().err
    assert "model.pt" in error
    assert "1 .pt of 5 inputs" in error


def test_formats_with_the_same_options_may_be_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines_of(["alpha"]))
    (tmp_path / "b.csv").write_bytes(table_of(["beta"]))
    target = tmp_path / "c_*.rox"

    assert write(target, tmp_path / "?.*", "--field", "text") == 0

    assert "1 .csv, 1 .jsonl" in capsys.readouterr().err
    assert [bytes(each) for each in Roxxel(target).documents] == [b"alpha", b"beta"]


@pytest.mark.parametrize("output", ["c.rox", "c_*.rox", "", "sub/"])
def test_a_corpus_in_the_folder_of_its_inputs_is_none_of_them(
    output: str, part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"{part}/{output}"
    for _ in "twice":
        assert write(target, part) == 0
    assert "kept" in capsys.readouterr().err
    (part / "part-2.jsonl").write_bytes(lines_of(["gamma"]))

    assert write(target, part, "--exist", "replace") == 0

    assert Roxxel(target).num_documents == 3
    assert tmp_path.exists()


def test_the_standard_input_needs_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    def pipe(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Pipe(content)))

    pipe(b"text")
    assert write(tmp_path / "c.rox", "-") == 1
    assert "--format" in capsys.readouterr().err

    for form, content in (
        ("text", MARK + b"alpha"),
        ("json", b'["alpha"]'),
        ("json", b'"alpha"\n'),
        ("csv", MARK + b"text\nalpha\n"),
    ):
        pipe(content)
        options: Any = "--format", form, "--exist", "replace"
        assert write(tmp_path / "c.rox", "-", *options) == 0
        assert [bytes(each) for each in Roxxel(tmp_path / "c.rox").documents] == [
            b"alpha"
        ]
