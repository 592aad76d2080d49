"""A function of state and batch, compiled ahead for every shape of batch.

The constructor traces the function for all shapes, so a wrong loss function fails
before the first update. A background thread then compiles the programs in the order in
which the run needs them, so the first step of a phase rarely waits for the compiler.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax
from roxxel_ckpt.activity import doing
from roxxel_store.screen import short_size

from roxxel_train._files.folder import AUTOTUNE, cache_folder
from roxxel_train._step.given import explained, how_called
from roxxel_train._step.loss import LOSS_WEIGHT
from roxxel_train._step.traced import Findings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from jax.sharding import Mesh

    from roxxel_train._step.step import Tree

_POLL_S = 0.1
_ANNOUNCE_AFTER_S = 1.0
_GPUS = {"gpu", "cuda", "rocm"}
_LEAST_COMPILED = "jax_persistent_cache_min_compile_time_secs"


def use_compilation_cache() -> list[str]:
    """Turn on JAX's persistent compilation cache unless the user has configured it.

    By default JAX does not cache programs that compile in less than a second. A start
    compiles dozens of them, most to make the model's arrays, so here the cache takes
    them too. Several processes on the CPU use no cache, because it would serve only
    process 0. A user without a home folder, as in many containers, gets no cache,
    because JAX would warn at every program that it compiles. Then the result is one
    sentence that tells the user; otherwise the result is empty.
    """
    settings = jax.config.values
    chosen = settings["jax_compilation_cache_dir"]
    if chosen or not settings["jax_enable_compilation_cache"]:
        return []
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        return []
    try:
        folder = cache_folder() / "jax"
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written")
    except OSError as error:
        note = (
            "every start compiles all programs anew, because their cache cannot be "
            f"made ({error}); set XDG_CACHE_HOME to a folder that can be written"
        )
        return [note]
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if settings[_LEAST_COMPILED] == 1:  # JAX's default
        jax.config.update(_LEAST_COMPILED, 0.0)
    return []


@dataclass(frozen=True)
class CompiledShape:
    """Compile time and memory of a program.

    Attributes:
        shape: Sequences and tokens of a batch.
        seconds: Duration of the compilation.
        device_bytes: Estimated memory that the program needs on each device, including
            the model and its optimizer; None if the compiler gives no estimate.
        step_s: Seconds of one step on this machine; None if no step was timed.
        activation_bytes: The part of `device_bytes` that is free again after a step. It
            falls with the rows and columns that a device holds at a time. held: These
            rows and columns; None if they are unknown.
    """

    shape: tuple[int, ...]
    seconds: float
    device_bytes: int | None
    step_s: float | None = None
    activation_bytes: int = 0
    held: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return the cost as one line."""
        rows, columns = self.shape
        line = f"compiled for batches of {rows} x {columns} in {self.seconds:.1f} s"
        if self.held is not None:
            line += f"; a device holds {self.held[0]} x {self.held[1]} at a time"
        if self.device_bytes is not None:
            line += f"; about {short_size(self.device_bytes)} a device"
        if self.step_s is not None:
            # A step may take milliseconds or minutes.
            digits = f"{self.step_s:.2g}" if self.step_s < 10 else f"{self.step_s:.0f}"
            line += f"; about {digits} s a step"
        return line


class CompiledAhead:
    """The compiled programs of a jitted `(state, batch)` function by shape of batch.

    The function returns a tuple whose second value is a dict. It may name the axes of
    `mesh`. The programs keep the shardings of `state`. `batches` has the shape, dtype
    and sharding of each batch (any pytree of arrays), in the order in which the run
    needs the programs. `found` is what the traced programs tell.
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
        self._function = function
        self._mesh = mesh
        self._run_folder = run_folder
        self._has_narrow = any(_is_narrow(x.dtype) for x in jax.tree.leaves(shapes))
        distinct = {_key(batch): batch for batch in batches}
        self._lowered: dict[Any, Any] = {}
        self.found = Findings()
        for key, batch in distinct.items():
            if jax.config.values["jax_disable_jit"]:
                break
            with jax.set_mesh(mesh), explained(how_called(batch)):
                traced = function.trace(shapes, batch)
                self._lowered[key] = traced.lower()
            self.found.add(traced.jaxpr.jaxpr, shapes, batch)
        self._compiled: dict[Any, Future[tuple[Any, CompiledShape]]] = {}

    @property
    def names(self) -> set[str] | None:
        """Keys of the dict that the function returns as its second value.

        None if the function was not traced, because `jax_disable_jit` is set.
        """
        if not self._lowered:
            return None
        return {
            name for lowered in self._lowered.values() for name in lowered.out_info[1]
        }

    def begin(
        self,
        compiler: Executor,
        batches: Iterable[Any],
        done: Callable[[CompiledShape], None] | None = None,
    ) -> None:
        """Start one compilation per batch shape, in order.

        The thread of `compiler` calls `done` after each compilation.
        """
        if is_debugging():
            return
        for key in dict.fromkeys(map(_key, batches)):
            if key not in self._compiled:
                self._compiled[key] = compiler.submit(self._compile, key, done)

    def program(
        self,
        batch: Any,
        give_up: Callable[[], bool] | None = None,
        status: Callable[[str], None] | None = None,
    ) -> Callable[[Tree, Any], Any] | None:
        """Wait for the compiled program of a batch; None when `give_up` returns True.

        `batch` may be live arrays or their shape, dtype and sharding. If the program is
        not compiled yet, `status` is called with a line for the user. While JAX is
        debugging, the result is the function itself.
        """
        if is_debugging():
            return self._debugged
        key = _key(batch)
        future = self._compiled[key]
        shape = " x ".join(map(str, _shape_of(key)))
        compiling = f"compiling for batches of {shape}"
        if status is not None and not future.done():
            status(compiling)
        with doing(compiling):
            while give_up is not None and not future.done():
                if give_up():
                    return None
                try:
                    future.result(_POLL_S)
                except NotYet:
                    continue
            program, _ = future.result()
            return program

    def shapes(self) -> tuple[CompiledShape, ...]:
        """Wait for every started compilation; return compile times and memory."""
        return tuple(future.result()[1] for future in self._compiled.values())

    def close(self) -> None:
        """Cancel the compilations that have not started, and forget unfinished ones.

        A compilation that still runs ends in JAX's cache, where the next start finds
        it.
        """
        for key, future in list(self._compiled.items()):
            if not future.done():
                future.cancel()
                del self._compiled[key]

    def _debugged(self, state: Tree, batch: Any) -> Any:
        with jax.set_mesh(self._mesh), explained(how_called(batch)):
            return self._function(state, batch)

    def _compile(
        self, key: Any, done: Callable[[CompiledShape], None] | None
    ) -> tuple[Any, CompiledShape]:
        start = time.perf_counter()
        options = kernel_options(self._mesh, self._run_folder)
        program = self._lowered[key].compile(compiler_options=options or None)
        seconds = time.perf_counter() - start
        memory = program.memory_analysis()
        shape = CompiledShape(
            _shape_of(key),
            seconds,
            None if memory is None else _device_bytes(memory),
            activation_bytes=0 if memory is None else int(memory.temp_size_in_bytes),
        )
        if done is not None:
            done(shape)
        return (self._as_jitted if self._has_narrow else program), shape

    def _as_jitted(self, state: Tree, batch: Any) -> Any:
        """Call the function as `jax.jit` does.

        JAX 0.10 refuses to call a program that was compiled ahead with int4: it
        expects a layout of four bits, which no array has. `jax.jit` takes the program
        from JAX's persistent cache, or compiles once more.
        """
        with jax.set_mesh(self._mesh):
            return self._function(state, batch)


def is_debugging() -> bool:
    """Return whether JAX should run the functions themselves, to find an error.

    JAX cannot disable the compilation of a program that is compiled ahead of time. If
    such a program computes a NaN, JAX cannot name the operation, which it can for a
    function.
    """
    settings = jax.config.values
    names = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs")
    return any(settings[name] for name in names)


def check_weight(programs: CompiledAhead, averages: str) -> None:
    """Check that the weight of a mean is known if a loss leaves out masked tokens.

    `averages` says what is averaged. Without a weight, a part without tokens that count
    would enter the mean as a loss of 0.
    """
    if "loss_mask" in programs.found.used and LOSS_WEIGHT not in (programs.names or ()):
        raise ValueError(
            f"{averages}, but the loss uses 'loss_mask' and loss_fn returns no "
            f"{LOSS_WEIGHT!r}, so a part without unmasked tokens would count as a loss "
            f'of 0; return loss, {{"{LOSS_WEIGHT}": n}}, where n is the number of '
            'tokens over which the loss is a mean, such as batch["loss_mask"][:, '
            "1:].sum()"
        )


@contextmanager
def compiling_thread(
    status: Callable[[str], None] | None = None,
) -> Generator[Executor]:
    """Yield a thread for compilations.

    Leaving the context waits for the thread. If the wait takes longer than a second,
    `status` is called with a line for the user.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="roxxel-compile") as thread:
        try:
            yield thread
        finally:
            if status is not None:
                try:
                    # This job does nothing; it is done when all others are.
                    thread.submit(int).result(_ANNOUNCE_AFTER_S)
                except NotYet:
                    status("waiting for the compiler, which cannot be interrupted")


def kernel_options(mesh: Mesh, run_folder: Path | None) -> dict[str, str | bool]:
    """Return `compiler_options` that let a resumed run use the same GPU kernels.

    For a GPU, XLA times several kernels and picks the fastest. On a busy GPU, or after
    a restart, another kernel may be the fastest, and may sum in another order. With
    these options XLA reads earlier choices from `autotune/` in the run's folder, and
    adds new choices there. The result is empty for other devices and without a folder.
    """
    if run_folder is None or mesh.devices.flat[0].platform not in _GPUS:
        return {}
    # XLA neither creates this folder nor checks the version of its files.
    folder = run_folder / AUTOTUNE / metadata.version("jaxlib")
    folder.mkdir(parents=True, exist_ok=True)
    return {"xla_gpu_per_fusion_autotune_cache_dir": str(folder.absolute())}


def _is_narrow(dtype: Any) -> bool:
    """Return whether a dtype has less than eight bits."""
    return re.search(r"(int|float)[1-6](_|$)", dtype.name) is not None


def _key(batch: Any) -> Any:
    return tuple((x.shape, x.dtype, x.sharding) for x in jax.tree.leaves(batch))


def _shape_of(key: Any) -> tuple[int, ...]:
    return key[0][0]  # the first array is a field, with rows and columns


def _device_bytes(memory: Any) -> int:
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
