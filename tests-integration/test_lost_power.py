"""A kill or a loss of power at any moment leaves the old or the new.

The same work, done again, then ends as if nothing had happened. The work is done once,
and what each kind of disk would hold meanwhile is opened afterwards (`lost_power.py`).
"""

from __future__ import annotations

import json
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optax
import pytest
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel.cli import main
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ShardError
from roxxel_train import RunFolder

from .lost_power import DISKS, LostPower, write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .lost_power import Files

pytestmark = [
    pytest.mark.first,
    pytest.mark.skipif(sys.platform != "linux", reason="macOS flushes by another call"),
]


def documents(*lengths: int) -> Sequence[Any]:
    return [np.arange(length) % 50 for length in lengths]


def begin(corpus: Roxxel) -> None:
    texts = documents(*[1200] * 6)
    corpus.write(texts, vocab_size=50, block_size=512, max_shard_bytes=9000)


def prepare(corpus: Roxxel, *options: str) -> None:
    texts = Path(f"{corpus.filepath}").parents[2] / "texts.jsonl"
    if not texts.exists():  # the same file, so that an interrupted one goes on
        rows = [{"prompt": "why? ", "text": "word " * number} for number in range(200)]
        texts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ["write", str(corpus.filepath), str(texts), "--tokenizer", "bytes"]
    assert main([*command, "--workers=1", "--unit-bytes=50000", *options]) == 0


PREPARED: dict[str, Callable[[Roxxel], Any]] = {
    "prepare": lambda corpus: prepare(corpus, "--pack=2000"),
    "prompts": lambda corpus: prepare(corpus, "--prompt=prompt", "--completion=text"),
}
ANEW: dict[str, Callable[[Roxxel], Any]] = {"write": begin, **PREPARED}
CHANGED: dict[str, Callable[[Roxxel], Any]] = {
    "append": lambda corpus: corpus.write(
        documents(700), exist="append", without_columns=["score"]
    ),
    "replace": lambda corpus: corpus.write(
        documents(700, 90), vocab_size=50, exist="replace"
    ),
    "column": lambda corpus: corpus.write_column("mask", np.ones(7200, np.uint8)),
    "other column": lambda corpus: corpus.write_column(
        "score", [*range(6, 12)], per="document", exist="replace"
    ),
    "compact": lambda corpus: corpus.compact(),
}


def seen(folder: Path) -> object:
    """Return what a corpus holds, None without a corpus; verify every block."""
    with Roxxel(folder / "new" / "web_*.rox") as corpus:
        try:
            versions = [corpus.with_version(each) for each in corpus.versions]
            tokens = [each.tokens[:].tolist() for each in versions]
        except FileNotFoundError:
            return None
        except ShardError as error:
            assert "has no manifest" in str(error)  # noqa: PT017
            return None
        assert not corpus.verify().errors
        columns = {name: corpus.column(name)[:].tolist() for name in corpus.columns}
        return tokens, columns, corpus.num_shards


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in {".lock", ".writers"}
    }


def newest(folder: Path) -> int:
    """Return the newest step of a run, 0 without one; verify every checkpoint."""
    run = folder / "run"
    found = [path.name for path in run.glob("checkpoints/*") if path.name.isdigit()]
    if not found:
        return 0
    assert main(["ckpt", "verify", str(run)]) == 0
    step = max(map(int, found))
    logged = [row["step"] for row in RunFolder(run).rows()[0] if row["kind"] == "train"]
    assert logged[:step] == [*range(1, step + 1)], "the log has no row of a saved step"
    return step


def changes(
    histories: Sequence[Sequence[Files]], folder: Path, look: Callable[[Path], Any]
) -> list[list[Any]]:
    """Return what is seen in each history of a folder, without repetitions."""
    numbers, known = count(), dict[frozenset[tuple[str, bytes]], Any]()
    found: list[list[Any]] = []
    for history in histories:
        found.append([])
        for files in history:
            key = frozenset(files.items())
            if key not in known:
                left = folder.with_name(f"left-{next(numbers)}")
                write_files(files, left)
                known[key] = look(left)
                shutil.rmtree(left)
            if found[-1][-1:] != [known[key]]:
                found[-1].append(known[key])
    return found


@pytest.mark.parametrize("name", [*ANEW, *CHANGED])
def test_a_corpus_is_the_old_or_the_new(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    corpus = Roxxel(folder / "new" / "web_*.rox")
    if name in CHANGED:
        begin(corpus)
        corpus.write_column("score", [*range(6)], per="document")
    before, work = seen(folder), {**ANEW, **CHANGED}[name]

    with LostPower(folder, kills=True) as power:
        work(corpus)
    after = seen(folder)
    corpus.remove_leftovers()

    def go_on(left: Path) -> object:
        interrupted = Roxxel(left / "new" / "web_*.rox")
        found = seen(left)
        if found == before:
            work(interrupted)
        interrupted.remove_leftovers()
        assert seen(left) == after
        assert len(content(left)) == len(content(folder))
        if name in PREPARED:  # the others give each file a name of its own
            assert content(left) == content(folder)
        return found

    each = [before, after]
    assert changes(power.histories, folder, seen) == [each] * len(DISKS)
    assert changes([power.killed], folder, go_on) == [each]


def test_a_run_has_its_newest_step_and_the_rows_up_to_it(tmp_path: Path) -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        logits, targets = model(batch[:, :-1]), batch[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def train() -> None:
        model = nnx.Embed(300, 300, rngs=nnx.Rngs(0))
        Trainer(
            model,
            nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
            Curriculum(PositionReader(300), [Phase(4, 2, 9)]),
            loss_fn,
            tmp_path / "work" / "run",
            checkpoint_every=2,
            max_to_keep=1,
            log_every=1,
        ).run()

    (tmp_path / "work").mkdir()

    with LostPower(tmp_path / "work") as power:
        train()

    found = changes(power.histories, tmp_path / "work", newest)
    assert found == [[0, 2, 4]] * len(DISKS)
