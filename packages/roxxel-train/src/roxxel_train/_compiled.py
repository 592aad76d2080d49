"""A function of state and batch, compiled ahead for every shape of batch.

It is traced for all of them at once, so that a wrong loss function is found before
anything runs, and compiled in a thread of its own in the order of need, so that a
change of phase costs no wait.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from roxxel_train._units import in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Executor, Future

    from roxxel_train._model_state import Tree

_LOOK_EVERY_S = 0.1
_SAY_AFTER_S = 1.0


@dataclass(frozen=True)
class CompiledShape:
    """What compiling for one shape of batch took, and what running it will.

    Attributes:
        shape: Sequences and tokens of a batch.
        seconds: Duration of the compilation.
        device_bytes: Estimate of the memory that it takes on each device, the model and
            its optimizer included; None where the compiler gives none.
    """

    shape: tuple[int, ...]
    seconds: float
    device_bytes: int | None

    def __str__(self) -> str:
        """Return it as one line."""
        rows, columns = self.shape
        line = f"compiled for batches of {rows} x {columns} in {self.seconds:.1f} s"
        if self.device_bytes is None:
            return line
        return f"{line}; about {in_bytes(self.device_bytes)} a device"


class CompiledAhead:
    """The compiled program for each shape of batch.

    Args:
        function: `(state, batch)` to anything and a dict, already jitted.
        state: The live state; its shardings are kept.
        batches: Shape, dtype and sharding of the batches, each an array's or a dict of
            them, in the order of need.
        mesh: The mesh that the function may refer to by the names of its axes.

    Raises:
        TypeError: The loss function returns something else than a loss.
    """

    def __init__(
        self,
        function: Any,
        state: Tree,
        batches: Iterable[Any],
        mesh: Any,
    ) -> None:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        distinct = {_key(batch): batch for batch in batches}
        with jax.set_mesh(mesh):
            self._lowered = {
                key: function.lower(shapes, batch) for key, batch in distinct.items()
            }
        self._compiled: dict[Any, Future[tuple[Any, CompiledShape]]] = {}
        # A shape has one dtype and sharding in a run; to hash those costs more.
        self._latest: tuple[Any, Any] | None = None

    @property
    def names(self) -> set[str]:
        """Names in the dict that the function returns second, for any batch."""
        return {name for one in self._lowered.values() for name in one.out_info[1]}

    def begin(
        self,
        compiler: Executor,
        batches: Iterable[Any],
        done: Callable[[CompiledShape], None] | None = None,
    ) -> None:
        """Begin to compile for `batches`, in order, in the background.

        Args:
            compiler: Compiles one after the other.
            batches: As they were given to the constructor.
            done: Told of each program that is compiled, on the compiling thread.
        """
        for key in dict.fromkeys(map(_key, batches)):
            known = self._compiled.get(key)
            if known is None or known.cancelled():
                self._compiled[key] = compiler.submit(self._compile, key, done)

    def for_batch(
        self,
        batch: Any,
        give_up: Callable[[], bool] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Callable[[Tree, Any], Any] | None:
        """Return the compiled program for this batch; waits until it is compiled.

        Args:
            batch: Live arrays, or what describes them.
            give_up: Asked during the wait; once it is true the answer is None.
            say: Told what is waited for, if it is.
        """
        if self._latest is not None and self._latest[0] == _shapes(batch):
            return self._latest[1]
        key = _key(batch)
        future = self._compiled[key]
        if say is not None and not future.done():
            say(f"compiling for batches of {' x '.join(map(str, key[0][0]))}")
        while give_up is not None and not future.done():
            if give_up():
                return None
            try:
                future.result(_LOOK_EVERY_S)
            except NotYet:
                continue
        program = future.result()[0]
        self._latest = _shapes(batch), program
        return program

    def shapes(self) -> tuple[CompiledShape, ...]:
        """Wait for every program that has begun and return what each took."""
        return tuple(future.result()[1] for future in self._compiled.values())

    def close(self) -> None:
        """Give up what has not begun to compile."""
        for future in self._compiled.values():
            future.cancel()

    def _compile(
        self, key: Any, done: Callable[[CompiledShape], None] | None
    ) -> tuple[Any, CompiledShape]:
        began = time.perf_counter()
        program = self._lowered[key].compile()
        seconds = time.perf_counter() - began
        shape = CompiledShape(key[0][0], seconds, _device_bytes(program))
        if done is not None:
            done(shape)
        return program, shape


@contextmanager
def compiling_thread(say: Callable[[str], None] | None = None) -> Generator[Executor]:
    """Lend a thread that compiles; leave once it is done with what it has begun.

    Args:
        say: Told what is waited for at the end, if it is.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="roxxel-compile") as thread:
        try:
            yield thread
        finally:
            if say is not None:
                try:
                    thread.submit(int).result(_SAY_AFTER_S)
                except NotYet:
                    say("waiting for the compiler, which cannot be broken off")


def _shapes(batch: Any) -> Any:
    """Return what tells the batches of one run apart."""
    if isinstance(batch, dict):
        return tuple(x.shape for x in batch.values())
    return batch.shape


def _key(batch: Any) -> Any:
    return tuple((x.shape, x.dtype, x.sharding) for x in jax.tree.leaves(batch))


def _device_bytes(program: Any) -> int | None:
    memory = program.memory_analysis()
    if memory is None:
        return None
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
