"""`write --split` of a corpus: its outputs are other corpora, or nothing is written."""

from __future__ import annotations

import contextlib
import re
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, WriteSummary
from roxxel_format.writing import CorpusWrite
from roxxel_store import roxxel_command

from .helpers import main

DOCUMENTS = [[number] * 50 for number in range(60)]


def split(source: object, kept: object, *arguments: str, name: str = "valid") -> int:
    """Divide a corpus: three documents of ten into `KEPT_name_*.rox`, all others."""
    return main(["write", str(kept), str(source), "--split", f"{name}=0.3", *arguments])


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a numbered corpus, a single file, and links to both."""
    (tmp_path / "many").mkdir()
    many = Roxxel(tmp_path / "many" / "a_*.rox")
    many.write(DOCUMENTS, dtype="uint16", block_size=512, max_shard_bytes=9000)
    Roxxel(tmp_path / "one.rox").write(DOCUMENTS, dtype="uint16")
    (tmp_path / "link").symlink_to(tmp_path / "many")
    (tmp_path / "link.rox").symlink_to(tmp_path / "one.rox")
    (tmp_path / "hard.rox").hardlink_to(tmp_path / "one.rox")
    return tmp_path


@pytest.mark.parametrize("exist", ["keep", "replace", "append", "error"])
@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("one.rox", "one.rox"),
        ("one.rox", "many/../one.rox"),
        ("link.rox", "one.rox"),
        ("many/*.rox", "many/a_*.rox"),
        ("many/*.rox", "link"),
        ("link/*.rox", "many/a_*.rox"),
        ("many/a_*.rox", "many"),
        ("many/SHARD", "many/a_*.rox"),
        ("many/a_*.rox", "many/SHARD"),
    ],
)
def test_output_that_is_the_source_is_refused_before_anything_is_written(
    source: str,
    kept: str,
    exist: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (shard, *_) = (path.name for path in (folder / "many").glob("a_*.rox"))
    source, kept = (each.replace("SHARD", shard) for each in (source, kept))
    before = files_in(folder)

    assert split(folder / source, folder / kept, "--exist", exist) == 1

    message = capsys.readouterr().err
    assert f"{folder / kept}: a write could delete files of " in message
    assert f"{folder / source}, the source of the split; use another path" in message
    assert message.count("\n") == 1
    assert files_in(folder) == before


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("many/x_valid_*.rox", "many/x_*.rox"),
        ("link/x_valid_*.rox", "many/x_*.rox"),
        ("y_valid.rox", "y.rox"),
        ("z_valid.rox", "y.rox"),
    ],
)
def test_held_out_corpus_that_is_the_source_is_refused_likewise(
    source: str, kept: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("many/x_valid_*.rox", "y_valid.rox"):
        Roxxel(folder / name).write(DOCUMENTS, dtype="uint16")
    (folder / "z_valid.rox").symlink_to(folder / "y_valid.rox")
    before = files_in(folder)

    assert split(folder / source, folder / kept, "--exist", "replace") == 1

    message = capsys.readouterr().err
    assert f"{folder / source}, the source of the split; use another path" in message
    assert files_in(folder) == before


@pytest.mark.parametrize(
    ("kept", "held_out"),
    [
        ("many/a_kept_*.rox", "many/a_kept_valid_*.rox"),
        ("many/kept.rox", "many/kept_valid.rox"),
        ("link/kept_*.rox", "many/kept_valid_*.rox"),
        ("new/*.rox", "new/valid/*.rox"),
        ("new/", "new_valid/"),
    ],
)
def test_outputs_beside_the_source_leave_it_whole(
    kept: str, held_out: str, folder: Path
) -> None:
    before = files_in(folder)

    source = folder / "many" / "a_*.rox"
    for _ in range(2):
        assert split(source, f"{folder}/{kept}", "--exist", "replace") == 0

    assert {name: files_in(folder)[name] for name in before} == before
    parts = [Roxxel(folder / kept), Roxxel(folder / held_out)]
    found = [each.tolist() for part in parts for each in part.documents]
    assert sorted(found) == DOCUMENTS
    assert len(parts[1].documents) > 1


def test_a_split_does_not_lose_columns_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "c_*.rox"
    rows = [{"prompt": f"q{n}", "completion": "a"} for n in range(200)]
    Roxxel(source).write(rows, separator=0, prompt="prompt", completion="completion")

    assert split(source, tmp_path / "a.rox") == 1
    assert capsys.readouterr().err == (
        f"roxxel-prepare: {source}: has columns (loss_mask), which a split of a corpus "
        "does not copy; pass --split when you write the files\n"
    )


TEXTS = st.lists(st.text("abc", max_size=3), min_size=4, max_size=40)


@settings(max_examples=6, deadline=None)
@given(deliveries=st.lists(TEXTS, min_size=2, max_size=3), with_write=st.booleans())
def test_appended_deliveries_are_divided_by_one_rule(
    deliveries: list[list[str]], *, with_write: bool
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        outputs = folder / "c_*.rox", folder / "c_valid_*.rox"
        for number, texts in enumerate(deliveries):
            # Whatever is drawn, each side gets documents.
            rows = [*texts, *(f"{number} {at}" for at in range(40))]
            source = folder / f"{number}.jsonl"
            source.write_text("".join(f'{{"text": "{row}"}}\n' for row in rows))
            words = ["--separator", "0"]
            if with_write and not number:
                words += ["--split", "valid=0.3"]
                assert main(["write", str(outputs[0]), str(source), *words]) == 0
                continue
            new = folder / f"new{number}_*.rox"
            assert main(["write", str(new), str(source), *words]) == 0
            exist = "append" if number else "keep"
            assert split(new, outputs[0], "--exist", exist) == 0

        kept, held_out = (
            {each.tobytes() for each in Roxxel(path).documents} for path in outputs
        )
        assert not kept & held_out
        assert len(kept | held_out) == len({*chain(*deliveries)}) + 40 * len(deliveries)


@pytest.mark.parametrize("dtype", ["uint16", "float32", "bfloat16"])
def test_a_write_and_a_split_of_its_shards_hold_out_the_same_documents(
    dtype: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(40 * 7, dtype="uint16").reshape(40, 7))
    write = "write", str(tmp_path / "all_*.rox"), str(tmp_path / "ids.npy")
    assert main([*write, "--dtype", dtype]) == 0
    write = "write", str(tmp_path / "once_*.rox"), str(tmp_path / "ids.npy")
    assert main([*write, "--dtype", dtype, "--split", "valid=0.3"]) == 0

    assert split(tmp_path / "all_*.rox", tmp_path / "later_*.rox") == 0

    once, later = (
        [each.tobytes() for each in Roxxel(tmp_path / f"{name}_valid_*.rox").documents]
        for name in ("once", "later")
    )
    assert once == later


def test_a_killed_append_of_a_delivery_is_finished_by_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    may, june = tmp_path / "may_*.rox", tmp_path / "june_*.rox"
    Roxxel(may).write(DOCUMENTS[:30], dtype="uint16")
    Roxxel(june).write(DOCUMENTS[30:], dtype="uint16")
    kept, held_out = tmp_path / "c_*.rox", tmp_path / "c_valid_*.rox"
    append = june, kept, "--exist", "append"
    assert split(may, kept) == 0

    run = CorpusWrite.run

    def killed(write: CorpusWrite, *arguments: Any, **more: Any) -> WriteSummary:
        if write.recipe.side and not write.recipe.side.is_held_out:
            raise KeyboardInterrupt
        return run(write, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(CorpusWrite, "run", killed)
        with contextlib.suppress(KeyboardInterrupt):
            split(*append)
    assert Roxxel(kept).num_documents + Roxxel(held_out).num_documents < 60

    for _ in range(2):
        assert split(*append) == 0
        assert f"{held_out}: has the documents of" in capsys.readouterr().err
        assert Roxxel(kept).num_documents + Roxxel(held_out).num_documents == 60


def test_an_append_to_a_split_names_the_command_that_follows_its_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, new = tmp_path / "a.jsonl", tmp_path / "new_*.rox"
    source.write_text("".join(f'{{"text": "row {n}"}}\n' for n in range(99)))
    kept, held_out = tmp_path / "c_*.rox", tmp_path / "c_valid_*.rox"
    plain = [str(source), "--separator", "0"]
    with_split = [*plain, "--split", "valid=0.3"]
    assert main(["write", str(kept), *with_split]) == 0
    command = roxxel_command("prepare write KEPT NEW --split valid=0.3 --exist append")
    before = files_in(tmp_path)

    def is_refused(*words: str) -> bool:
        assert main(["write", *words, "--exist", "append"]) == 1
        said = capsys.readouterr().err
        # Of a corpus with columns or bins, that command would be refused.
        assert "with columns or bins, write two new corpora with --split" in said
        return command in said

    assert is_refused(str(kept), *with_split)
    assert is_refused(str(kept), *plain)
    assert is_refused(str(held_out), *plain)
    for path in (kept, held_out):
        with pytest.raises(ValueError, match="is one side of a split"):
            Roxxel(path).write(["text"], separator=0, exist="append")
    assert files_in(tmp_path) == before

    assert main(["write", str(new), *plain]) == 0
    append = ["--exist", "append"]
    other = ["write", str(kept), str(new), "--split", "valid=0.2", *append]
    assert main(other) == 1
    assert command in capsys.readouterr().err
    # Nor does a misspelt name begin a third corpus.
    before = files_in(tmp_path)
    assert split(new, kept, *append, name="other") == 1
    assert "valid=0.3" in capsys.readouterr().err
    assert files_in(tmp_path) == before
    assert split(new, kept, *append) == 0
    assert Roxxel(kept).num_documents + Roxxel(held_out).num_documents == 2 * 99

    # A second side that refuses leaves the first one as it was.
    assert main(["write", str(kept), *plain, "--exist", "replace"]) == 0
    before = files_in(tmp_path)
    assert split(new, kept, *append) == 1
    assert files_in(tmp_path) == before


def test_a_split_writes_the_held_out_documents_first_as_a_write_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert split(folder / "many" / "*.rox", folder / "k_*.rox") == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:2]] == [
        str(folder / "k_valid_*.rox"),
        str(folder / "k_*.rox"),
    ]


def test_a_corpus_that_its_folder_names_is_told_by_which_name_it_is_divided(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = folder / "of_folder"
    Roxxel(f"{corpus}/").write(DOCUMENTS, dtype="uint16")

    assert split(f"{corpus}/", folder / "k_*.rox") == 1
    [name] = re.findall(r"'([^']*[*].rox)'", capsys.readouterr().err)
    assert split(name, folder / "k_*.rox") == 0


def test_a_split_says_its_shares_of_documents_and_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.jsonl"
    rows = [f'{{"text": "{"x" * (n % 7) ** 3}{n}"}}\n' for n in range(200)]
    source.write_text("".join(rows))
    target, words = tmp_path / "c_*.rox", ["--separator", "0"]

    def last_line() -> str:
        return capsys.readouterr().out.splitlines()[-1]

    main(["write", str(target), str(source), *words, "--split", "valid=0.3"])
    said = last_line()
    one, other = (Roxxel(tmp_path / f"c_{name}*.rox") for name in ("valid_", ""))
    documents = one.num_documents / (one.num_documents + other.num_documents)
    tokens = one.num_tokens / (one.num_tokens + other.num_tokens)
    assert said == (
        f"held out {100 * documents:.3g} % of the documents and "
        f"{100 * tokens:.3g} % of the tokens"
    )

    for part in ("0/2", "1/2"):
        more = ["--split", "valid=0.3", "--part", part, "--unit-bytes", "999"]
        main(["write", str(tmp_path / "p_*.rox"), str(source), *words, *more])
    main(["write", str(tmp_path / "p_*.rox"), "--commit"])
    assert last_line() == said
    main(["write", str(tmp_path / "all_*.rox"), str(source), *words])
    split(tmp_path / "all_*.rox", tmp_path / "k_*.rox")
    assert last_line() == said


@pytest.mark.parametrize("exist", ["keep", "replace", "error", "append"])
@pytest.mark.parametrize("source", ["rows.npy", "many/*.rox"])
def test_another_name_of_a_split_is_refused_before_anything_is_written(
    source: str, exist: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "rows.npy", np.array(DOCUMENTS, np.uint16))
    kept = folder / "k_*.rox"
    assert split(folder / source, kept) == 0
    before = files_in(folder)
    capsys.readouterr()

    assert split(folder / source, kept, "--exist", exist, name="vaild") == 1

    message = capsys.readouterr().err
    assert f"{kept}: " in message
    assert "valid=0.3" in message
    assert "vaild=0.3" in message
    assert message.count("\n") == 1
    assert files_in(folder) == before


@pytest.mark.parametrize("source", ["rows.npy", "many/*.rox"])
def test_a_corpus_that_was_not_divided_gets_no_held_out_corpus_beside_it(
    source: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "rows.npy", np.array(DOCUMENTS, np.uint16))
    kept = folder / "k_*.rox"
    Roxxel(kept).write(DOCUMENTS, dtype="uint16")
    before = files_in(folder)

    assert split(folder / source, kept) == 1

    assert f"{kept}: was not divided" in capsys.readouterr().err
    assert files_in(folder) == before
    assert split(folder / source, kept, "--exist", "replace") == 0
