"""Bad bytes cause an error that names file and position, never a wrong token."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import Curriculum, Phase, Roxxel
from roxxel.cli import main

from .runs import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = """\
[sources]
self = "web.rox"

[[phases]]
steps = 4
batch_size = 2
seq_len = 8
"""


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "web.rox"
    Roxxel(path).write((np.arange(40) + i for i in range(8)), vocab_size=50)
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "train.toml").write_text(
        'model = "model_of_hostile_files:make"\nsave_path = "run"\n' + CONFIG
    )
    (tmp_path / "model_of_hostile_files.py").write_text(MODEL)
    return path


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def become_a_later_version(path: Path) -> None:
    """Make it what a later format might write, its checksum right."""
    data = bytearray(path.read_bytes())
    data[8:12] = (2).to_bytes(4, "little")
    data[4092:4096] = zlib.crc32(data[:4092]).to_bytes(4, "little")
    path.write_bytes(data)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "web.rox").mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (
        lambda path: path.write_bytes(path.read_bytes()[:-300]),
        "the file was truncated or is damaged",
    ),
    "head": (lambda path: flip(path, 40), "the head (bytes 0 to 4096) does not match"),
    "foot": (lambda path: flip(path, -100), "is no foot whose checksum holds"),
    "no shard": (
        lambda path: path.write_bytes(b"PK" * 5000),
        "not a Roxxel shard, it begins with b'PK",
    ),
    "empty": (lambda path: path.write_bytes(b""), "not a Roxxel shard"),
    "later version": (
        become_a_later_version,
        "install a newer roxxel-format",
    ),
    "folder": (become_a_folder, "is a folder, not a regular file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_shard_that_cannot_be_opened_is_named_by_every_command(
    damage: str, shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, sentence = DAMAGES[damage]
    spoil(shard)

    for command in (
        ["plan", str(shard.with_name("run.toml"))],
        ["train", str(shard.with_name("train.toml"))],
        ["format", "info", str(shard)],
        ["format", "verify", str(shard)],
    ):
        assert main(command) == 1
        *notices, said = capsys.readouterr().err.splitlines()
        assert len(notices) == (command[0] == "train")  # it says what it is doing
        assert str(shard) in said
        assert sentence in said


def test_flipped_token_is_found_and_never_delivered(
    shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(shard, 4096 + 20)

    assert main(["format", "verify", str(shard)]) == 3
    [said] = capsys.readouterr().err.splitlines()
    assert f"{shard}: block 0 of the tokens (byte 4096 on" in said
    sampler = Curriculum(Roxxel(shard), [Phase(4, 2, 8)]).sampler(0, check="blocks")
    with pytest.raises(ValueError, match=r"web\.rox: block 0 of the tokens"):
        sampler.batch(0)


def test_no_damaged_token_is_trained_on_where_blocks_are_checked(
    shard: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = shard.with_name("train.toml")
    config.write_text(config.read_text() + '[trainer]\ncheck = "blocks"\n')
    flip(shard, 4096 + 20)

    code = main(["train", str(config)])

    assert code != 0
    assert f"{shard}: block 0 of the tokens (byte 4096 on" in capfd.readouterr().err
    assert "block 0 of the tokens" in (shard.parent / "run/system.log").read_text()
    assert '"kind": "train"' not in (shard.parent / "run/metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x00\xff", "is not text in UTF-8"),
        (b'a = "\0"', "Illegal character"),
        (b"a = " + b"[" * 20_000, "nested too deeply"),
        (b"a = " + b"{a = " * 5000, "nested too deeply"),
        (b"", "has no sources"),
    ],
)
def test_hostile_config_is_one_sentence(
    content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_bytes(content)

    assert main(["plan", str(config)]) == 1

    [said] = capsys.readouterr().err.splitlines()
    assert str(config) in said
    assert sentence in said
