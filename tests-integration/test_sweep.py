"""A sweep of 24 proxies on four sources finds the blend of its held-out set.

The sources have one alphabet and contradict each other: each is a Markov chain of its
own, and the model sees one token back. So it has to average, and the best blend to
train on is the blend that it is tested on.
"""

from __future__ import annotations

import csv
import io
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import forked
import numpy as np
import pytest
from roxxel import Roxxel
from roxxel.config import load_config

from .conftest import environment

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

pytestmark = pytest.mark.long

BEST = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
ALPHABET = 64

MODEL = """
import optax
from flax import nnx


def make(total_steps):
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Embed(64, 32, rngs=rngs), nnx.Linear(32, 64, rngs=rngs))
    rate = optax.cosine_decay_schedule(0.05, total_steps)
    return model, nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param), loss


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()
"""

CONFIG = """\
model = "tiny:make"
save_path = "big"
primary = "a"

[sources]
a = "a_*.rox"
b = { path = "b_*.rox", policy = "repeat" }
c = { path = "c_*.rox", policy = "repeat" }
d = { path = "d_*.rox", policy = "repeat" }

[[phases]]
tokens = 400_000
batch_size = 16
seq_len = 33
weights = { a = 0.25, b = 0.25, c = 0.25, d = 0.25 }

[eval]
sources = { a = "valid_a.rox", b = "valid_b.rox", c = "valid_c.rox", d = "valid_d.rox" }

[[eval.phases]]
steps = 20
batch_size = 16
seq_len = 33
weights = { a = 0.4, b = 0.3, c = 0.2, d = 0.1 }
"""

SWEEP = """\
config = "run.toml"
scale = 0.25
save_path = "{folder}"

[drawn]
number = {number}
concentration = 6
seed = 1
"""


def chains(seed: int, number: int) -> list[npt.NDArray[np.int64]]:
    """Return texts of the Markov chain that a seed makes."""
    chain = np.random.default_rng(seed)
    steps = chain.dirichlet(np.full(ALPHABET, 0.05), size=ALPHABET).cumsum(1)
    random = np.random.default_rng([seed, number])
    tokens = np.zeros((number, 500), np.int64)
    for place in range(1, 500):
        odds = random.random((number, 1))
        after = (steps[tokens[:, place - 1]] < odds).sum(1)
        tokens[:, place] = np.minimum(after, ALPHABET - 1)
    return list(tokens)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    for seed, name in enumerate(BEST):
        Roxxel(folder / f"{name}_*.rox").write(chains(seed, 120), vocab_size=ALPHABET)
        held_out = Roxxel(folder / f"valid_{name}.rox")
        held_out.write(chains(seed, 16), vocab_size=ALPHABET)
    (folder / "tiny.py").write_text(MODEL)
    (folder / "run.toml").write_text(CONFIG)
    for name, number in (("whole", 24), ("killed", 8)):
        text = SWEEP.format(folder=name, number=number)
        (folder / f"{name}.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder of compiled programs."""
    return tmp_path_factory.mktemp("programs")


def started(project: Path, cache: Path, *arguments: str) -> subprocess.Popen[str]:
    return forked.Popen(
        [sys.executable, "-m", "roxxel", "sweep", *arguments],
        env=environment(1, cache),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def swept(project: Path, cache: Path, *arguments: str) -> str:
    with started(project, cache, *arguments) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return printed


@pytest.fixture(scope="module")
def whole(project: Path, cache: Path) -> str:
    """Run the sweep in one go, after one of its runs; return what it printed."""
    swept(project, cache, "whole.toml", "--part", "0/24")
    of_one = {file.name for file in cache.rglob("*-cache")}
    printed = swept(project, cache, "whole.toml", "--write", "best.toml")
    of_all = {file.name for file in cache.rglob("*-cache")}
    assert of_one
    assert of_all == of_one, "a blend has programs of its own"
    return printed


def test_the_recommended_blend_is_that_of_the_held_out_set(
    project: Path, whole: str
) -> None:
    [phase] = load_config(project / "best.toml").schedule.phases

    assert phase.weights is not None
    assert {n: round(abs(phase.weights[n] - x), 3) for n, x in BEST.items()} == {
        name: pytest.approx(0, abs=0.1) for name in BEST
    }, whole
    assert sum(phase.weights.values()) == pytest.approx(1, abs=1e-3)


def test_a_killed_and_repeated_sweep_has_the_rows_of_a_longer_one(
    project: Path, cache: Path, whole: str
) -> None:
    assert "24 of 24 runs are finished" in whole
    for run in ("run 3 of 8", "run 4 of "):
        with started(project, cache, "killed.toml") as process:
            assert process.stdout is not None
            seen = False
            for line in process.stdout:
                seen = seen or run in line
                if seen and line.startswith("step 100/"):
                    break
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    assert not (project / "killed" / "sweep.csv").exists()

    swept(project, cache, "killed.toml")

    killed, longer = (
        (project / name / "sweep.csv").read_text().splitlines()
        for name in ("killed", "whole")
    )
    assert len(killed) == 1 + 8 * len(BEST)
    assert {*killed} <= {*longer}


def test_a_renamed_source_uses_the_old_rows(
    project: Path, cache: Path, whole: str, tmp_path: Path
) -> None:
    project = shutil.copytree(project, tmp_path / "renamed")
    before = (project / "whole" / "sweep.csv").read_text()
    for file in project.glob("b_*"):
        file.rename(project / file.name.replace("b_", "beta_"))
    renamed = CONFIG.replace('b = { path = "b_*', 'beta = { path = "beta_*')
    renamed = renamed.replace("b = 0.25", "beta = 0.25")
    (project / "run.toml").write_text(renamed)

    printed = swept(project, cache, "whole.toml")

    assert "24 runs, of which 24 are finished" in printed
    after = (project / "whole" / "sweep.csv").read_text()
    rows = [list(csv.DictReader(io.StringIO(text))) for text in (before, after)]
    names = [[row.pop("name") for row in each] for each in rows]
    assert rows[0] == rows[1]
    assert names[1] == ["beta" if name == "b" else name for name in names[0]]
    assert whole.count("recommends") == printed.count("recommends") == 1
