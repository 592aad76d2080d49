"""Random intervals of runs of every kind, trained again, are equal bit for bit.

The runs have phases, blends, packed corpora, accumulation, averages and skipped spikes.
They were stopped, lost their newest checkpoint, and went on with an edited future.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
import tomlkit
from roxxel import Roxxel

from .conftest import PROGRAMS, SEVERAL_PROCESSES, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.long

MODEL = """
import optax
from flax import nnx
from roxxel.models import RecipeOptimizer


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(64, 8, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.hidden = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, tokens):
        x = self.drop(self.embed(tokens))
        return self.embed.attend(x + nnx.relu(self.hidden(x)))


def make(total_steps, rate=0.03, ema=0.0):
    model = Net()
    return model, RecipeOptimizer(model, total_steps, peak_rate=rate, ema=ema), loss


def loss(model, batch):
    tokens, mask = batch["tokens"], batch["loss_mask"][:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    weights = mask.sum(1)
    return (losses * mask).sum() / weights.sum().clip(1), {
        "loss_weight": weights.sum(),
        "row_loss": (losses * mask).sum(1) / weights.clip(1),
        "row_weight": weights,
    }
"""

KINDS: Sequence[dict[str, Any]] = (
    {"checkpoint_every": 3, "ema": 0.9, "packed": True, "is_lost": True},
    {"checkpoint_every": 4, "grad_accum_steps": 2, "spikes": 8, "evaluates": True},
    {"checkpoint_every": "continuous", "ema": 0.9, "spikes": 1, "max_to_keep": 9},
    {"checkpoint_every": 2, "packed": True, "grad_accum_steps": 2, "is_lost": True},
)
EDITS = ("steps", "weights", "rate", "log_every", "accumulation", "without", "phase")


@dataclass
class Case:
    """A run of some kind, with random numbers, edits and intervals."""

    seed: int
    checkpoint_every: int | str
    ema: float = 0.0
    packed: bool = False
    grad_accum_steps: int = 1
    spikes: int = 0
    evaluates: bool = False
    is_lost: bool = False
    max_to_keep: int = 3
    config: dict[str, Any] = field(default_factory=dict[str, Any])

    def write(self, folder: Path) -> None:
        """Write corpora, model, the config of each start, and the intervals."""
        folder.mkdir()
        draw = random.Random(self.seed)
        numbers = np.random.default_rng(self.seed)
        for name, count in (("web_*", 120), ("code", 60), ("long_*", 60), ("held", 9)):
            lengths = numbers.integers(5, 60, count)
            documents = (numbers.integers(0, 64, length) for length in lengths)
            pack = 9 if self.packed and name == "long_*" else None
            Roxxel(folder / f"{name}.rox").write(documents, vocab_size=64, pack=pack)
        (folder / "tiny.py").write_text(MODEL)
        self.config = self._begun(draw)
        starts: list[tuple[str, int | None, bool]] = []
        last = 0
        for number in range(4):
            file = f"{number}.toml"
            (folder / file).write_text(tomlkit.dumps(self.config))
            until = min(last + draw.randrange(3, 7), self._total() - 1)
            # Another start follows, and goes on from the checkpoint before.
            is_lost = self.is_lost and number == 1
            starts.append((file, None if number == 3 else until, is_lost))
            if not is_lost:
                last = until
            for edit in draw.sample(EDITS, 2):
                self._edit(edit, last, draw)
        (folder / "starts.json").write_text(json.dumps(starts))
        # The newest config was not used.
        end = sum(
            phase["steps"]
            for phase in tomlkit.parse((folder / "3.toml").read_text())["phases"]
        )
        cuts = [sorted(draw.sample(range(end + 1), 2)) for _ in range(3)]
        (folder / "intervals.json").write_text(json.dumps(cuts))

    def _begun(self, draw: random.Random) -> dict[str, Any]:
        weights = {"self": 0.6, "code": 0.2, "long": 0.2}
        config: dict[str, Any] = {
            "model": "tiny:make",
            "save_path": "run",
            "seed": draw.randrange(99),
            "sources": {
                "self": "web_*.rox",
                "code": {"path": "code.rox", "policy": "repeat"},
                "long": {"path": "long_*.rox", "policy": "repeat"},
            },
            "phases": [
                {"steps": 10, "batch_size": 16, "seq_len": 9, "weights": weights},
                {"steps": 6, "batch_size": 32, "seq_len": 9, "weights": weights},
            ],
            "model_args": {"ema": self.ema},
            "trainer": {
                "checkpoint_every": self.checkpoint_every,
                "log_every": draw.choice([1, 2, 3]),
                "max_to_keep": self.max_to_keep,
                "fields": ["tokens", "loss_mask"],
                "grad_accum_steps": self.grad_accum_steps,
            },
        }
        if self.spikes:
            rule = {"deviations": self.spikes, "window": 8}
            config["trainer"]["skip_spikes"] = rule
        if self.evaluates:
            config["trainer"]["eval_every"] = 5
            phase = {"steps": 1, "batch_size": 8, "seq_len": 9}
            config["eval"] = {"sources": {"self": "held.rox"}, "phases": [phase]}
        return config

    def _total(self) -> int:
        return sum(phase["steps"] for phase in self.config["phases"])

    def _edit(self, edit: str, done: int, draw: random.Random) -> None:
        """Change what follows step `done`."""
        phases, trainer = self.config["phases"], self.config["trainer"]
        match edit:
            case "steps":
                phases[-1]["steps"] += 2
            case "weights" if done < 10:
                phases[1]["weights"] = {"self": 0.2, "code": 0.8}
            case "rate":
                self.config["model_args"]["rate"] = draw.choice([0.01, 0.05])
            case "log_every":
                trainer["log_every"] = draw.choice([1, 2, 3])
            case "accumulation":
                trainer["grad_accum_steps"] = draw.choice([1, 2])
            case "without":
                without = self.config.setdefault("without", {"self": []})
                without["self"].append(len(without["self"]))
            case "phase":
                added = {"steps": 3, "batch_size": 8, "seq_len": 17}
                phases.append(added | {"weights": {"self": 1.0}})
            case _:
                pass


def verified(
    cases: Sequence[Case],
    folder: Path,
    launch: Sequence[str],
    devices: int,
    cache: Path,
) -> list[Any]:
    """Return what the program says of each interval."""
    for number, case in enumerate(cases):
        case.write(folder / str(number))
    names = [str(folder / str(number)) for number in range(len(cases))]
    done = forked.run(
        [sys.executable, *launch, str(PROGRAMS / "verifying.py"), *names],
        env=environment(devices, cache),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Gloo writes lines that begin with [ too.
    return [json.loads(x) for x in done.stdout.splitlines() if x.startswith('["')]


def check(found: list[Any], num_intervals: int) -> None:
    assert [text for _, is_equal, *_, text in found if not is_equal] == []
    assert len(found) == num_intervals
    assert all(rows + saves > 0 for _, _, rows, saves, _ in found)


@pytest.mark.parametrize("devices", [1, 8])
def test_random_intervals_are_bit_equal(
    tmp_path: Path, compilation_cache: Path, devices: int
) -> None:
    cases = [Case(number + devices, **kind) for number, kind in enumerate(KINDS)]
    if devices == 8:
        del cases[1]

    found = verified(cases, tmp_path, (), devices, compilation_cache)

    check(found, 3 * len(cases))


@SEVERAL_PROCESSES
def test_random_intervals_on_two_processes_are_bit_equal(
    tmp_path: Path, compilation_cache: Path
) -> None:
    launch = "-m", "roxxel_train.local", "--processes", "2"

    found = verified([Case(5, **KINDS[0])], tmp_path, launch, 1, compilation_cache)

    check(found, 3)
