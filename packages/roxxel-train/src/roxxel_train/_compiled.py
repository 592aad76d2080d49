"""A function of state and batch, compiled ahead for every shape of batch.

Construction traces the function for all shapes, so a wrong loss function is an error
before anything runs. A background thread then compiles the shapes in the order of
need, so a change of phase does not wait for the compiler.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from roxxel_train._cache import kernel_options
from roxxel_train._units import in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from roxxel_train._model_state import Tree

_POLL_S = 0.1
_ANNOUNCE_AFTER_S = 1.0


@dataclass(frozen=True)
class CompiledShape:
    """Cost of a compiled program.

    Attributes:
        shape: Sequences and tokens of a batch.
        seconds: Duration of the compilation.
        device_bytes: Estimated memory that the program needs on each device, including
            the model and its optimizer; None if the compiler gives no estimate.
    """

    shape: tuple[int, ...]
    seconds: float
    device_bytes: int | None

    def __str__(self) -> str:
        """Return the cost as one line."""
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
        batches: Shape, dtype and sharding of the batches, each of an array or of a dict
            of arrays, in the order of need.
        mesh: The mesh whose axes the function may name.
        run_folder: Folder that keeps the choice of GPU kernels; None keeps none.

    Raises:
        TypeError: The loss function does not return a loss.
    """

    def __init__(
        self,
        function: Any,
        state: Tree,
        batches: Iterable[Any],
        mesh: Any,
        run_folder: Path | None = None,
    ) -> None:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        self._mesh = mesh
        self._run_folder = run_folder
        distinct = {_key(batch): batch for batch in batches}
        with jax.set_mesh(mesh):
            self._lowered = {
                key: function.lower(shapes, batch) for key, batch in distinct.items()
            }
        self._compiled: dict[Any, Future[tuple[Any, CompiledShape]]] = {}

    @property
    def names(self) -> set[str]:
        """Keys of the dict that the function returns second, for any batch."""
        return {
            name for lowered in self._lowered.values() for name in lowered.out_info[1]
        }

    def begin(
        self,
        compiler: Executor,
        batches: Iterable[Any],
        done: Callable[[CompiledShape], None] | None = None,
    ) -> None:
        """Start to compile for `batches`, in order, in the background.

        Args:
            compiler: Executor that compiles one program after the other.
            batches: Some of the batches of the constructor.
            done: Called after each compilation, on the compiling thread.
        """
        for key in dict.fromkeys(map(_key, batches)):
            known = self._compiled.get(key)
            if known is None or known.cancelled():
                self._compiled[key] = compiler.submit(self._compile, key, done)

    def program(
        self,
        batch: Any,
        give_up: Callable[[], bool] | None = None,
        status: Callable[[str], None] | None = None,
    ) -> Callable[[Tree, Any], Any] | None:
        """Return the compiled program for a batch, after waiting for the compiler.

        Args:
            batch: Live arrays, or their shape, dtype and sharding.
            give_up: Called while waiting; a true result ends the wait with None.
            status: Called with a line for the user if there is a wait.
        """
        key = _key(batch)
        future = self._compiled[key]
        if status is not None and not future.done():
            status(f"compiling for batches of {' x '.join(map(str, key[0][0]))}")
        while give_up is not None and not future.done():
            if give_up():
                return None
            try:
                future.result(_POLL_S)
            except NotYet:
                continue
        return future.result()[0]

    def shapes(self) -> tuple[CompiledShape, ...]:
        """Wait for every compilation that was started and return the costs."""
        return tuple(future.result()[1] for future in self._compiled.values())

    def close(self) -> None:
        """Cancel the compilations that wait for the compiler."""
        for future in self._compiled.values():
            future.cancel()

    def _compile(
        self, key: Any, done: Callable[[CompiledShape], None] | None
    ) -> tuple[Any, CompiledShape]:
        start = time.perf_counter()
        options = kernel_options(self._mesh, self._run_folder)
        program = self._lowered[key].compile(compiler_options=options or None)
        seconds = time.perf_counter() - start
        shape = CompiledShape(key[0][0], seconds, _device_bytes(program))
        if done is not None:
            done(shape)
        return program, shape


@contextmanager
def compiling_thread(
    status: Callable[[str], None] | None = None,
) -> Generator[Executor]:
    """Yield a thread that compiles; leave the block after its last compilation.

    Args:
        status: Called with a line for the user if leaving has to wait.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="roxxel-compile") as thread:
        try:
            yield thread
        finally:
            if status is not None:
                try:
                    thread.submit(int).result(_ANNOUNCE_AFTER_S)
                except NotYet:
                    status("waiting for the compiler, which cannot be interrupted")


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
