"""A run that other trainers make: ten steps of two lengths over a blend, with masks.

The program of each trainer is called as `PROGRAM CORPUS RUN SEEN KILL OPTIONS`. It
saves what the trainer gets at each step as `SEEN/STEP-RANK.npz`, appends the loss to
`SEEN/losses.txt`, writes the log to `RUN/log`, and kills itself before it trains step
`KILL`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.digest import add_step, batch_digest, digest_text
from roxxel_curriculum.run_log import METRICS
from roxxel_curriculum.share import NEXT_TOKEN_FIELDS
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SEED, STEPS = 3, 10
PLACE = "BRIDGE_PLACE"
"""The variable with address, count and index of a process that runs beside others."""


def write(folder: Path, seed: int = 0) -> Path:
    """Write two corpora of bytes; return the folder."""
    chosen = np.random.default_rng(seed)
    for name in ("prose", "code"):
        documents = (
            chosen.integers(0, 256, chosen.integers(20, 90)) for _ in range(200)
        )
        Roxxel(folder / f"{name}.rox").write(documents, vocab_size=256)
    return folder


def curriculum_of(folder: str | Path) -> Curriculum:
    """Return ten steps, of which some read a withdrawn document."""
    prose, code = (Roxxel(f"{folder}/{name}.rox") for name in ("prose", "code"))
    phases = [
        Phase(6, 8, 65, {"self": 0.75, "code": 0.25}),
        Phase(4, 4, 129, {"self": 0.5, "code": 0.5}),
    ]
    return Curriculum(prose, phases, {"code": code}, without={"self": [2]})


class Trained(NamedTuple):
    """What a start left: its exit code, what it said, and losses in full by step."""

    code: int
    said: str
    losses: dict[int, str]


@dataclass(frozen=True)
class Program:
    """A program that trains with some trainer, in a folder with corpora and runs."""

    name: str
    folder: Path

    def __call__(
        self,
        run: str,
        *options: str,
        kill: int = -1,
        corpus: Path | None = None,
        launcher: tuple[str, ...] = (),
        processes: int = 1,
    ) -> Trained:
        """Train until the program ends, or several processes of it."""
        seen = self.folder / f"{run}-seen"
        seen.mkdir(exist_ok=True)
        losses = seen / "losses.txt"
        losses.unlink(missing_ok=True)
        arguments = (corpus or self.folder, self.folder / run, seen, kill, *options)
        program = Path(__file__).parent / self.name
        command = [sys.executable, *launcher, *map(str, (program, *arguments))]
        port, started = free_port(), list[subprocess.Popen[bytes]]()
        # Not through a pipe: a process that waits for a reader keeps all others.
        with (self.folder / f"{run}.txt").open("w+") as said:
            for index in range(processes):
                there = {PLACE: f"localhost:{port} {processes} {index}"}
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=os.environ | there,
                    stdout=said,
                    stderr=said,
                )
                started.append(process)
            for each in started:
                each.wait()
            said.seek(0)
            words = said.read()
        lines = losses.read_text().splitlines() if losses.exists() else []
        found = {int(step): loss for step, loss in map(str.split, lines)}
        code = next((each.returncode for each in started if each.returncode), 0)
        return Trained(code, words, found)

    def check_resumed(self, kill: int) -> None:
        """Check that a killed run goes on bit for bit, and what the logs say."""
        whole = self("whole")
        assert whole.code == 0, whole.said
        assert [*whole.losses] == [*range(STEPS)]
        logged = self.logged("whole")
        assert logged.items() <= whole.losses.items()
        assert len(logged) >= STEPS // 2

        assert self("killed", kill=kill).code != 0
        resumed = self("killed")
        assert resumed.code == 0, resumed.said
        first = min(resumed.losses)
        assert 0 < first <= kill
        rest = range(first, STEPS)
        assert resumed.losses == {step: whole.losses[step] for step in rest}
        assert self.logged("killed").items() <= whole.losses.items()

    def check_is_refused(self, run: str, *options: str, words: str) -> None:
        """Check that a start ends with an error that says what to do."""
        refused = self(run, *options)
        assert refused.code != 0
        assert words in refused.said

    def check_other_corpus_is_refused(self, other: Path) -> None:
        """Check that no checkpoint goes on with other documents."""
        assert self("begun", kill=5).code != 0
        refused = self("begun", corpus=write(other, seed=1))
        assert refused.code != 0
        assert "StateMismatch" in refused.said
        assert not refused.losses

    def check_batches(
        self,
        run: str,
        named: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        steps: range = range(STEPS),
        ranks: int = 1,
    ) -> int:
        """Check what a trainer got of each step, by its names; count masked tokens."""
        curriculum = curriculum_of(self.folder)
        sampler = curriculum.sampler(SEED, fields=NEXT_TOKEN_FIELDS)
        seen, count = self.folder / f"{run}-seen", 0
        for step in steps:
            batch = sampler.batch(step)
            found = [np.load(seen / f"{step}-{rank}.npz") for rank in range(ranks)]
            for name, wanted in named(batch).items():
                whole = np.concatenate([each[name] for each in found])
                assert np.array_equal(whole, wanted), (step, name)
            count += int((batch["loss_mask"][:, 1:] == 0).sum())
        return count

    def logged(self, run: str) -> dict[int, str]:
        """Check that the log of a run has every step's digest; return its losses.

        Rows that a start gave up come before the rows of the same steps made again, and
        have the same digests.
        """
        curriculum = curriculum_of(self.folder)
        sampler = curriculum.sampler(SEED, fields=("tokens", "loss_mask"))
        digests, digest = dict[int, str](), 0
        for step in range(STEPS):
            digest = add_step(digest, step, batch_digest(sampler.batch(step)["tokens"]))
            digests[step + 1] = digest_text(digest)
        lines = (self.folder / run / "log" / METRICS).read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        trained = [row for row in rows if row["kind"] == "train"]
        assert {row["step"] for row in trained} == digests.keys()
        for row in trained:
            assert row["digest"] == digests[row["step"]]
        assert rows[-1]["status"] == "complete"
        return {row["step"] - 1: repr(row["loss"]) for row in trained if "loss" in row}


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def place() -> tuple[str, int, int]:
    """Return the coordinator's address, and count and index of this process."""
    address, count, index = os.environ[PLACE].split()
    return address, int(count), int(index)


def add_loss(seen: str, step: int, loss: float) -> None:
    """Note the loss of a step, in full."""
    with (Path(seen) / "losses.txt").open("a") as file:
        file.write(f"{step} {loss!r}\n")


def labels(batch: Mapping[str, Any]) -> Any:
    """Return the targets of a batch, with the label -100 for what is not learned."""
    learned = np.where(batch["loss_mask"] == 0, -100, batch["tokens"])
    return learned[:, 1:]
