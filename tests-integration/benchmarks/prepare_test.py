"""The benchmark of preparation runs once, small, without tools to install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from . import prepare_scan


def test_a_scan(tmp_path: Path) -> None:
    found = prepare_scan.measured(tmp_path, mib=1)

    assert [*found] == ["bytes", "bpe"]
    for each in found.values():
        assert set(each.recall.values()) == {10}
        assert each.masked < each.in_documents


def test_preparation() -> None:
    script = Path(__file__).with_name("prepare.py")
    options = ["--mib", "1", "--vocab-size", "500"]
    for way in ("datatrove", "gigatoken", "one"):
        options += ["--without", way]

    done = subprocess.run(
        [sys.executable, str(script), *options],
        capture_output=True,
        text=True,
        check=True,
    )

    rows = re.findall(r"^(\w+) .* (\d+)$", done.stdout, re.MULTILINE)
    assert [way for way, _ in rows] == ["bare", "roxxel", "tokenizers", "loop"]
    assert len({num_tokens for _, num_tokens in rows}) == 1


def test_tokenizers_of_each_kind() -> None:
    script = Path(__file__).with_name("tokenizer_fuzz.py")
    options = "--documents", "60", "--step", "30000", "--vocab-size", "300"

    done = subprocess.run(
        [sys.executable, str(script), *options],
        capture_output=True,
        text=True,
        check=True,
    )

    rows = re.findall(
        r"^([\w-]+): .* 60 documents .*: same ids", done.stdout, re.MULTILINE
    )
    assert rows == ["gpt-2", "llama-3", "qwen-2", "llama-2"]
