"""Ids and paths of documents: columns of texts that a write makes."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError
from roxxel_store import roxxel_command

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"text": "ab" * (n % 9), "id": f"web/{n}"} for n in range(count)]


def names_of(corpus: Roxxel) -> list[str | None]:
    return [corpus.document_name(number) for number in range(corpus.num_documents)]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2500), TEXT | st.integers(-5, 2**70)),
        min_size=1,
        max_size=12,
    )
)
def test_ids_follow_their_documents_into_every_shard(
    rows: list[tuple[int, Any]], tmp_path: Path
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    tables = [{"body": [7] * size, "key": key} for size, key in rows]

    corpus.write(
        tables,
        dtype="uint16",
        block_size=512,
        max_shard_bytes=8_000,
        exist="replace",
        field="body",
        document_id="key",
    )

    ids = [str(key) for _, key in rows]
    assert [each.size for each in corpus.documents] == [size for size, _ in rows]
    assert names_of(corpus) == ids
    assert corpus.column("id")[:].tolist() == ids
    assert corpus.column("id")[::-1].tolist() == ids[::-1]
    assert corpus.find_documents(ids[0]) == [
        at for at, each in enumerate(ids) if each == ids[0]
    ]
    assert corpus.verify().ok


def test_a_prompt_keeps_its_id(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    rows = [{"prompt": "a", "completion": "bc", "id": n} for n in range(3)]

    corpus.write(
        rows, separator=0, prompt="prompt", completion="completion", document_id="id"
    )

    assert corpus.columns == ["id", "loss_mask"]
    assert names_of(corpus) == ["0", "1", "2"]
    assert corpus.column("loss_mask")[:].tolist() == [0, 1, 1, 1] * 3


def test_any_runner_writes_the_same_ids(tmp_path: Path) -> None:
    source = lines(tmp_path / "d.jsonl", rows_of(60))
    options = "--document-id", "id", "--separator", 0, "--unit-bytes", 500

    for workers in (1, 2):
        target = tmp_path / str(workers) / "c_*.rox"
        assert run("write", target, source, *options, "--workers", workers) == 0

    one, two = (
        {
            name: (tmp_path / each / name).read_bytes()
            for name in names_in(tmp_path / each)
        }
        for each in ("1", "2")
    )
    assert one == two
    corpus = Roxxel(tmp_path / "1")
    assert corpus.num_shards > 3
    assert names_of(corpus) == [f"web/{n}" for n in range(60)]


def test_ids_of_parquet_and_arrow_equal_those_of_json_lines(tmp_path: Path) -> None:
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    table = pyarrow.Table.from_pylist([{"text": "x", "id": n} for n in range(20)])
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=7)
    with pyarrow.ipc.new_file(str(tmp_path / "d.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=9)

    for name in ("parquet", "arrow"):
        target = tmp_path / name / "c_*.rox"
        assert run("write", target, tmp_path / f"d.{name}", "--document-id", "id") == 0
        assert names_of(Roxxel(target)) == [str(n) for n in range(20)]


def test_paths_are_relative_to_the_folder_of_all_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pages" / "a").mkdir(parents=True)
    for name in ("1.jsonl", "2.jsonl", "a/1.jsonl"):
        lines(tmp_path / "pages" / name, [name])
    lines(tmp_path / "pages" / "3.jsonl", ["x", {"text": "y"}])
    monkeypatch.chdir(tmp_path)
    options = "--path", "--unit-bytes", 1, "--separator", 0

    assert run("write", "one_*.rox", "pages", *options) == 0
    folder = tmp_path / "pages"
    assert run("write", "two_*.rox", folder, *options, "--workers", 2) == 0

    expected = ["1.jsonl", "2.jsonl", "3.jsonl", "3.jsonl", "a/1.jsonl"]
    assert names_of(Roxxel("one_*.rox")) == expected
    assert names_of(Roxxel("two_*.rox")) == expected
    assert Roxxel("one_*.rox").find_documents("3.jsonl") == [2, 3]


def test_cat_prints_and_chooses_documents_by_their_names(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    corpus = tmp_path / "c_*.rox"
    rows = [{"text": f"text {n}", "id": n + 7} for n in range(5)]
    rows[4]["id"] = "web/4"
    Roxxel(corpus).write(rows, separator=0, document_id="id")

    assert run("cat", corpus, "--document", "web/4", "--document", 0, "--names") == 0
    assert capfdbinary.readouterr().out == (
        b"document 4 (web/4):\ntext 4\ndocument 0 (7):\ntext 0\n"
    )
    assert run("cat", corpus, "--document", "id=8") == 0
    assert capfdbinary.readouterr().out == b"text 1\n"
    assert run("cat", corpus, "--document", "web/9") == 1
    assert capfdbinary.readouterr().err.decode() == (
        f"roxxel-prepare: {corpus}: no document has the name 'web/9'; print the names "
        f"with `{roxxel_command('format cat --names')}`\n"
    )
    assert run("cat", corpus, "--document", 99) == 1
    error = capfdbinary.readouterr().err.decode()
    assert f"{corpus}: document 99 is out of range" in error


def test_a_name_cannot_control_the_terminal(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    corpus = tmp_path / "c_*.rox"
    name = "\x1b[2Jgr\u00fcn\n\x9b"
    Roxxel(corpus).write([{"text": "a", "id": name}], separator=0, document_id="id")

    assert run("cat", corpus, "--names") == 0

    shown = capfdbinary.readouterr().out.decode()
    assert shown == "document 0 (\\x1b[2Jgr\u00fcn\\n\\x9b):\na\n"
    assert Roxxel(corpus).document_name(0) == name


def test_documents_without_names_cannot_be_named(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    corpus = tmp_path / "c_*.rox"
    Roxxel(corpus).write(["a", "b"], separator=0)

    assert Roxxel(corpus).document_name(1) is None
    assert run("cat", corpus, "--names") == 0
    assert capfdbinary.readouterr().out == b"document 0:\na\ndocument 1:\nb\n"
    assert run("cat", corpus, "--document", "x") == 1
    assert capfdbinary.readouterr().err.decode() == (
        f"roxxel-prepare: {corpus}: documents have no names, so 'x' chooses none; give "
        "a number, or write the corpus with --document-id or --path\n"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "document 1 has no field 'id', only text; name the fields of"),
        ({"text": "a", "id": None}, "document 1: its id None is neither a text nor an"),
        ({"text": "a", "id": True}, "document 1: its id True is neither a text nor an"),
        ({"text": 3, "id": "b"}, "document 1 is a int; pass an array"),
        ("a", "document 1 is a str; pass a mapping with the fields 'text' and 'id'"),
    ],
)
def test_a_row_without_an_id_is_an_error(
    row: Any, message: str, tmp_path: Path
) -> None:
    rows = [{"text": "a", "id": "b"}, row]

    with pytest.raises((ValueError, TypeError), match=message):
        Roxxel(tmp_path / "c_*.rox").write(rows, document_id="id")


def test_inputs_without_ids_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, source = tmp_path / "c_*.rox", tmp_path / "d.jsonl"
    cases = {
        '{"text": "a"}': ":1: has no field 'id', only text; pass the field of the ids "
        "as --document-id",
        '{"text": "a", "id": [1]}': ":1: id [1] is neither a text nor an integer; "
        "correct it",
        '"a"': ":1: is a text; a row is an object with the fields 'text' and 'id'",
    }
    for line, message in cases.items():
        source.write_text(line)
        assert run("write", target, source, "--document-id", "id") == 1
        assert capsys.readouterr().err == f"roxxel-prepare: {source}{message}\n"


def test_arguments_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    with pytest.raises(ValueError, match=r"field 'b' and prompt='p': .*; pass the"):
        corpus.write([], field="b", prompt="p", completion="c")
    with pytest.raises(TypeError, match=r"is a dict; .*, or rows with document_id"):
        corpus.write([{"body": "a"}], field="body")


def test_a_column_of_texts_is_written_appended_and_replaced(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(rows_of(9), separator=0, document_id="id")
    first = corpus.fingerprint
    corpus.write(["x", "y"], separator=0, exist="append", without_columns=["id"])
    assert (corpus.columns, corpus.partial_columns) == ([], ["id"])
    assert corpus.document_name(0) is None
    with pytest.raises(ShardError, match=r"c_\w+.rox: the shard has no column 'id'"):
        corpus.find_documents("web/0")

    corpus.write_column("id", ["\u00e9", "z" * 99], "document", exist="append")
    assert names_of(corpus)[8:] == ["web/8", "\u00e9", "z" * 99]
    parts = [np.array([f"n{n}"] * (n + 1)) for n in range(4)]
    corpus.write_column("id", [*parts, ["o"]], "document", "utf8", exist="replace")

    assert names_of(corpus) == ["n0", *["n1"] * 2, *["n2"] * 3, *["n3"] * 4, "o"]
    earlier = Roxxel(tmp_path / "c_*.rox", version=first)
    assert earlier.document_name(3) == "n2"
    with pytest.raises(TypeError, match="dtype int64 cannot be stored as utf8"):
        corpus.write_column("id", np.arange(11), "document", "utf8", exist="replace")


@pytest.mark.parametrize("column", ["id", "path", "url"])
def test_columns_of_any_type_name_documents(column: str, tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(["a", "b"], separator=0)

    corpus.write_column(column, ["one", "two"], per="document")
    assert names_of(corpus) == ["one", "two"]
    corpus.write_column(column, [30, 40], per="document", exist="replace")

    assert names_of(corpus) == ["30", "40"]
    assert corpus.find_documents("40") == [1]


def test_a_damaged_column_of_texts_is_an_error(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(rows_of(9), separator=0, document_id="id")
    (path,) = tmp_path.glob("*.bin")
    data = path.read_bytes()

    path.write_bytes(b"W" + data[1:])
    with pytest.raises(ShardError, match="does not match its digest in the manifest"):
        Roxxel(tmp_path / "c_*.rox").document_name(0)
    path.write_bytes(data[:-1])
    with pytest.raises(
        ShardError, match=r"9 values of utf8 need 72 or more and the ma"
    ):
        Roxxel(tmp_path / "c_*.rox").document_name(0)


def test_a_copy_has_the_names(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(rows_of(9), separator=0, document_id="id")

    corpus.copy_to(f"{tmp_path}/copy/")

    assert names_of(Roxxel(tmp_path / "copy")) == [f"web/{n}" for n in range(9)]
    assert [path.name for path in (tmp_path / "copy").glob("*.id.*.bin")]
