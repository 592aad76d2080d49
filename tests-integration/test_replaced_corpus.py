"""A corpus that is replaced, appended to or damaged never changes a batch silently.

A sampler gives the tokens of the corpus that it was made for, or raises a `ShardError`.
This also holds for readers that are wrapped, subclassed or pickled.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import Curriculum, Phase, Roxxel
from roxxel_format import ShardError, TokenReader

from .conftest import run_python
from .runs import rows

if TYPE_CHECKING:
    import numpy.typing as npt
    from roxxel_curriculum import Sampler

VOCAB_SIZE = 1000
PHASES = [Phase(12, 4, 65)]
SEED = 5


def documents(seed: int, count: int = 120) -> list[npt.NDArray[np.int64]]:
    """Return random documents; those of two seeds differ in length and in tokens."""
    random = np.random.default_rng(seed)
    return [
        random.integers(1, VOCAB_SIZE, random.integers(50, 400)) for _ in range(count)
    ]


def write(corpus: Roxxel, seed: int, exist: Any = "error") -> Roxxel:
    """Write documents into shards of at most 32 KiB."""
    corpus.write(
        documents(seed),
        separator=0,
        vocab_size=VOCAB_SIZE,
        max_shard_bytes=1 << 15,
        exist=exist,
    )
    return corpus


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """Return the pattern of a corpus of several shards."""
    pattern = str(tmp_path / "corpus" / "c_*.rox")
    (tmp_path / "corpus").mkdir()
    assert write(Roxxel(pattern), 1).num_shards > 2
    return pattern


@pytest.fixture
def untouched(pattern: str, tmp_path: Path) -> Sampler:
    """Return a sampler over a copy of the corpus that nobody changes."""
    shutil.copytree(Path(pattern).parent, tmp_path / "copy")
    return Curriculum(Roxxel(tmp_path / "copy" / "c_*.rox"), PHASES).sampler(SEED)


# The methods of a sampler, each with a result that can be compared.
CALLS: dict[str, Callable[[Sampler], object]] = {
    "batch": lambda sampler: sampler.batch(3).tolist(),
    "rows": lambda sampler: sampler.rows(3, [0, 1]).tolist(),
    "columns": lambda sampler: sampler.rows(3, [1], slice(4, 9)).tolist(),
    "locate": lambda sampler: sampler.locate(3, 1),
    "windows": lambda sampler: [
        values.tolist()
        for windows in [sampler.windows(3)]
        for values in (windows.source, windows.start, windows.stop)
    ],
    "will_need": lambda sampler: sampler.will_need(3, 4),
}


def is_refused(call: Callable[[Sampler], object], sampler: Sampler) -> bool:
    """Return whether a sampler raises the error of a replaced corpus."""
    try:
        call(sampler)
    except ShardError as error:
        return "replaced" in str(error)
    return False


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("read_before", [0, 6])
@pytest.mark.parametrize("by", ["the open corpus", "another process's object"])
def test_replaced_corpus_gives_its_old_tokens_or_an_error(
    name: str, read_before: int, by: str, pattern: str, untouched: Sampler
) -> None:
    call = CALLS[name]
    corpus = Roxxel(pattern)
    sampler = Curriculum(corpus, PHASES).sampler(SEED)
    for step in range(read_before):
        sampler.batch(step)

    write(corpus if by == "the open corpus" else Roxxel(pattern), 2, "replace")

    assert is_refused(call, sampler) or call(sampler) == call(untouched)


@pytest.mark.parametrize("name", CALLS)
def test_pickled_sampler_refuses_the_corpus_that_replaced_its_own(
    name: str, pattern: str, untouched: Sampler
) -> None:
    call = CALLS[name]
    sampler = Curriculum(Roxxel(pattern), PHASES).sampler(SEED)
    pickled = pickle.dumps(sampler)

    write(Roxxel(pattern), 2, "replace")

    again = pickle.loads(pickled)  # noqa: S301 - our own bytes
    assert is_refused(call, again) or call(again) == call(untouched)


class Forwarding(TokenReader):
    """Reads other tokens than the corpus that it holds."""

    def __init__(self, reader: Roxxel) -> None:
        self._reader = reader

    @property
    def num_tokens(self) -> int:
        return self._reader.num_tokens

    def read(
        self, starts: Any, length: int, dtype: Any = None, out: Any = None
    ) -> npt.NDArray[Any]:
        tokens = self._reader.read(starts, length, dtype, out)
        tokens += 1
        tokens %= VOCAB_SIZE
        return tokens


class NextTokens(Roxxel):
    """Reads other tokens than the shards hold."""

    def read(
        self, starts: Any, length: int, dtype: Any = None, out: Any = None
    ) -> npt.NDArray[Any]:
        tokens = super().read(starts, length, dtype, out)
        tokens += 1
        tokens %= VOCAB_SIZE
        return tokens


def forwarding(pattern: str) -> TokenReader:
    return Forwarding(Roxxel(pattern))


@pytest.mark.parametrize("make", [forwarding, NextTokens])
def test_reader_of_the_users_own_is_read_at_every_step(
    make: Callable[[str], TokenReader], pattern: str, untouched: Sampler
) -> None:
    expected = (untouched.batch(5) + 1) % VOCAB_SIZE
    alone = Curriculum(make(pattern), PHASES).sampler(SEED)
    in_order = Curriculum(make(pattern), PHASES).sampler(SEED)
    for step in range(5):
        in_order.batch(step)

    assert np.array_equal(alone.batch(5), expected)
    assert np.array_equal(in_order.batch(5), expected)
    assert np.array_equal(in_order.rows(5, [0, 1]), expected[:2])


@pytest.mark.parametrize("opened", [False, True])
def test_pickled_subclass_reads_what_the_subclass_reads(
    opened: bool, pattern: str, untouched: Sampler
) -> None:
    sampler = Curriculum(NextTokens(pattern), PHASES).sampler(SEED)
    if opened:
        sampler.batch(0)

    again = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own bytes

    expected = (untouched.batch(5) + 1) % VOCAB_SIZE
    assert np.array_equal(again.batch(5), expected)
    assert np.array_equal(again.rows(5, [0, 1]), expected[:2])


RunInline = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_inline(tmp_path: Path, compilation_cache: Path) -> RunInline:
    """Run the text of a program with arguments; warnings are errors."""

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_python(tmp_path, compilation_cache, "-c", program, *arguments)

    return run


RESUMED = """
import json, sys
from roxxel import Curriculum, Phase, Roxxel
pattern, state = sys.argv[1], json.loads(sys.argv[2])
curriculum = Curriculum(Roxxel(pattern), [Phase(12, 4, 65)])
sampler = curriculum.sampler(5, state=state)
print(json.dumps([sampler.batch(step).tolist() for step in range(12)]))
print(json.dumps(sampler.state(6) == state))
"""


def test_run_resumes_on_the_corpus_it_began_with(
    pattern: str, untouched: Sampler, run_inline: RunInline
) -> None:
    sampler = Curriculum(Roxxel(pattern), PHASES).sampler(SEED)
    first = [sampler.batch(step).tolist() for step in range(4)]

    write(Roxxel(pattern), 2, "append")

    first += [sampler.batch(step).tolist() for step in (4, 5)]
    state = json.dumps(sampler.state(6))
    done = run_inline(RESUMED, pattern, state)
    assert done.returncode == 0, done.stderr
    batches, same_state = map(json.loads, done.stdout.splitlines())
    assert batches == [untouched.batch(step).tolist() for step in range(12)]
    assert batches[:6] == first
    assert same_state


# Appends to the corpus at its first evaluation, and is killed at the second.
TRAINED = """
import os, signal, sys
import jax.numpy as jnp, numpy as np, optax
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer
pattern, folder, accident = sys.argv[1:]
evaluations = []
rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Embed(1000, 4, rngs=rngs), nnx.Linear(4, 1000, rngs=rngs))
optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)

def loss_fn(model, batch):
    loss = optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()
    column = jnp.arange(batch.shape[1])
    return loss, {"checksum": (batch * column).sum(dtype=jnp.int32)}

def eval_fn(state):
    evaluations.append(1)
    if accident == "yes" and len(evaluations) == 1:
        random = np.random.default_rng(2)
        Roxxel(pattern).write(
            [random.integers(1, 1000, 300) for _ in range(100)],
            separator=0, vocab_size=1000, max_shard_bytes=1 << 15, exist="append",
        )
    if accident == "yes" and len(evaluations) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"evaluations": 1.0}

Trainer(
    model, optimizer, Curriculum(Roxxel(pattern), [Phase(12, 4, 65)]), loss_fn, folder,
    eval_fn=eval_fn, eval_every=4, checkpoint_every=3, log_every=1, seed=5,
).run()
leaves = nnx.to_pure_dict(nnx.state(model, nnx.Param))
np.savez(folder + "/final.npz", leaves["layers"][0]["embedding"])
"""


def test_trainer_resumes_on_a_corpus_that_has_grown_and_was_compacted(
    pattern: str, tmp_path: Path, run_inline: RunInline
) -> None:
    shutil.copytree(tmp_path / "corpus", tmp_path / "copy")
    copied = str(tmp_path / "copy" / "c_*.rox")
    unbroken = run_inline(TRAINED, copied, "unbroken", "no")
    assert unbroken.returncode == 0, unbroken.stderr
    num_tokens = Roxxel(pattern).num_tokens

    killed = run_inline(TRAINED, pattern, "run", "yes")
    assert killed.returncode == -9, killed.stderr
    assert Roxxel(pattern).num_tokens > num_tokens
    assert Roxxel(pattern).compact().num_merged > 2
    resumed = run_inline(TRAINED, pattern, "run", "no")

    assert resumed.returncode == 0, resumed.stderr
    log = (tmp_path / "run" / "system.log").read_text()
    assert "resumed from step 6" in log or "resumed from step 3" in log
    assert rows(tmp_path / "run") == rows(tmp_path / "unbroken")
    with (
        np.load(tmp_path / "run" / "final.npz") as one,
        np.load(tmp_path / "unbroken" / "final.npz") as other,
    ):
        assert one["arr_0"].tobytes() == other["arr_0"].tobytes()


# Another program truncates the shard: starting it takes longer than a reader may trust
# a file size that it has read.
TRUNCATED = """
import subprocess, sys
import numpy as np
from roxxel import Roxxel
pattern, read = sys.argv[1:]
corpus = Roxxel(pattern)
path = corpus.paths[1]
starts = np.arange(0, corpus.num_tokens - 65, 65)
tokens = corpus.read(starts, 65)
print(corpus.num_shards, flush=True)
truncate = "import os, sys; os.truncate(sys.argv[1], 4096)"
subprocess.run([sys.executable, "-c", truncate, path], check=True)
if read == "read":
    corpus.read(starts, 65)
elif read == "tokens":
    int(np.sum(corpus.tokens[:]))
else:
    sum(int(document.sum()) for document in corpus.documents)
print("read all")
"""


@pytest.mark.parametrize("read", ["read", "tokens", "documents"])
def test_truncated_shard_of_several_is_an_error_not_a_crash(
    read: str, pattern: str, run_inline: RunInline
) -> None:
    done = run_inline(TRUNCATED, pattern, read)

    assert int(done.stdout) > 2
    assert done.returncode == 1, f"exit code {done.returncode}: {done.stderr}"
    assert "ShardError" in done.stderr.splitlines()[-1]
    assert ".rox" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("token", [2**31, 2**32 - 1])
def test_tokens_beyond_int32_fail_when_the_curriculum_is_made(
    token: int, tmp_path: Path
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    small = np.arange(500, dtype=np.uint32)
    corpus.write([small, np.array([token], np.uint32)])

    with pytest.raises((TypeError, ValueError), match="int32") as caught:
        Curriculum(corpus, [Phase(2, 2, 9)])

    assert str(token) in str(caught.value)


def test_small_tokens_of_a_wide_type_are_trained_on(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write([np.array([0, 2**31 - 1] * 100, np.uint32)])

    batch = Curriculum(corpus, [Phase(2, 2, 9)]).sampler(0).batch(0)

    assert batch.dtype == np.int32
    assert batch.max() == 2**31 - 1
