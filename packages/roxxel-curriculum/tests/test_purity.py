"""A batch depends on corpus, curriculum, seed and step, and on nothing else.

Every kind of reader must give the bytes of the plain corpus, whichever steps were read
before, in whatever order, by however many threads.
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_format import Roxxel, ShardError, TokenReader
from roxxel_format.foreign import FlatTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_curriculum import Field

STEPS = 45


class Shifted(TokenReader):
    """Adds one to the tokens that another reader reads."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @property
    def num_tokens(self) -> int:
        return self._reader.num_tokens

    def read(self, starts: Any, length: int, dtype: Any = None, out: Any = None) -> Any:
        tokens = self._reader.read(starts, length, dtype, out)
        tokens += 1
        return tokens


class ShiftedRoxxel(Roxxel):
    """A subclass that adds one to the tokens it reads."""

    def read(self, starts: Any, length: int, dtype: Any = None, out: Any = None) -> Any:
        tokens = super().read(starts, length, dtype, out)
        tokens += 1
        return tokens


class Expected:
    """The batches of the plain corpora, with a short `repr` for hypothesis."""

    def __init__(self, web: Roxxel, code: Roxxel) -> None:
        self._batches = {
            blended: [
                sampler_of(web, code, blended=blended).batch(step)
                for step in range(STEPS)
            ]
            for blended in (False, True)
        }

    def batch(self, step: int, *, blended: bool) -> Any:
        return self._batches[blended][step]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


class InMemory(TokenReader):
    """A reader of an array, with the two members that it needs."""

    def __init__(self, corpus: Roxxel) -> None:
        self._tokens = np.asarray(corpus.tokens[:])

    @property
    def num_tokens(self) -> int:
        return self._tokens.size

    def read(self, starts: Any, length: int, dtype: Any = None, out: Any = None) -> Any:
        index = np.asarray(starts)[:, None] + np.arange(length)
        if out is None:
            out = np.empty(index.shape, dtype or self._tokens.dtype)
        out[...] = self._tokens[index]
        return out


def flat_copy(corpus: Roxxel) -> Path:
    path = Path(str(corpus.filepath).replace("_*.rox", ".npy"))
    np.save(path, np.asarray(corpus.tokens[:]))
    return path


# Each makes a reader, and says what it adds to the tokens of the corpus.
READERS: dict[str, tuple[Callable[[Roxxel], Any], int]] = {
    "plain": (lambda corpus: Roxxel(corpus.filepath), 0),
    "list of paths": (lambda corpus: Roxxel(list(corpus.paths)), 0),
    "foreign": (lambda corpus: FlatTokens(flat_copy(corpus)), 0),
    "in memory": (InMemory, 0),
    "wrapped": (lambda corpus: Shifted(Roxxel(corpus.filepath)), 1),
    "wrapped twice": (lambda corpus: Shifted(Shifted(Roxxel(corpus.filepath))), 2),
    "subclassed": (lambda corpus: ShiftedRoxxel(corpus.filepath), 1),
    "pickled": (lambda corpus: pickled(Roxxel(corpus.filepath)), 0),
    "wrapped and pickled": (lambda c: pickled(Shifted(Roxxel(c.filepath))), 1),
}


def sampler_of(web: Any, code: Any, *, blended: bool) -> Sampler:
    first = Phase(30, 8, 65, {"self": 2, "code": 1 if blended else 0})
    return Curriculum(
        web,
        [first, Phase(STEPS - 30, 8, 129)],
        {"code": code},
        policies={"self": "repeat", "code": "repeat"},
        skips=[(12, 3)],
    ).sampler(5)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Roxxel, Roxxel]:
    folder = tmp_path_factory.mktemp("purity")
    rng = np.random.default_rng(0)
    made: list[Roxxel] = []
    for name in ("web", "code"):
        corpus = Roxxel(folder / f"{name}_*.rox")
        documents = (rng.integers(1, 50_000, 150, np.uint16) for _ in range(200))
        corpus.write(documents, max_shard_bytes=20_000)
        made.append(Roxxel(corpus.filepath))
        assert made[-1].num_shards > 1
    return made[0], made[1]


@pytest.fixture(scope="module")
def expected(corpora: tuple[Roxxel, Roxxel]) -> Expected:
    return Expected(*corpora)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kind=st.sampled_from(sorted(READERS)),
    blended=st.booleans(),
    steps=st.lists(st.integers(0, STEPS - 1), max_size=30),
    in_order=st.booleans(),
    hint=st.integers(0, STEPS),
)
def test_any_order_of_steps_gives_the_bytes_of_the_plain_corpus(
    corpora: tuple[Roxxel, Roxxel],
    expected: Expected,
    kind: str,
    blended: bool,
    steps: list[int],
    in_order: bool,
    hint: int,
) -> None:
    make, added = READERS[kind]
    sampler = sampler_of(make(corpora[0]), make(corpora[1]), blended=blended)
    if in_order:
        steps = [*range(STEPS), *steps]
    sampler.will_need(0, hint)

    for step in (*steps, *steps[::-1]):
        batch = sampler.batch(step)
        wanted = expected.batch(step, blended=blended) + added
        assert batch.dtype == np.int32
        assert batch.tobytes() == wanted.tobytes()
        rows = sampler.rows(step, slice(2, 5))
        assert rows.tobytes() == wanted[2:5].tobytes()
        batch[:] = 0  # the batch is the caller's


@pytest.mark.parametrize("blended", [False, True])
@pytest.mark.parametrize("kind", sorted(READERS))
def test_eight_threads_read_the_same_bytes(
    corpora: tuple[Roxxel, Roxxel],
    expected: Expected,
    kind: str,
    blended: bool,
) -> None:
    make, added = READERS[kind]
    shared = sampler_of(make(corpora[0]), make(corpora[1]), blended=blended)
    rng = np.random.default_rng(1)
    orders = [rng.permutation(STEPS) for _ in range(6)]
    orders += [np.arange(STEPS), np.arange(STEPS)[::-1]]

    def read(order: Any) -> list[tuple[int, bytes]]:
        return [(int(step), shared.batch(step).tobytes()) for step in order]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(read, orders):
            for step, batch in found:
                wanted = expected.batch(step, blended=blended) + added
                assert batch == wanted.tobytes()


def test_a_pickled_sampler_reads_what_the_sampler_reads(
    corpora: tuple[Roxxel, Roxxel],
) -> None:
    for make, _ in READERS.values():
        sampler = sampler_of(make(corpora[0]), make(corpora[1]), blended=True)
        sampler.batch(3)
        copy = pickled(sampler)
        for step in (0, 7, 44):
            assert copy.batch(step).tobytes() == sampler.batch(step).tobytes()


class Replaced(InMemory):
    """A corpus that says that it was replaced, once it was read."""

    @property
    def dtype(self) -> Any:
        return self._tokens.dtype

    @property
    def fingerprint(self) -> str:
        return "0" * 32

    def read(self, *_: Any, **__: Any) -> Any:
        raise ShardError("the corpus was replaced")


@pytest.mark.parametrize("fields", [["tokens"], ["tokens", "source"]])
def test_every_way_to_tokens_raises_the_error_of_the_reader(
    corpora: tuple[Roxxel, Roxxel], fields: list[Field]
) -> None:
    web, code = Replaced(corpora[0]), Replaced(corpora[1])
    phase = Phase(9, 8, 65, {"self": 1, "code": 1})
    sampler = Curriculum(web, [phase], {"code": code}).sampler(5, fields=fields)

    for read in (
        lambda: sampler.batch(3),
        lambda: sampler.rows(3, [0, 1]),
        lambda: sampler.rows(3, slice(0, 8), slice(0, 3)),
    ):
        with pytest.raises(ShardError, match="the corpus was replaced"):
            read()
