"""Which corpus a plain name means, for readers and for writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError

from .helpers import documents_of, main, names_in, short

LIMIT = 20_000
DOCUMENTS = documents_of(4000, 4000, 4000)
OTHER = documents_of(100, seed=1)


def shown(corpus: Roxxel, folder: Path) -> list[str]:
    """Return the paths of the shards, without the digests of their writes."""
    paths = [str(Path(path).relative_to(folder)) for path in corpus.paths]
    return [short([path])[0] for path in paths]


def make(folder: Path, names: tuple[str, ...]) -> None:
    """Write a corpus of each name; `t_*` gets three shards."""
    for name in names:
        limit = LIMIT if "*" in name else None
        Roxxel(f"{folder}/{name}").write(DOCUMENTS, max_shard_bytes=limit)


SHARDS = [f"t_{number:03d}.rox" for number in range(3)]
READ: list[tuple[tuple[str, ...], str, list[str] | None]] = [
    # What exists, the path, and the shards that it means; None for an error.
    ((), "t", None),
    ((), "t.rox", None),
    (("t.rox",), "t.rox", ["t.rox"]),
    (("t.rox",), "t", ["t.rox"]),
    (("t_*.rox",), "t.rox", SHARDS),
    (("t_*.rox",), "t", SHARDS),
    (("t_*.rox",), "t_", None),
    (("t_*.rox", "t_more_*.rox"), "t", SHARDS),
    (("t_more_*.rox",), "t", None),
    (
        ("t_more_*.rox",),
        "t_more.rox",
        [f"t_more_{number:03d}.rox" for number in (0, 1, 2)],
    ),
    (("t.rox", "t_*.rox"), "t.rox", ["t.rox"]),
    (("t.rox", "t_*.rox"), "t_*.rox", SHARDS),
    (("t.rox", "t_*.rox"), "t", None),
    (("t/",), "t", ["t/shard_000.rox"]),
    (("t/",), "t/", ["t/shard_000.rox"]),
    (("t.rox",), "t/", None),
    (("t/", "t_*.rox", "t.rox"), "t", ["t/shard_000.rox"]),
    (("t/", "t_*.rox"), "t.rox", SHARDS),
]


@pytest.mark.parametrize(("existing", "path", "shards"), READ)
def test_a_plain_name_is_read_as_what_exists(
    existing: tuple[str, ...], path: str, shards: list[str] | None, tmp_path: Path
) -> None:
    # From the longest name on: `t.rox` would mean `t_*.rox`.
    make(tmp_path, tuple(sorted(existing, key=lambda name: "*" in name)))
    corpus = Roxxel(f"{tmp_path}/{path}")

    if shards is None:
        with pytest.raises((FileNotFoundError, ShardError)) as caught:
            corpus.num_tokens  # noqa: B018 - opens the corpus
        assert str(caught.value).startswith(f"{tmp_path / path}: ")
    else:
        assert shown(corpus, tmp_path) == shards
        assert corpus.verify().ok


def test_a_name_that_may_mean_two_corpora_is_one_sentence(tmp_path: Path) -> None:
    make(tmp_path, ("t.rox", "t_*.rox"))
    corpus = Roxxel(tmp_path / "t")

    for use in (corpus.verify, lambda: corpus.write([[1]], exist="replace")):
        with pytest.raises(ShardError) as caught:
            use()
        assert str(caught.value) == (
            f'{tmp_path / "t"}: may mean the file "t.rox" or the shards "t_*.rox"; '
            "pass one of these names"
        )


IS_ONE_FILE = (
    'is one file, so max_shard_bytes and exist="append", which add shards, cannot '
    'write it; use a folder, or a pattern such as "t_*.rox"'
)
WRITTEN: list[tuple[tuple[str, ...], str, dict[str, Any], list[str] | str]] = [
    # What exists, the path, the arguments, and the shards after it, or the error.
    ((), "t.rox", {}, ["t.rox"]),
    ((), "t.rox", {"exist": "append"}, ["t_000.rox"]),
    ((), "t.rox", {"max_shard_bytes": LIMIT}, ["t_000.rox"]),
    ((), "t", {}, ["t.rox"]),
    ((), "t", {"exist": "append"}, ["t_000.rox"]),
    ((), "t", {"max_shard_bytes": LIMIT}, ["t_000.rox"]),
    ((), "t/", {}, ["t/shard_000.rox"]),
    ((), "t/", {"max_shard_bytes": LIMIT}, ["t/shard_000.rox"]),
    ((), "t.rox/", {}, ["t.rox/shard_000.rox"]),
    ((), "t/*.rox", {}, ["t/shard_000.rox"]),
    (("t/",), "t", {"exist": "append"}, ["t/shard_000.rox", "t/shard_000.rox"]),
    (("t.rox",), "t/", {}, ["t/shard_000.rox"]),
    (("t_*.rox",), "t.rox", {"max_shard_bytes": LIMIT}, SHARDS),  # kept
    (("t_*.rox",), "t.rox", {}, "other arguments (max_shard_bytes is 20000 in"),
    (("t_*.rox",), "t.rox", {"exist": "error"}, "the corpus exists already"),
    (("t_*.rox",), "t.rox", {"exist": "append"}, [*SHARDS, "t_000.rox"]),
    (("t_*.rox",), "t", {"exist": "append"}, [*SHARDS, "t_000.rox"]),
    (("t_*.rox",), "t.rox", {"exist": "replace"}, ["t_000.rox"]),
    (("t.rox",), "t.rox", {"exist": "replace"}, ["t.rox"]),
    (("t.rox",), "t", {"exist": "replace"}, ["t.rox"]),
    *(
        (
            ("t.rox",),
            "t.rox",
            {"exist": exist, "max_shard_bytes": limit},
            IS_ONE_FILE,
        )
        for exist, limit in [
            ("keep", LIMIT),
            ("error", LIMIT),
            ("append", None),
            ("replace", LIMIT),
        ]
    ),
]


@pytest.mark.parametrize(("existing", "path", "arguments", "expected"), WRITTEN)
def test_a_write_to_a_plain_name_makes_what_reading_finds(
    existing: tuple[str, ...],
    path: str,
    arguments: dict[str, Any],
    expected: list[str] | str,
    tmp_path: Path,
) -> None:
    make(tmp_path, existing)
    before = names_in(tmp_path)
    documents = DOCUMENTS if expected == SHARDS else OTHER
    corpus = Roxxel(f"{tmp_path}/{path}")

    if isinstance(expected, str):
        with pytest.raises((FileExistsError, ValueError)) as caught:
            corpus.write(documents, **arguments)
        assert expected in str(caught.value)
        assert names_in(tmp_path) == before
    else:
        corpus.write(documents, **arguments)
        assert shown(corpus, tmp_path) == expected
        assert Roxxel(f"{tmp_path}/{path}").paths == corpus.paths
        assert corpus.verify().ok
        assert corpus.tokens[-100:].tolist() == documents[-1][-100:].tolist()


@pytest.mark.parametrize("first", ["t", "t.rox"])
@pytest.mark.parametrize("limit", [None, LIMIT])
def test_a_name_with_and_without_its_ending_is_one_corpus(
    first: str, limit: int | None, tmp_path: Path
) -> None:
    summary = Roxxel(tmp_path / first).write(DOCUMENTS, max_shard_bytes=limit)

    for name in ("t", "t.rox"):
        again = Roxxel(tmp_path / name).write(DOCUMENTS, max_shard_bytes=limit)
        assert again.kept
        assert again.paths == summary.paths


def test_columns_versions_and_cleaning_find_the_shards_of_a_plain_name(
    tmp_path: Path,
) -> None:
    make(tmp_path, ("t_*.rox",))
    corpus = Roxxel(tmp_path / "t.rox")
    first = corpus.fingerprint
    corpus.write(OTHER, exist="append")
    corpus.write_column("mask", np.ones(corpus.num_tokens, np.uint8))
    draft = tmp_path / ".t_0123456789ab_00000_000.rox.partial"
    draft.touch()

    assert corpus.versions[0] == first
    assert Roxxel(tmp_path / "t", version=first).num_tokens == 12_000
    assert corpus.columns == ["mask"]
    assert corpus.remove_leftovers() == [
        str(tmp_path / ".t_0123456789ab_00000_000.rox.partial")
    ]


def test_the_command_takes_plain_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(5000, dtype=np.uint16).reshape(10, -1))

    assert main(["write", "t.rox", "a.npy", "--max-shard-bytes", "20000"]) == 0
    assert main(["info", "t", "--no-lengths"]) == 0
    assert main(["verify", "t.rox"]) == 0
    split = ["--split", "b=0.5"]
    words = [*split, "--max-shard-bytes", "20000"]
    assert main(["write", "a.rox", "t.rox", *words]) == 0
    assert main(["write", "t", "t.rox", *split]) == 1

    assert "a write could delete files of" in capsys.readouterr().err
    assert Roxxel("a").num_tokens + Roxxel("a_b").num_tokens == 5000
    names = names_in(tmp_path)
    assert {"a_000.rox", "a_b_000.rox", "t_manifest.json"} < {*short(names)}
    assert "t.rox" not in names


@pytest.mark.parametrize(
    "names",
    [
        ("t_1.rox", "t_2.rox"),
        ("t_2024.rox", "t_2025.rox"),
        ("t_20240101.rox", "t_20240102.rox"),
    ],
)
def test_corpora_of_one_file_are_not_shards_of_a_plain_name(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    make(tmp_path, names)

    for name in ("t", "t.rox"):
        with pytest.raises(FileNotFoundError, match=f"{name}: no such file or folder"):
            Roxxel(tmp_path / name).num_tokens  # noqa: B018 - opens the corpus
    make(tmp_path, ("t.rox",))
    for name in ("t", "t.rox"):
        assert Roxxel(tmp_path / name).paths == [str(tmp_path / "t.rox")]


@pytest.mark.parametrize("other", ["t_7.rox", "t_2024.rox", "t_00007.rox"])
def test_a_file_with_a_number_does_not_turn_a_write_into_shards(
    other: str, tmp_path: Path
) -> None:
    (tmp_path / other).write_bytes(b"junk")

    Roxxel(tmp_path / "t.rox").write(OTHER)

    assert names_in(tmp_path) == sorted(["t.rox", other])


@pytest.mark.parametrize("name", ["one.rox", "one", "many_*.rox", "folder/"])
def test_brackets_in_the_name_of_a_folder_above_are_no_pattern(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project [v1]"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "a.txt").write_text("alpha")

    for inputs in ("a.txt", "?.txt", str(folder / "*.txt")):
        assert main(["write", name, inputs, "--exist", "replace"]) == 0
        assert [bytes(each) for each in Roxxel(name).documents] == [b"alpha"]

    assert [bytes(each) for each in Roxxel(str(folder / name)).documents] == [b"alpha"]
