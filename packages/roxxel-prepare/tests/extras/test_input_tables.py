"""Inputs of other programs: `.ds` of datatrove, folders that `datasets` saved."""

from __future__ import annotations

import json
import struct
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel

from .commands import main, spans_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt


def write_ds(path: Path, documents: Sequence[npt.NDArray[Any]]) -> Path:
    """Write tokens as datatrove does: the tokens, and the end of each document."""
    path.write_bytes(b"".join(document.tobytes() for document in documents))
    ends = np.cumsum([document.size for document in documents]).tolist()
    index = struct.pack(f"<{len(ends)}Q", *ends)
    path.with_name(path.name + ".index").write_bytes(index)
    name = f"gpt2|{documents[0].itemsize}\n{ends[-1]}\n"
    path.with_name(path.name + ".metadata").write_text(name)
    return path


def write(out: Path, *arguments: object) -> int:
    return main(["write", str(out), *map(str, arguments), "--separator", "none"])


def documents_of(corpus: Path | str) -> list[list[int]]:
    with Roxxel(corpus) as opened:
        return [document.tolist() for document in opened.documents]


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("workers", [1, 2])
def test_tokens_of_datatrove_are_documents(
    tmp_path: Path, dtype: str, workers: int
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    documents = [np.arange(n % 23, dtype=dtype) + n for n in range(1, 400)]
    write_ds(folder / "00000.ds", documents)

    options = ("--unit-bytes", "1000", "--workers", workers)
    assert write(tmp_path / "c_*.rox", folder, *options) == 0

    corpus = Roxxel(tmp_path / "c_*.rox")
    assert corpus.num_shards > 3
    assert corpus.dtype == np.dtype(dtype)
    assert documents_of(tmp_path / "c_*.rox") == [each.tolist() for each in documents]


@given(lengths=st.lists(st.integers(0, 5), min_size=1), least=st.integers(1, 40))
def test_units_of_tokens_hold_every_document_once(
    lengths: list[int], least: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ds")
    documents = [np.arange(n, dtype="<u2") for n in [*lengths, 1]]
    path = write_ds(folder / "a.ds", documents)

    assert write(folder / "c_*.rox", path, "--unit-bytes", least) == 0

    expected = [each.tolist() for each in documents]
    assert documents_of(folder / "c_*.rox") == expected


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("no index", "has no a.ds.index beside it"),
        ("short index", "a.ds.index: is not an index of rising 8-byte numbers"),
        ("falling", "a.ds.index: is not an index of rising 8-byte numbers"),
        ("cut", "has 21 bytes, but its index declares 12 tokens of 2 or 4 bytes"),
        ("empty", "has 0 bytes, but its index declares 12 tokens of 2 or 4 bytes"),
    ],
)
def test_a_damaged_ds_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, problem: str
) -> None:
    path = write_ds(
        tmp_path / "a.ds", [np.arange(7, dtype="<u2"), np.arange(5, dtype="<u2")]
    )
    index = tmp_path / "a.ds.index"
    if damage == "no index":
        index.unlink()
    elif damage == "short index":
        index.write_bytes(index.read_bytes()[:-1])
    elif damage == "falling":
        index.write_bytes(struct.pack("<2Q", 12, 7))
    else:
        path.write_bytes(path.read_bytes()[: 21 if damage == "cut" else 0])

    assert write(tmp_path / "c_*.rox", path) == 1

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert problem in error


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder as `datasets` saves it: two Arrow streams, and their list."""
    arrow: Any = import_module("pyarrow")
    folder = tmp_path / "saved"
    folder.mkdir()
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    for number, name in enumerate(names):
        texts = [f"text {number} {row}" for row in range(500)]
        tokens = [[number, row] for row in range(500)]
        table = arrow.table({"text": texts, "ids": tokens})
        with arrow.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table, max_chunksize=100)
    state = {"_data_files": [{"filename": name} for name in reversed(names)]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.mark.parametrize("unit_bytes", [1, 2000, 1 << 20])
def test_a_saved_dataset_is_read_in_its_order(
    saved: Path, tmp_path: Path, unit_bytes: int
) -> None:
    out = tmp_path / "c_*.rox"

    assert write(out, saved, "--field", "ids", "--unit-bytes", unit_bytes) == 0

    assert documents_of(out) == [[n, row] for n in (1, 0) for row in range(500)]


def test_texts_of_a_saved_dataset(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "c_*.rox"

    assert main(["write", str(out), str(saved)]) == 0

    corpus = Roxxel(out)
    assert corpus.num_documents == 1000
    assert bytes(corpus.documents[999].tolist()).decode() == "text 0 499"


def test_an_arrow_file_with_a_footer_is_read(tmp_path: Path) -> None:
    arrow: Any = import_module("pyarrow")
    table = arrow.table({"ids": [[1, 2], [3]]})
    path = tmp_path / "a.arrow"
    with arrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)

    assert write(tmp_path / "c_*.rox", path, "--field", "ids") == 0

    assert documents_of(tmp_path / "c_*.rox") == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("column", "has no column 'text', only ids; pass the column"),
        ("cut", "does not end as an Arrow file or stream does"),
        ("flipped", "not an Arrow file, or a damaged one"),
        ("splits", "holds the splits of a DatasetDict; pass the folder of one"),
        ("indices", "its rows are chosen by a file of indices"),
        ("state", "state.json: holds a list, not a JSON object"),
    ],
)
def test_a_bad_dataset_is_one_sentence(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: str,
    problem: str,
) -> None:
    arrow: Any = import_module("pyarrow")
    first = saved / "data-00001-of-00002.arrow"
    if damage == "column":
        table = arrow.table({"ids": [[1, 2], [3]]})
        with arrow.ipc.new_stream(str(first), table.schema) as stream:
            stream.write_table(table)
    elif damage == "cut":
        first.write_bytes(first.read_bytes()[:-700])
    elif damage == "flipped":
        first.write_bytes(b"\0" * 300 + first.read_bytes()[300:])
    elif damage == "splits":
        (saved / "dataset_dict.json").write_text("{}")
    elif damage == "indices":
        state = {"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}
        (saved / "state.json").write_text(json.dumps(state))
    else:
        (saved / "state.json").write_text("[]")

    assert main(["write", str(tmp_path / "c_*.rox"), str(saved)]) == 1

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert problem in error
    assert not [*tmp_path.glob("c_*.rox")]


@pytest.mark.parametrize("form", ["new_stream", "new_file"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_record_batches_of_a_large_arrow_file_are_divided(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    compression: str | None,
) -> None:
    arrow: Any = import_module("pyarrow")
    ids = [[number, number * 7919 % 10_007] for number in range(2000)]
    words = arrow.array(["a", "b"] * 1000).dictionary_encode()
    table = arrow.table({"ids": ids, "words": words})
    path = tmp_path / "a.arrow"
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with getattr(arrow.ipc, form)(str(path), table.schema, options=options) as file:
        file.write_table(table, max_chunksize=100)

    assert main(["write", "c", str(path), "--unit-bytes", "4000", "--dry-run"]) == 0
    spans = spans_in(capsys.readouterr().out)
    assert len(spans) > 3
    assert spans[0][0] == 0
    assert spans[-1][1] == 20
    assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
    out = tmp_path / "c_*.rox"
    assert write(out, path, "--field", "ids", "--unit-bytes", "4000") == 0
    assert documents_of(out) == ids


def test_a_cut_arrow_file_that_would_be_divided_names_the_byte(
    tmp_path: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved / "data-00000-of-00002.arrow"
    path.write_bytes(path.read_bytes()[:3000])

    assert write(tmp_path / "c_*.rox", path, "--unit-bytes", "1000") == 1

    error = capsys.readouterr().err
    assert f"{path}: not an Arrow file, or a damaged one (no message at byte" in error
