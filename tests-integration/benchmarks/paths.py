"""Counts the modules whose functions run for a batch, a save, a write or a command.

Each action runs once before, so that nothing is loaded, compiled or opened for the
first time. Then Python's profiler records the action in all threads. Generated
functions, such as the constructor of a dataclass, do not count. A document is recorded
three times: alone in the middle of a write, with the whole write, which also opens and
commits the corpus, and with the preparation of a file.

The commands `ls`, `report` and `replay`, which is refused, ask the folder of a small
run. Modules of the package roxxel itself are left out of every count.

Returns are counted too: pairs of modules of which the first calls the second, and the
second was entered earlier. There a reader who follows the path goes back up, to a
module that they have left.

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
from roxxel.cli import main as command
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
MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx

def make():
    model = nnx.Embed(64, 4, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    return model, optimizer, lambda model, batch: jnp.square(model(batch)).mean()
"""
CONFIG = """
model = "paths_model:make"
save_path = "run"
sources = { self = "corpus.rox" }
phases = [{ steps = 3, batch_size = 2, seq_len = 8 }]
trainer = { checkpoint_every = 1 }
"""


class Trace:
    """The modules of a path in the order of their first call, and its returns."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self._calls: set[tuple[str, str]] = set()

    @property
    def num_returns(self) -> int:
        """Pairs of modules of which the second was entered first."""
        at = {module: number for number, module in enumerate(self.modules)}
        return sum(at[called] < at[caller] for caller, called in self._calls)

    def note(self, caller: str | None, called: str) -> None:
        """Note a call of a function, from a module or from outside."""
        if called not in self.modules:
            self.modules.append(called)
        if caller in self.modules:
            self._calls.add((caller, called))


def main() -> dict[str, Trace]:
    """Print and return the modules and returns of each path."""
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
                **commands(calls, Path(folder) / "asked"),
            }
            with running_bucket(Path(folder)):
                # A process that has saved to a URL remembers it.
                url = f"s3://data/{Path(folder).name}"
                paths |= saved_and_restored(calls, url, " in a bucket")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print(f"Python {sys.version.split()[0]}, JAX {jax.__version__}")
    for name, trace in paths.items():
        print(f"{name}: {len(trace.modules)} modules, {trace.num_returns} returns")
        print(*(f"  {module}" for module in trace.modules), sep="\n")
    return paths


class Calls:
    """The modules of Roxxel whose functions are called while they are recorded."""

    def __init__(self) -> None:
        self._trace: Trace | None = None

    @contextlib.contextmanager
    def recorded(self) -> Generator[Trace]:
        """Give a trace that holds the calls once the context is left."""
        trace = self._trace = Trace()
        try:
            yield trace
        finally:
            self._trace = None

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call; for `sys.setprofile`."""
        del argument
        trace = self._trace
        if trace is None or event != "call" or frame.f_code.co_filename[0] == "<":
            return
        called = _module_of(frame)
        if called is None:
            return
        caller = frame.f_back
        while caller is not None and _module_of(caller) is None:
            caller = caller.f_back
        trace.note(None if caller is None else _module_of(caller), called)


def _module_of(frame: FrameType) -> str | None:
    name: str = frame.f_globals.get("__name__", "")
    return name if name.startswith("roxxel_") else None


def written(calls: Calls, folder: Path) -> dict[str, Trace]:
    """Write a corpus; return the traces of some documents and of another write."""
    documents = [list(range(50_000))] * 40
    alone: list[Trace] = []

    def read() -> Iterator[list[int]]:
        yield from documents[:20]
        with calls.recorded() as trace:
            yield from documents[20:]
        alone.append(trace)

    Roxxel(folder / "first_*.rox").write(read(), separator=0, dtype="uint16")
    with calls.recorded() as whole:
        Roxxel(folder / "tokens_*.rox").write(documents, separator=0, dtype="uint16")
    return {"a document written": alone[0], "a write": whole}


def prepared(calls: Calls, folder: Path) -> Trace:
    """Return the trace of the second preparation of a file of JSON lines."""
    lines = [json.dumps({"text": f"document {number}"}) + "\n" for number in range(99)]
    for name in ("before", "after"):
        source = folder / f"{name}.jsonl"
        source.write_text("".join(lines))
        with calls.recorded() as trace, contextlib.redirect_stderr(io.StringIO()):
            write_files(folder / f"{name}_*.rox", [source], tokenizer="bytes")
    return trace


def batch(calls: Calls, folder: Path) -> Trace:
    """Return the trace of one batch of a stream that is under way.

    This is the shortest of five recordings: a thread that looks every few milliseconds
    after pages and files is in some of them.
    """
    phases = [Phase(steps=40, batch_size=8, seq_len=129)]
    recordings: list[Trace] = []
    sampler = Curriculum(Roxxel(folder / "tokens_*.rox"), phases).sampler(seed=0)
    with device_stream(sampler, 0, 40, prefetch=PREFETCH) as stream:
        for _ in range(5):
            next(stream)
        for _ in range(5):
            with calls.recorded() as trace:
                # The first of these requests the batch that the last of them delivers.
                for _ in range(1 + PREFETCH):
                    next(stream)
            recordings.append(trace)
    return min(recordings, key=lambda each: len(each.modules))


def commands(calls: Calls, folder: Path) -> dict[str, Trace]:
    """Return the traces of commands that ask a run of three steps, the second time."""
    folder.mkdir()
    Roxxel(folder / "corpus.rox").write([range(40)] * 40, vocab_size=64)
    (folder / "paths_model.py").write_text(MODEL)
    config, run = folder / "run.toml", str(folder / "run")
    config.write_text(CONFIG)
    refused = ["replay", run, "--without", "self:39"]
    words = {"ls": ["ls", run], "report": ["report", run], "a refused replay": refused}
    found: dict[str, Trace] = {}
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        command(["train", str(config)])
        for name, each in words.items():
            command(each)
            with calls.recorded() as trace:
                command(each)
            found[name] = trace
    return found


def saved_and_restored(
    calls: Calls, folder: str | Path, where: str
) -> dict[str, Trace]:
    """Return the traces of a second save and of a second restore."""
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
