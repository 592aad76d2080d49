"""Zstandard and Parquet inputs that are cut or damaged."""

from __future__ import annotations

import io
import re
import struct
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_format import Roxxel

from .commands import main, spans_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = b"".join(b'"document %d"\n' % number for number in range(20_000))


def zst(text: bytes) -> bytes:
    """Return a Zstandard frame with a checksum."""
    library: Any = import_module("zstandard")
    return library.ZstdCompressor(write_checksum=True).compress(text)


def table(num_rows: int = 5000) -> bytes:
    """Return a Parquet file of texts in several row groups, with page checksums."""
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    file = io.BytesIO()
    texts = [f"document {number}" for number in range(num_rows)]
    parquet.write_table(
        library.table({"text": texts}),
        file,
        row_group_size=1000,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    return file.getvalue()


@pytest.fixture
def error_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that writes a bad input and returns its error."""

    def write(name: str, content: bytes, *options: str) -> str:
        path = tmp_path / name
        path.write_bytes(content)

        assert main(["write", str(tmp_path / "c.rox"), str(path), *options]) == 1

        error = capsys.readouterr().err
        start = f"roxxel-prepare: {path}"
        assert error.startswith(start)
        assert error.count("\n") == 1
        assert not (tmp_path / "c.rox").exists()
        return error.removeprefix(start).removesuffix("\n")

    return write


def documents(folder: Path, name: str, content: bytes) -> list[bytes]:
    """Write an input of texts and return the documents of the corpus."""
    path = folder / name
    path.write_bytes(content)
    assert main(["write", str(folder / "c.rox"), str(path)]) == 0
    return [each.tobytes() for each in Roxxel(folder / "c.rox").documents]


@pytest.mark.parametrize("form", ["text", "lines", "jsonl"])
@pytest.mark.parametrize("share", [0.0001, 0.5, 0.9, 0.9999])
def test_a_cut_zstandard_file_names_the_frame_that_it_ends_in(
    form: str, share: float, error_of: Callable[..., str]
) -> None:
    whole = zst(LINES)
    cut = whole[: int(share * len(whole))]

    error = error_of("a.zst", cut, "--format", form)

    assert error == (
        f": ends at byte {len(cut)}, inside the Zstandard frame that begins at byte 0; "
        "the file was probably truncated, so copy it again or make it again"
    )


def test_a_cut_in_the_second_frame_is_found(error_of: Callable[..., str]) -> None:
    first, second = zst(b'"one"\n'), zst(b'"two"\n')

    error = error_of("a.jsonl.zst", first + second[:-1])

    assert f"inside the Zstandard frame that begins at byte {len(first)};" in error


def test_frames_that_are_skipped_and_empty_frames_have_no_text(tmp_path: Path) -> None:
    skipped = struct.pack("<II", 0x184D2A53, 5) + b"bytes"
    content = skipped + zst(b'"one"\n"t') + skipped + zst(b"") + zst(b'wo"\n') + skipped

    assert documents(tmp_path, "a.jsonl.zst", content) == [b"one", b"two"]


def test_an_empty_zstandard_file_is_an_error(error_of: Callable[..., str]) -> None:
    assert error_of("a.txt.zst", b"") == (
        ": is empty, but a Zstandard file is never empty; the file was "
        "probably truncated, so copy it again or make it again"
    )


@pytest.mark.parametrize("window_log", [27, 31])
def test_a_frame_with_a_long_window_is_sound(window_log: int, tmp_path: Path) -> None:
    library: Any = import_module("zstandard")
    settings = library.ZstdCompressionParameters.from_level(
        1, window_log=window_log, enable_ldm=True
    )
    stream = library.ZstdCompressor(compression_params=settings).compressobj()
    content = stream.compress(b'"one"\n"two"\n') + stream.flush()

    assert documents(tmp_path, "a.jsonl.zst", content) == [b"one", b"two"]


def test_garbage_after_the_last_frame_is_an_error(error_of: Callable[..., str]) -> None:
    whole = zst(b'"one"\n')

    error = error_of("a.jsonl.zst", whole + b"garbage")

    assert error == (
        f": bytes {len(whole)} to {len(whole) + 7} are not a complete Zstandard frame "
        "(Unknown frame descriptor); copy the file again or make it again"
    )


def test_a_damaged_frame_says_between_which_bytes(error_of: Callable[..., str]) -> None:
    whole = bytearray(zst(b'"one"\n'))
    whole[-1] ^= 1

    error = error_of("a.jsonl.zst", bytes(whole))

    assert error == (
        f": bytes 0 to {len(whole)} are not a complete Zstandard frame (Restored data "
        "doesn't match checksum); copy the file again or make it again"
    )


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_cut_parquet_file_is_one_sentence(
    share: float, error_of: Callable[..., str]
) -> None:
    whole = table()

    error = error_of("a.parquet", whole[: int(share * len(whole))])

    assert error.startswith(": not a Parquet file (")
    assert error.endswith("); copy it again or make it again")


def test_a_damaged_parquet_file_names_the_row(error_of: Callable[..., str]) -> None:
    damaged = table().replace(b"document 2048", b"document 2o48")

    error = error_of("a.parquet", damaged)

    assert error.startswith(": damaged at or after row 2000 (")
    assert error.endswith("); copy the file again or make it again")


def test_damage_in_a_part_of_a_file_leaves_out_the_rest_of_this_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, corpus = tmp_path / "a.parquet", tmp_path / "c_*.rox"
    path.write_bytes(table().replace(b"document 2048", b"document 2o48"))
    command = ["write", str(corpus), str(path), "--unit-bytes", "5000", "--skip-bad"]

    assert main(command) == 0

    error = capsys.readouterr().err
    assert "; what follows in the part [2:3] was left out too\n" in error
    assert Roxxel(corpus).num_documents == 4000


def test_a_parquet_text_that_is_not_utf_8_names_the_row(
    error_of: Callable[..., str],
) -> None:
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    file = io.BytesIO()
    texts = library.array([b"a", b"\xff"]).view(library.string())
    parquet.write_table(library.table({"text": texts}), file)

    error = error_of("a.parquet", file.getvalue())

    assert error == (
        ": row 1 is not UTF-8 text (invalid start byte at byte 0); convert it first"
    )


def test_an_id_that_is_not_utf_8_names_the_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    ids = library.array([b"a", b"\xff"]).view(library.string())
    parquet.write_table(library.table({"text": ["one", "two"], "id": ids}), path)
    corpus = str(tmp_path / "c_*.rox")
    command = ["write", corpus, str(path), "--document-id", "id"]

    assert main(command) == 1

    assert f"{path}: row 1 is not UTF-8 text" in capsys.readouterr().err
    assert main([*command, "--skip-bad"]) == 0
    assert [bytes(each) for each in Roxxel(corpus).documents] == [b"one"]


def test_texts_of_a_table_are_documents_however_they_are_stored(
    tmp_path: Path,
) -> None:
    library: Any = import_module("pyarrow")
    feather: Any = import_module("pyarrow.feather")
    texts = ["one", "", "na\u00efve", "two" * 300] * 80
    stored = [
        library.array(texts, library.string()),
        library.array(["left out", *texts], library.large_string())[1:],
        library.array(texts).dictionary_encode(),
    ]

    for number, column in enumerate(stored):
        path = tmp_path / f"{number}.arrow"
        feather.write_feather(library.table({"text": column}), path, "uncompressed")
        assert main(["write", str(tmp_path / f"{number}.rox"), str(path)]) == 0

        found = Roxxel(tmp_path / f"{number}.rox").documents
        assert [bytes(each).decode() for each in found] == texts


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "has no column 'text', nor any other column"),
        (["text", "id", "text"], "has 2 columns 'text'"),
    ],
)
def test_a_parquet_file_has_one_column_of_documents(
    names: list[str], problem: str, error_of: Callable[..., str]
) -> None:
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    file = io.BytesIO()
    columns = [library.array([name]) for name in names]
    parquet.write_table(library.Table.from_arrays(columns, names=names), file)

    error = error_of("a.parquet", file.getvalue())

    assert error == f": {problem}; pass the column of the documents as --field"


def test_a_compressed_parquet_file_is_read(tmp_path: Path) -> None:
    found = documents(tmp_path, "a.parquet.zst", zst(table(3)))

    assert found == [b"document 0", b"document 1", b"document 2"]


def test_parquet_comes_from_the_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Pipe(table(3))))

    assert main(["write", str(tmp_path / "c.rox"), "-", "--format", "parquet"]) == 0

    assert Roxxel(tmp_path / "c.rox").num_documents == 3


def write_groups(folder: Path, columns: dict[str, Any]) -> Path:
    """Write a Parquet file with 60 rows in each group."""
    library: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    parquet.write_table(library.table(columns), folder / "a.parquet", row_group_size=60)
    return folder / "a.parquet"


def test_row_groups_of_a_large_parquet_file_are_divided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"row {number} {'x' * (number % 50)}" for number in range(1000)]
    path = write_groups(tmp_path, {"text": rows, "other": [0] * 1000})
    options = [str(path), "--unit-bytes", "5000"]

    assert main(["write", "c_*.rox", *options, "--dry-run"]) == 0
    spans = spans_in(capsys.readouterr().out)
    assert len(spans) > 3
    assert spans[0][0] == 0
    assert spans[-1][1] == 17
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    for name, workers in (("a", "1"), ("b", "2")):
        target = str(tmp_path / f"{name}_*.rox")
        assert main(["write", target, *options, "--workers", workers]) == 0
        with Roxxel(target) as corpus:
            assert [each.tobytes().decode() for each in corpus.documents] == rows
    assert main(["write", str(tmp_path / "n_*.rox"), *options, "--field", "no"]) == 1
    assert "a.parquet: has no column 'no', only text, other" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_parquet_file_without_the_column_leaves_the_other_units(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, column in enumerate(("text", "body", "text", "text")):
        (tmp_path / f"in_{number}").mkdir()
        write_groups(tmp_path / f"in_{number}", {column: ["a text"] * 50})
    target = tmp_path / "c_*.rox"
    options = ["--unit-bytes", "1", "--workers", workers]
    files = [str(tmp_path / f"in_{number}") for number in range(4)]

    assert main(["write", str(target), *files, *options]) == 1

    notice, error = capsys.readouterr().err.splitlines()
    failed, kept = re.findall(r"(\d+) of \d+ units failed; the other (\d+)", notice)[0]
    assert (int(failed), int(kept)) == (1, 3)
    assert error == (
        f"roxxel-prepare: {files[1]}/a.parquet: has no column 'text', only body; pass "
        "the column of the documents as --field"
    )
    assert len([*tmp_path.glob("c_*.rox")]) == 3


def test_a_null_in_a_row_group_names_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"row {number} {'x' * (number % 50)}" for number in range(1000)]
    path = write_groups(tmp_path, {"text": [*rows[:700], None, *rows[701:]]})
    command = ["write", str(tmp_path / "c_*.rox"), str(path), "--unit-bytes", "5000"]

    assert main(command) == 1

    assert "a.parquet: row 700 holds a null" in capsys.readouterr().err
    assert main(["clean", "--abandon", str(tmp_path / "c_*.rox")]) == 0
    assert main([*command, "--skip-bad"]) == 0
    assert Roxxel(tmp_path / "c_*.rox").num_documents == 999
