"""An append brings the columns that a corpus has, or changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel
from roxxel_prepare import commit_files, write_files

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = "c_*.rox"
SIZE = 3
"""Documents of each write."""

COLUMNS = {"id", "path", "loss_mask", "url"}


def fields_of(brings: set[str]) -> dict[str, Any]:
    """Return the arguments of a write that makes columns."""
    found: dict[str, Any] = {"separator": 0}
    if "id" in brings:
        found |= {"document_id": "key"}
    if "loss_mask" in brings:
        found |= {"prompt": "ask", "completion": "text"}
    return found


def rows_of(number: int) -> list[dict[str, Any]]:
    return [
        {
            "text": "abc",
            "ask": "?",
            "key": f"{number}/{at}",
            "url": f"web/{number}/{at}",
        }
        for at in range(SIZE)
    ]


def in_memory(folder: Path, number: int, brings: set[str], **options: Any) -> None:
    fields = fields_of(brings)
    rows: list[Any] = rows_of(number)
    if not {"document_id", "prompt"} & fields.keys():
        rows = [each["text"] for each in rows]
    Roxxel(folder / TARGET).write(rows, **fields, **options)


def of_files(folder: Path, number: int, brings: set[str], **options: Any) -> None:
    write_files(
        folder / TARGET,
        lines(folder, number),
        path="path" in brings,
        **fields_of(brings),
        **options,
    )


def in_parts(folder: Path, number: int, brings: set[str], **options: Any) -> None:
    for part in (1, 0):
        of_files(folder, number, brings, part=(part, 2), unit_bytes=1, **options)
    commit_files(folder / TARGET)


def lines(folder: Path, number: int) -> Path:
    source = folder.parent / f"in/{number}.jsonl"
    source.parent.mkdir(exist_ok=True)
    if not source.exists():  # Parts of one preparation have the same inputs.
        source.write_text("".join(json.dumps(row) + "\n" for row in rows_of(number)))
    return source


WAYS: list[Callable[..., None]] = [in_memory, of_files, in_parts]


@settings(max_examples=12, deadline=None)
@given(
    writes=st.lists(
        st.tuples(
            st.sampled_from(range(len(WAYS))),
            st.sets(st.sampled_from(["id", "path", "loss_mask"])),
            st.booleans(),  # Whether the column url is written, or completed.
            st.sets(st.sampled_from(sorted(COLUMNS))),
        ),
        min_size=2,
        max_size=5,
    )
)
def test_columns_stay_readable_or_nothing_changes(writes: list[Any]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name, "out")
        folder.mkdir()
        corpus = Roxxel(folder / TARGET)
        values: dict[str, list[str]] = {}  # of the columns that can be read
        partial: set[str] = set()
        num_documents = 0
        for number, (way, drawn, with_url, without) in enumerate(writes):
            brings = drawn - {"path"} if way == 0 else drawn
            options: dict[str, Any] = {"exist": "append", "without_columns": [*without]}
            has = values.keys() | partial
            before = names_in(folder)
            may = not num_documents or (brings <= has <= brings | without)
            if not may:
                named = "|".join(map(repr, brings ^ has))
                with pytest.raises(ValueError, match=named):
                    WAYS[way](folder, number, brings, **options)
                assert names_in(folder) == before
                continue
            WAYS[way](folder, number, brings, **options)
            num_documents += SIZE
            new = {
                "id": [f"{number}/{at}" for at in range(SIZE)],
                "path": [f"{number}.jsonl"] * SIZE,
                "url": [f"web/{number}/{at}" for at in range(SIZE)],
            }
            for each in has - brings:
                partial.add(each)
                values.pop(each, None)
            for each in brings - partial:
                values[each] = [*values.get(each, []), *new.get(each, [])]
            if with_url and "url" not in has:
                urls = [f"web/{at}" for at in range(num_documents)]
                Roxxel(folder / TARGET).write_column("url", urls, "document", "utf8")
                values["url"] = urls

            corpus = Roxxel(folder / TARGET)
            assert corpus.columns == sorted(values)
            assert corpus.partial_columns == sorted(partial)
            for each, expected in values.items():
                column = corpus.column(each)[:].tolist()
                assert len(column) in {num_documents, corpus.num_tokens}
                assert each == "loss_mask" or column == expected
            assert corpus.verify().ok


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (["id"], ["document_id (--document-id)", "--without-columns id"]),
        (["path"], ["path=True (--path)", "--without-columns path"]),
        (["loss_mask"], ["--prompt", "--chat", "--without-columns loss_mask"]),
        (["url"], ["--without-columns url", "write_column('url', ..., exist="]),
    ],
)
def test_an_append_without_a_column_names_its_option(
    columns: list[str],
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    corpus = Roxxel(folder / TARGET)
    of_files(folder, 0, {*columns} - {"url"})
    if "url" in columns:
        corpus.write_column("url", ["a", "b", "c"], "document")
    before = names_in(folder), corpus.fingerprint
    words = ["write", str(folder / TARGET), str(lines(folder, 1))]
    words += ["--separator", "0", "--exist", "append"]

    assert main(words) == 1

    message = capsys.readouterr().err
    assert all(each in message for each in options)
    assert (names_in(folder), Roxxel(folder / TARGET).fingerprint) == before
    # What the sentence advises is what works.
    assert main([*words, "--without-columns", columns[0]]) == 0
    grown = Roxxel(folder / TARGET)
    assert grown.partial_columns == columns
    (per, dtype) = (
        ("token", "uint8") if columns == ["loss_mask"] else ("document", None)
    )
    count = 12 if per == "token" else 3
    values = np.ones(count, np.uint8) if per == "token" else ["x"] * count
    grown.write_column(columns[0], values, per, dtype, exist="append")
    assert Roxxel(folder / TARGET).columns == columns


def test_a_column_that_is_new_since_the_plan_is_told_before_a_unit_is_written(
    tmp_path: Path,
) -> None:
    of_files(tmp_path / "out", 0, set())
    options: dict[str, Any] = {"exist": "append", "unit_bytes": 1}
    of_files(tmp_path / "out", 1, set(), part=(0, 2), **options)
    Roxxel(tmp_path / "out" / TARGET).write_column("url", ["a", "b", "c"], "document")
    before = names_in(tmp_path / "out")

    with pytest.raises(ValueError, match="has a column 'url'"):
        of_files(tmp_path / "out", 1, set(), part=(1, 2), **options)

    assert names_in(tmp_path / "out") == before


def test_without_columns_is_for_an_append(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without_columns=\['id'\] is for exist="):
        Roxxel(tmp_path / TARGET).write(["a"], without_columns=["id"])


def test_a_column_that_is_written_during_an_append_is_kept_whole(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / TARGET)
    corpus.write(["a", "b"], separator=0)

    def documents() -> Any:
        yield "c"
        Roxxel(tmp_path / TARGET).write_column("url", ["x", "y"], "document", "utf8")

    with pytest.raises(ValueError, match="has a column 'url'"):
        corpus.write(documents(), separator=0, exist="append")

    assert Roxxel(tmp_path / TARGET).column("url")[:].tolist() == ["x", "y"]
