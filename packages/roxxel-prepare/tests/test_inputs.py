"""Input files that are cut or damaged: one sentence that names file and position."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel
from roxxel_prepare._inputs.input_file import InputError
from roxxel_prepare._inputs.opening import opened

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = b"".join(b'"document %d"\n' % number for number in range(2000))


def npy(array: Any) -> bytes:
    """Return the bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


TABLE = npy(np.arange(6, dtype=np.uint16).reshape(3, 2))


@pytest.fixture
def error_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that writes a bad input and returns the error after its path.

    It checks that the error is one sentence that names the file, that the exit code is
    1, and that the corpus that was there before is as it was.
    """

    def write(name: str, content: bytes, *options: str) -> str:
        folder = tmp_path / "out"
        Roxxel(folder / "c_*.rox").write(["before"], exist="replace")
        before = names_in(folder)
        path = tmp_path / name
        path.write_bytes(content)
        arguments = ["write", f"{folder}/c_*.rox", str(path), "--exist", "replace"]
        capsys.readouterr()

        assert main([*arguments, *options]) == 1

        error = capsys.readouterr().err
        start = f"roxxel-prepare: {path}"
        assert error.startswith(start)
        assert error.count("\n") == 1
        assert names_in(folder) == before
        return error.removeprefix(start).removesuffix("\n")

    return write


def documents(folder: Path, name: str, content: bytes, *options: str) -> list[bytes]:
    """Write an input of texts and return the documents of the corpus."""
    path = folder / name
    path.write_bytes(content)
    assert main(["write", str(folder / "c.rox"), str(path), *options]) == 0
    return [each.tobytes() for each in Roxxel(folder / "c.rox").documents]


@pytest.fixture(params=["zlib", "isal"])
def gzip_library(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choose what reads gzip: isal is in the extra `fast`."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
        monkeypatch.delitem(sys.modules, "isal.isal_zlib", raising=False)


with_both = pytest.mark.usefixtures("gzip_library")


@with_both
@pytest.mark.parametrize("form", ["text", "lines", "jsonl"])
@pytest.mark.parametrize("position", [1, 9, 15, 500, -9, -8, -1])
def test_a_cut_gzip_file_names_the_member_that_it_ends_in(
    form: str, position: int, error_of: Callable[..., str]
) -> None:
    whole = gzip.compress(LINES)
    cut = whole[:position]

    error = error_of("a.gz", cut, "--format", form)

    assert error == (
        f": ends at byte {len(cut)}, inside the gzip member that begins at byte 0; "
        "the file was probably truncated, so copy it again or make it again"
    )


@with_both
def test_a_cut_in_the_second_member_of_a_gzip_file_is_found(
    error_of: Callable[..., str],
) -> None:
    first, second = gzip.compress(b'"one"\n'), gzip.compress(b'"two"\n')

    error = error_of("a.jsonl.gz", first + second[:-1])

    assert f"inside the gzip member that begins at byte {len(first)};" in error


@with_both
def test_concatenated_gzip_members_are_one_text(tmp_path: Path) -> None:
    content = gzip.compress(b'"one"\n"t') + gzip.compress(b"") + gzip.compress(b'wo"\n')

    assert documents(tmp_path, "a.jsonl.gz", content) == [b"one", b"two"]


def test_an_empty_gzip_file_is_an_error(error_of: Callable[..., str]) -> None:
    error = error_of("a.txt.gz", b"")

    assert error == (
        ": is empty, but a gzip file is never empty; the file was "
        "probably truncated, so copy it again or make it again"
    )


@with_both
def test_a_gzip_member_of_an_empty_text_is_an_empty_document(tmp_path: Path) -> None:
    assert documents(tmp_path, "a.txt.gz", gzip.compress(b"")) == [b""]


members = st.lists(
    st.tuples(st.binary(max_size=300), st.integers(0, 9), st.sampled_from([0, 1, 700])),
    min_size=1,
    max_size=4,
)


@with_both
@given(parts=members, data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_members_of_gzip_and_zeros_after_them_are_one_text_and_a_cut_is_found(
    tmp_path: Path, parts: list[tuple[bytes, int, int]], data: st.DataObject
) -> None:
    path = tmp_path / "a.lines.gz"
    whole, ends = b"", [0]
    for text, level, num_zeros in parts:
        whole += gzip.compress(text, level)
        ends.append(len(whole))
        whole += bytes(num_zeros)
        ends += [*range(ends[-1] + 1, len(whole) + 1)]

    path.write_bytes(whole)
    with opened(str(path)) as file:
        assert file.read() == b"".join(text for text, *_ in parts)

    cut = data.draw(st.sampled_from(sorted({*range(len(whole))}.difference(ends))))
    path.write_bytes(whole[:cut])
    with (
        pytest.raises(InputError, match="probably truncated"),
        opened(str(path)) as file,
    ):
        file.read()


@with_both
@pytest.mark.parametrize(
    "garbage",
    [
        b"more bytes than a header",
        bytes(512) + b"tail",
        b"x",
        b"a header",
        bytes(4) + b"\x1f",
    ],
)
@pytest.mark.parametrize(
    ("ending", "compress", "member"),
    [("gz", gzip.compress, "gzip member"), ("xz", lzma.compress, "xz stream")],
)
def test_garbage_after_the_last_member_is_an_error(
    garbage: bytes,
    ending: str,
    compress: Callable[[bytes], bytes],
    member: str,
    error_of: Callable[..., str],
) -> None:
    whole = compress(LINES)

    error = error_of(f"a.jsonl.{ending}", whole + garbage)

    end = len(whole) + len(garbage)
    assert f"{end}" in error
    assert member in error
    assert "copy " in error


@with_both
def test_a_damaged_gzip_file_says_between_which_bytes(
    error_of: Callable[..., str],
) -> None:
    whole = bytearray(gzip.compress(LINES))
    whole[-5] ^= 1

    error = error_of("a.jsonl.gz", bytes(whole))

    assert error.startswith(
        f": bytes 0 to {len(whole)} are not a complete gzip member ("
    )
    assert "Error" not in error
    assert error.endswith("); copy the file again or make it again")


def test_a_last_line_needs_no_newline(tmp_path: Path) -> None:
    found = documents(tmp_path, "a.jsonl", b'"one"\n"two"')

    assert found == [b"one", b"two"]


@pytest.mark.parametrize(
    "rest",
    [
        *(b'"x": [1, {"text": 2}]', b'"text": "twice"', b'"x": "\xff"', b'"x": NaN'),
        *(b'"x": "\\ud800"', b'"x": 1e999', b'"x": "\\ud83d\\ude00"', b'"x": 1 2'),
    ],
)
def test_other_fields_of_a_line_are_read_alike_with_and_without_an_id(
    tmp_path: Path, rest: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\xc3\xa9", "id": 1, ' + rest + b"}\n")
    found: list[object] = []

    for options in ([], ["--document-id", "id"]):
        corpus = Roxxel(tmp_path / f"c{len(options)}_*.rox")
        is_written = not main(["write", f"{corpus.filepath}", str(path), *options])
        texts = [bytes(each) for each in corpus.documents] if is_written else []
        error = "" if is_written else capsys.readouterr().err
        found.append((texts, error))

    assert found[0] == found[1]


@pytest.mark.parametrize(
    "cut", [b'{"text": "a', b'{"text": "a"', b'"a', b"[1, 2", b"[1,", b'{"te']
)
def test_json_lines_that_end_inside_a_value_name_the_line(
    cut: bytes, error_of: Callable[..., str]
) -> None:
    error = error_of("a.jsonl", b'"whole"\n' + cut)

    assert error.startswith(":2: not JSON (")
    assert error.endswith("); correct the line")


def test_a_string_of_json_that_does_not_end_is_called_so(
    error_of: Callable[..., str],
) -> None:
    error = error_of("a.jsonl", b'{"text": "abc\n{"text": "whole"}\n')

    assert error == (
        ":1: not JSON (Unterminated string starting at character 9); correct the line"
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": null}', ":1: field 'text' is null"),
        (b'{"text": true}', ":1: field 'text' is a boolean"),
        (b'{"text": 1.5}', ":1: field 'text' is a number"),
        (b'{"text": {}}', ":1: field 'text' is an object"),
        (b"7", ":1: is a number"),
        (b"[true, 2]", ":1: holds true at index 0"),
        (b"[1, 2, false]", ":1: holds false at index 2"),
        (b"[true]", ":1: holds true at index 0"),
        (b'{"text": [0.5, true]}', ":1: field 'text' holds true at index 1"),
    ],
)
def test_a_value_that_is_no_document_is_named_in_the_words_of_json(
    line: bytes, problem: str, error_of: Callable[..., str]
) -> None:
    error = error_of("a.jsonl", line)

    assert error.startswith(f"{problem}; a document is a text or a list of tokens")
    assert "--skip-bad" in error


@pytest.mark.parametrize(
    "row", ["[[true], [false]]", '["1", "2"]', '[1, "2"]', "[1.0, 2.0]", "[null]"]
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_what_is_like_ids_makes_no_tokens(
    row: str, name: str, error_of: Callable[..., str]
) -> None:
    line = f'[{{"text": {row}}}]' if name.endswith(".json") else f'{{"text": {row}}}'

    assert error_of(name, line.encode())


def test_text_that_ends_inside_a_character_names_the_line(
    error_of: Callable[..., str],
) -> None:
    cut = "one\n\N{EURO SIGN}".encode()[:-1]

    error = error_of("a.txt", cut, "--format", "lines")

    assert error == (
        ":2: not UTF-8 text (unexpected end of data at byte 0); convert it first"
    )


def with_shape(shape: bytes) -> bytes:
    """Return a .npy file of six tokens whose header declares another shape."""
    filled = shape.ljust(len(b"(3, 2), }"))
    changed = TABLE.replace(b"(3, 2), }", filled)
    assert len(changed) == len(TABLE)
    return changed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TABLE[:3], ": not a .npy file ("),
        (TABLE[:60], ": not a .npy file ("),
        (
            TABLE[:-1],
            ": has 11 bytes after its header, but shape (3, 2) of uint16 needs 12; the",
        ),
        (
            TABLE + b"\0",
            ": has bytes after its array of shape (3, 2); a .npy file holds one array,",
        ),
        (with_shape(b"(-1,), }"), ": not a .npy file ("),
        (with_shape(b"(-3,2),}"), ": not a .npy file ("),
        (with_shape(b"(3, 0),}"), ": has shape (3, 0); save a flat array for one"),
        (with_shape(b"(), }"), ": has shape (); save a flat array for one"),
        (
            with_shape(b"(99999,)}"),
            ": has 12 bytes after its header, but shape",
        ),
        (with_shape(b"(3, 2,"), ": not a .npy file ("),
        (with_shape(b"(3, 2), "), ": not a .npy file ("),
        (npy(np.ones(3, np.bool_)), ": holds bool; an array of tokens holds"),
        (TABLE.replace(b"<u2", b"|O8"), ": holds items of type '|O'; save"),
        (TABLE.replace(b"<u2", b"<U2"), ": holds items of type '<U2'; save"),
        (TABLE.replace(b"<u2", b"|V0"), ": holds items of type '|V0'; save"),
        (TABLE.replace(b"<u2", b"??\xff"), ": not a .npy file ("),
        (TABLE.replace(b"False", b"0x7ff"), ": not a .npy file ("),
        (TABLE[:6] + b"\4" + TABLE[7:], ": not a .npy file ("),
        (TABLE[:8] + b"\xff\xff" + TABLE[10:], ": not a .npy file ("),
    ],
)
def test_a_damaged_npy_file_is_one_sentence(
    content: bytes, message: str, error_of: Callable[..., str]
) -> None:
    assert error_of("a.npy", content).startswith(message)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["a.npy", "a.npy.gz"])
def test_arrays_of_either_order_are_read(order: Any, name: str, tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(3, 2).copy(order)
    content = npy(array) if name == "a.npy" else gzip.compress(npy(array))

    assert documents(tmp_path, name, content) == [b"\0\1", b"\2\3", b"\4\5"]


def test_inputs_without_documents_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    inputs[0].write_bytes(b"\n")
    inputs[1].touch()

    for names, others in ((inputs[:1], ""), (inputs, ", like the other inputs (1)")):
        assert main(["write", str(tmp_path / "c.rox"), *map(str, names)]) == 1
        assert capsys.readouterr().err == (
            f"roxxel-prepare: {inputs[0]}: holds no documents{others}; check the "
            "inputs\n"
        )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("c.rox", "--exist replace"),  # One file takes no append.
        ("c_*.rox", "--exist append or --exist replace"),
    ],
)
def test_the_standard_input_is_not_taken_for_that_of_an_earlier_write(
    name: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / name

    def write(text: bytes, *options: str) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        return main(["write", str(target), "-", "--format", "text", *options])

    assert write(b"first") == 0
    capsys.readouterr()

    assert write(b"second") == 1
    assert capsys.readouterr().err == (
        f"roxxel-prepare: {target}: the corpus exists already, and the standard input "
        f"cannot be compared with its inputs; use {remedy}, or write elsewhere\n"
    )
    assert Roxxel(target).documents[0].tobytes() == b"first"
    assert write(b"second", "--exist", "replace") == 0
    assert Roxxel(target).documents[0].tobytes() == b"second"


def test_a_pipe_is_not_taken_for_that_of_an_earlier_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, target = tmp_path / "a.txt", tmp_path / "c.rox"
    Roxxel(target).write(["first"])
    os.mkfifo(pipe)

    assert main(["write", str(target), str(pipe)]) == 1

    error = capsys.readouterr().err
    assert f"the corpus exists already, and {pipe} cannot be compared with" in error


def test_a_pipe_is_an_input_of_every_format(tmp_path: Path) -> None:
    for form, content in (("npy", TABLE), ("jsonl", b"[1]\n"), ("text", b"a")):
        pipe = tmp_path / f"{form}.{form}"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(content,))
        writer.start()

        assert main(["write", str(tmp_path / f"{form}.rox"), str(pipe)]) == 0

        writer.join()
        assert Roxxel(tmp_path / f"{form}.rox").num_tokens == {"npy": 6}.get(form, 1)


def test_an_input_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"text")

    class Failing(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(5, "Input/output error")

    def failing(opened: Path, *words: Any, **options: Any) -> Any:
        if opened == path:
            return Failing()
        opening: Any = original
        return opening(opened, *words, **options)

    original = Path.open
    monkeypatch.setattr("pathlib.Path.open", failing)

    assert main(["write", str(tmp_path / "c.rox"), str(path)]) == 1

    assert capsys.readouterr().err == f"roxxel-prepare: {path}: Input/output error\n"


@pytest.mark.parametrize("below", ["", "*/*.jsonl", "**/*.jsonl"])
def test_a_folder_that_may_not_be_read_is_no_empty_folder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    below: str,
) -> None:
    folder, scan = tmp_path / "in", os.scandir
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "lines.jsonl").write_bytes(b'"document"\n')

    def refuse(path: Any = ".") -> Any:
        if str(path) == str(folder / "b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert main(["write", f"{tmp_path}/c_*.rox", str(folder / below)]) == 1
    assert f"{folder / 'b'}: Permission denied" in capsys.readouterr().err


def test_an_input_folder_without_files_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()

    assert main(["write", str(tmp_path / "c.rox"), str(tmp_path)]) == 1

    assert capsys.readouterr().err == (
        f"roxxel-prepare: {tmp_path}: the folder holds no file; check the path\n"
    )


@pytest.mark.parametrize("name", ["texs/", "texs", "texs.rox", "texs.txt"])
def test_an_input_that_does_not_exist_is_called_so_whatever_its_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/{name}"

    for more in ([], ["--dry-run"]):
        assert main(["write", str(tmp_path / "c.rox"), path, *more]) == 1

        error = capsys.readouterr().err
        assert f"{path}: no such file or directory; check the path" in error


def test_who_names_the_inputs_first_is_told_the_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("text")

    assert main(["write", str(source), str(tmp_path / "c_*.rox")]) == 1

    assert "the corpus to write comes first" in capsys.readouterr().err
    assert source.read_text() == "text"


def test_an_object_without_fields_is_an_error(error_of: Callable[..., str]) -> None:
    error = error_of("a.jsonl", b"{}\n")

    assert error == (
        ":1: has no field 'text', nor any other field; pass the field of the documents "
        "as --field"
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[1, null]", "holds None at index 1"),
        (b'[1, "2"]', "holds '2' at index 1"),
    ],
)
def test_an_item_of_a_list_that_is_no_number_is_named(
    line: bytes, problem: str, error_of: Callable[..., str]
) -> None:
    error = error_of("a.jsonl", line)

    assert error == f": document 0 {problem}; pass a flat list of ints"
