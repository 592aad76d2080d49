"""Commands that pages show beside their blocks run, on a bucket and a run of this test.

A page runs its own blocks (`test_docs.py`). Commands that need a bucket, a scheduler or
a long run are taken from their page here, and get a small stand-in for each.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from roxxel.cli import main
from roxxel_format import Roxxel

from .buckets import running_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.first, pytest.mark.long]

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
SHOWN = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)

CONFIG = """\
model = "roxxel.models:llama"
save_path = "runs/first"
sources = { self = "data/web_*.rox" }

[[phases]]
steps = 62
batch_size = 2
seq_len = 33

[[phases]]
steps = 6
batch_size = 2
seq_len = 17

[model_args]
preset = "tiny"
width = 16
hidden = 16
num_layers = 1
schedule = "wsd"
warmup = 2

[trainer]
log_every = 1
checkpoint_every = 4
max_to_keep = 100
"""


def shown(page: str, start: str) -> list[str]:
    """Return the words of the only command of a guide that begins so."""
    blocks = SHOWN.findall((GUIDES / page).read_text("utf-8"))
    lines = [
        line
        for block in blocks
        for line in block.replace("\\\n", " ").replace("$ ", "").splitlines()
        if line.startswith(f"roxxel {start}")
    ]
    assert len(lines) == 1, f"{page}: {lines}"
    return shlex.split(lines[0], comments=True)[1:]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def buckets(folder: Path) -> Iterator[Path]:
    """Serve the buckets of the pages; yield the folder that holds them."""
    for name in ("my-bucket/raw", "bucket/texts"):
        (folder / "served" / name).mkdir(parents=True)
    with running_bucket(folder / "served"):
        yield folder / "served"


def write_texts(folder: Path, number: int) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / f"{name}.jsonl.gz" for name in range(number)]
    for path in paths:
        texts = (f"the text {path.name} {word}" for word in "abc")
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return paths


def write_tokenizer(path: Path) -> None:
    library = import_module("tokenizers")
    pieces = [*map(chr, range(32, 127)), "<|endoftext|>"]
    words = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = library.Tokenizer(library.models.BPE(words, []))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))


def test_array_of_a_scheduler_writes_into_a_bucket_what_one_command_writes(
    folder: Path, buckets: Path
) -> None:
    write_tokenizer(folder / "tokenizer.json")
    for path in write_texts(folder / "wiki", 5):
        shutil.copy(path, buckets / "my-bucket/raw")
    member = shlex.join(shown("corpus.md", 'write "s3://my-bucket/wiki_*.rox" /data'))
    member = member.replace("'$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT'", "{}/3")
    small = ["--unit-bytes", "100"]

    for part in (2, 0, 1):
        words = shlex.split(member.format(part).replace("/data/wiki", "wiki"))
        assert main([*words, *small]) == 0
    text = (GUIDES / "corpus.md").read_text("utf-8")
    [commit] = re.findall(r"--wrap 'roxxel (.*?)'", text)
    assert main(shlex.split(commit)) == 0
    start = 'write "s3://my-bucket/wiki_*.rox"'
    _, _, *alone = shown("corpus.md", f'{start} "s3://my-bucket/raw')
    assert main(["write", "wiki_*.rox", *alone, *small]) == 0

    written, wanted = Roxxel("s3://my-bucket/wiki_*.rox"), Roxxel("wiki_*.rox")
    assert written.num_documents == wanted.num_documents == 15
    assert written.tokens[:].tolist() == wanted.tokens[:].tolist()

    assert main(shown("../reference/buckets.md", "format copy")) == 0
    copied = Roxxel("s3://my-bucket/corpora/wiki_*.rox")
    assert copied.fingerprint == wanted.fingerprint


def test_shard_is_repaired_from_a_bucket(folder: Path, buckets: Path) -> None:
    corpus = Roxxel(folder / "data/web_*.rox")
    corpus.write((b"x" * 4000 for _ in range(60)), max_shard_bytes=20_000)
    damaged = folder / "data/web_a243ba994b14_00000_007.rox"
    shutil.copy(corpus.paths[7], damaged)
    shutil.copy(damaged, buckets / "bucket/texts")
    content = bytearray(damaged.read_bytes())
    content[5000] ^= 1
    damaged.write_bytes(content)
    assert main(["format", "verify", str(damaged)]) == 3

    assert main(shown("forensics.md", "format verify")) == 0

    assert main(["format", "verify", str(damaged)]) == 0


def test_run_of_a_config_answers_and_branches(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"def main(): return {number}" * 3 for number in range(60)]
    Roxxel(folder / "data/web_*.rox").write(texts, tokenizer="bytes")
    for name in ("run.toml", "first.toml"):
        (folder / name).write_text(CONFIG)
    assert main(["train", "run.toml"]) == 0
    capsys.readouterr()

    printed: dict[str, str] = {}
    for start in (
        "sample runs/first",
        "show runs",
        "where runs",
        "verify runs/first --data",
    ):
        assert main(shown("model.md", start)) == 0
        printed[start.split()[0]] = capsys.readouterr().out
    assert printed["sample"].startswith("def ")
    assert printed["show"].startswith("step 9: ")
    assert "epoch 0: step 0 row 1 " in printed["where"]
    assert "68" in printed["verify"]

    assert main(shown("resume.md", "train first.toml --branch")) == 0
    assert "of 72 steps" in capsys.readouterr().out
    cooldown = " ".join(map(shlex.quote, shown("model.md", "train run.toml --branch")))
    cooldown = cooldown.replace("10_000", "63").replace("8000", "60")
    assert main(shlex.split(cooldown)) == 0
    assert "of 69 steps" in capsys.readouterr().out
