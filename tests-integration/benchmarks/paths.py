"""Counts the modules whose functions run for a batch, a save, a restore or a write.

Each action runs once before, so that nothing is loaded, compiled or opened for the
first time. Then Python's profiler records the action in all threads. Generated
functions, such as the constructor of a dataclass, do not count. A document is recorded
three times: alone in the middle of a write, with the whole write, which also opens and
commits the corpus, and with the preparation of a file.

    python tests-integration/benchmarks/paths.py
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import optax
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_loader import device_stream
from roxxel_prepare import write_files

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import FrameType

PREFETCH = 2


def main() -> dict[str, list[str]]:
    """Print and return the modules of each path, in the order of their first call."""
    calls = Calls()
    # Threads must start with the profiler: it does not reach those that live already.
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    try:
        with tempfile.TemporaryDirectory() as folder:
            paths = {
                **written(calls, Path(folder)),
                "a prepared file": prepared(calls, Path(folder)),
                "a batch": batch(calls, Path(folder)),
                **saved_and_restored(calls, Path(folder) / "checkpoints", ""),
            }
            with running_bucket(Path(folder)):
                # A process that has saved to a URL remembers it.
                url = f"s3://data/{Path(folder).name}"
                paths |= saved_and_restored(calls, url, " in a bucket")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print(f"Python {sys.version.split()[0]}, JAX {jax.__version__}")
    for name, modules in paths.items():
        print(f"{name}: {len(modules)} modules")
        print(*(f"  {module}" for module in modules), sep="\n")
    return paths


class Calls:
    """The modules of Roxxel whose functions are called while they are recorded."""

    def __init__(self) -> None:
        self._found: dict[str, None] | None = None

    @contextlib.contextmanager
    def recorded(self) -> Generator[list[str]]:
        """Give a list that holds the modules once the context is left."""
        modules: list[str] = []
        self._found = found = {}
        try:
            yield modules
        finally:
            self._found = None
            modules += found

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the module of a call; for `sys.setprofile`."""
        del argument
        found = self._found
        if found is None or event != "call" or frame.f_code.co_filename[0] == "<":
            return
        module: str = frame.f_globals.get("__name__", "")
        if module.startswith("roxxel_"):
            found[module] = None


def written(calls: Calls, folder: Path) -> dict[str, list[str]]:
    """Write a corpus; return the modules of some documents and of another write."""
    documents = [list(range(50_000))] * 40
    alone: list[str] = []

    def read() -> Iterator[list[int]]:
        yield from documents[:20]
        with calls.recorded() as modules:
            yield from documents[20:]
        alone.extend(modules)

    Roxxel(folder / "first_*.rox").write(read(), separator=0, dtype="uint16")
    with calls.recorded() as whole:
        Roxxel(folder / "tokens_*.rox").write(documents, separator=0, dtype="uint16")
    return {"a document written": alone, "a write": whole}


def prepared(calls: Calls, folder: Path) -> list[str]:
    """Return the modules of the second preparation of a file of JSON lines."""
    lines = [json.dumps({"text": f"document {number}"}) + "\n" for number in range(99)]
    for name in ("before", "after"):
        source = folder / f"{name}.jsonl"
        source.write_text("".join(lines))
        with calls.recorded() as modules, contextlib.redirect_stderr(io.StringIO()):
            write_files(folder / f"{name}_*.rox", [source], tokenizer="bytes")
    return modules


def batch(calls: Calls, folder: Path) -> list[str]:
    """Return the modules of one batch of a stream that is under way.

    This is the shortest of five recordings: a thread that looks every few milliseconds
    after pages and files is in some of them.
    """
    phases = [Phase(steps=40, batch_size=8, seq_len=129)]
    recordings: list[list[str]] = []
    sampler = Curriculum(Roxxel(folder / "tokens_*.rox"), phases).sampler(seed=0)
    with device_stream(sampler, 0, 40, prefetch=PREFETCH) as stream:
        for _ in range(5):
            next(stream)
        for _ in range(5):
            with calls.recorded() as modules:
                # The first of these requests the batch that the last of them delivers.
                for _ in range(1 + PREFETCH):
                    next(stream)
            recordings.append(modules)
    return min(recordings, key=len)


def saved_and_restored(
    calls: Calls, folder: str | Path, where: str
) -> dict[str, list[str]]:
    """Return the modules of a second save and of a second restore."""
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    with Checkpointer(folder, model, optimizer) as checkpointer:
        checkpointer.save(1)
        checkpointer.wait()
        checkpointer.restore()
        with calls.recorded() as saved:
            checkpointer.save(2)
            checkpointer.wait()
        with calls.recorded() as restored:
            checkpointer.restore()
    return {f"a save{where}": saved, f"a restore{where}": restored}


if __name__ == "__main__":
    main()
