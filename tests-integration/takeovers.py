"""Programs that save into one folder, whose requests a test lets through one by one.

Each program runs on threads of this process. It reaches the folder, in a bucket or on a
disk, by an alias of its own, so for `roxxel_ckpt` it is another program. A request
waits at a gate until the test lets it through, loses its answer, or holds it back: a
request that is held back fails, and takes effect only later. A program that is cut off
gets no further request through: its machine is lost.

On a disk, a request is the lock of the folder, a look at the manifest, or the delivery
or the deletion of files. No program is suspended while it holds the lock, because the
others would wait for it. But it may be killed there, before any change.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from flax import nnx
from roxxel_ckpt import (
    CheckpointBucketError,
    Checkpointer,
    CheckpointError,
    CheckpointWriteError,
)
from roxxel_ckpt._place.disk import LocalFolder
from roxxel_store.client import Bucket
from roxxel_store.swap import DiskFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

TIMEOUT_S = 600.0
# How often a schedule starts a program, decides for the newest one, cuts one off, and
# lets a request arrive that was held back.
START_RATE, NEWEST_RATE, CUT_RATE, ARRIVAL_RATE = 0.04, 0.6, 0.01, 0.1
# The changes that a commit on a disk makes while it holds the lock.
MOST_CHANGES = 8


class Gate:
    """The programs of one run, and the only way of their requests to its folder.

    Attributes:
        acknowledged: Steps whose save has succeeded, in this order.
        late: Requests that were held back; each takes effect when it is called.
    """

    def __init__(self, root: Path, name: str, *, on_disk: bool = False) -> None:
        self.root, self.name, self.on_disk = root, name, on_disk
        self.folder = root / "data" / name / "checkpoints"
        self.programs: list[Program] = []
        self.acknowledged: list[int] = []
        self.late: list[Callable[[], object]] = []

    def start(self, num_saves: int = 100) -> Program:
        """Start a program, which restores the newest step and saves the next ones."""
        alias = f"p{len(self.programs)}"
        with contextlib.suppress(FileExistsError):
            (self.root / alias).symlink_to("data")
        place = f"{self.root}/{alias}" if self.on_disk else f"s3://{alias}"
        program = Program(self, f"{place}/{self.name}/checkpoints", num_saves)
        self.programs.append(program)
        program.thread.start()
        return program

    def let_arrive(self) -> None:
        """Let the oldest request that was held back take effect, if there is one."""
        if self.late:
            with contextlib.suppress(CheckpointError, OSError):
                self.late.pop(0)()

    def manifest(self) -> dict[str, Any]:
        """Return what the manifest lists; nothing before the first commit."""
        path, nothing = self.folder / "manifest.json", {"steps": []}
        if not path.exists():
            return nothing
        return nothing | json.loads(path.read_bytes())["listed"]

    def committed(self) -> dict[str, int]:
        """Return the committed steps, by the names of their folders."""
        if self.on_disk:
            return {
                path.name: int(path.name)
                for path in self.folder.glob("[0-9]*")
                if path.name.isdecimal()
            }
        names = [each["name"] for each in self.manifest()["steps"]]
        return {name: int(name.partition(".")[0]) for name in names}

    def of(self, place: str) -> Program | None:
        """Return the program that reaches a path or URL by its own name."""
        own = (each for each in self.programs if place.startswith(each.url))
        return next(own, None)

    def check(self) -> None:
        """Check that every committed step is whole and no acknowledged one is lost."""
        steps = self.committed()
        for name in steps:
            folder = self.folder / name
            assert (folder / "checkpoint.json").exists(), f"{name} is not whole"
            body = json.loads((folder / "digests/0.json").read_bytes())["body"]
            for file, (size, *_) in body["files"].items():
                there = folder / file
                assert there.exists(), f"{there.relative_to(self.folder)} is missing"
                assert there.stat().st_size == size
        entries = [] if self.on_disk else self.manifest()["steps"]
        marked = [each["name"] for each in entries if each["is_damaged"]]
        marked += [path.name for path in self.folder.glob("*.damaged*")]
        assert not marked, f"a program took {marked} for damaged"
        newest = max(self.acknowledged, default=0)
        found = max(steps.values(), default=0)
        assert newest <= found, f"step {newest} has disappeared"


class Program:
    """A program that saves checkpoints.

    Attributes:
        error: What ended the program; None while it runs, and if it has succeeded.
        restored: The step from which the program continued; None before that.
    """

    def __init__(self, gate: Gate, url: str, num_saves: int) -> None:
        self.url = url
        self.error: CheckpointError | None = None
        self.restored: int | None = None
        self._gate, self._num_saves = gate, num_saves
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._is_cut = False
        self._has_ended = False
        # On a disk: whether it does what was let through, or holds the lock, and when
        # it dies there.
        self.is_acting = self.holds_lock = False
        self._changes_left: int | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended, or was cut off for good."""
        return self._has_ended or self._is_cut

    def step(self, fate: str = "through", index: int = 0) -> str | None:
        """Decide the next request; return what it is, None if the program has ended."""
        with self._changed:
            self._wait_for(lambda: bool(self._waiting) or self._has_ended)
            if not self._waiting:
                return None
            request = self._waiting.pop(index % len(self._waiting))
        request.decide(fate)
        with self._changed:
            self._wait_for(lambda: request.is_done)
            if self._gate.on_disk:  # what it does with the lock is no request
                self._wait_for(lambda: bool(self._waiting) or self._has_ended)
        return request.name

    def die_within(self, num_changes: int) -> None:
        """Kill the program, the next times it holds the lock, at one of the changes."""
        self._changes_left = num_changes

    def change(self) -> None:
        """Change something while the program holds the lock, if it is alive."""
        if self._changes_left is not None:
            self._changes_left -= 1
            self._is_cut = self._is_cut or self._changes_left < 0
        if self._is_cut:
            raise CheckpointWriteError(f"{self.url}: was killed")

    def finish(self) -> None:
        """Let the program run to its end."""
        while self.step() is not None:
            pass
        self.thread.join(TIMEOUT_S)

    def cut_off(self) -> None:
        """Lose the machine of the program: none of its requests arrives any more."""
        self._is_cut = True
        self.finish()

    def request(self, name: str, act: Callable[[], Any]) -> Any:
        """Make a request, which waits at the gate."""
        request = _Request(name)
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
        try:
            fate = "cut" if self._is_cut else request.fate()
            if fate == "cut" or self._is_cut:
                raise CheckpointBucketError(f"{self.url}/{name}: cut off")
            if fate == "late":
                self._gate.late.append(act)
                raise CheckpointBucketError(f"{self.url}/{name}: no answer in time")
            result = act()
            if fate == "lost":
                raise CheckpointBucketError(f"{self.url}/{name}: the answer is lost")
            return result
        finally:
            with self._changed:
                request.is_done = True
                if request in self._waiting:
                    self._waiting.remove(request)
                self._changed.notify_all()

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        assert self._changed.wait_for(is_so, TIMEOUT_S), f"{self.url} hangs"

    def _run(self) -> None:
        try:
            with contextlib.suppress(CheckpointError):
                self._save_steps()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _save_steps(self) -> None:
        model = nnx.Dict(weights=nnx.Param(np.zeros(3, np.float32)))
        saving = Checkpointer(self.url, model, max_to_keep=2, timeout=TIMEOUT_S)
        try:
            saving.check_shared()
            start = self.restored = saving.restore()
            assert (np.asarray(model.weights[...]) == start).all()
            for step in range(start + 1, start + 1 + self._num_saves):
                model.weights.set_value(np.full(3, step, np.float32))
                saving.save(step)
                saving.wait()
                self._gate.acknowledged.append(step)
        except CheckpointError as error:
            self.error = error


class _Request:
    """A request at the gate."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_done = False
        self._fate = ""
        self._decided = threading.Event()

    def decide(self, fate: str) -> None:
        self._fate = fate
        self._decided.set()

    def fate(self) -> str:
        assert self._decided.wait(TIMEOUT_S)
        return self._fate


@contextlib.contextmanager
def gated(root: Path, name: str, *, on_disk: bool = False) -> Generator[Gate]:
    """Yield the gate of the run `name` below `root`, which a bucket may serve."""
    gate = Gate(root, name, on_disk=on_disk)
    with _disk_of(gate) if on_disk else _bucket_of(gate):
        try:
            yield gate
        finally:
            for program in gate.programs:
                program.cut_off()


@contextlib.contextmanager
def _bucket_of(gate: Gate) -> Generator[None]:
    """Let the requests to a bucket wait at a gate."""
    call = Bucket._call  # pyright: ignore[reportPrivateUsage]

    def through(bucket: Bucket, name: str, *args: Any, **options: Any) -> Any:
        program = gate.of(bucket.url)
        if program is None:
            return call(bucket, name, *args, **options)
        return program.request(name, lambda: call(bucket, name, *args, **options))

    with mock.patch.object(Bucket, "_call", through):
        yield


@contextlib.contextmanager
def _disk_of(gate: Gate) -> Generator[None]:
    """Let the programs wait at a gate before they lock, read, deliver and delete."""
    locked, rename = DiskFolder.locked, Path.rename

    @contextlib.contextmanager
    def locking(folder: DiskFolder) -> Generator[None]:
        program = gate.of(folder.url)
        assert program is not None
        program.request("lock", lambda: None)
        with locked(folder):
            program.holds_lock = True
            try:
                yield
            finally:
                program.holds_lock = False

    def renaming(path: Path, target: Path) -> Path:
        program = gate.of(str(path))
        if program is not None and program.holds_lock:
            program.change()
        return rename(path, target)

    with contextlib.ExitStack() as stack:
        for owner, name in (
            (DiskFolder, "get"),
            (DiskFolder, "replace"),
            (DiskFolder, "delete_folder"),
            (LocalFolder, "deliver"),
        ):
            through = _waiting(gate, name, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, through))
        stack.enter_context(mock.patch.object(DiskFolder, "locked", locking))
        stack.enter_context(mock.patch.object(Path, "rename", renaming))
        yield


def _waiting(gate: Gate, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a folder on a disk that waits at a gate."""

    def through(folder: Any, *args: Any) -> Any:
        program = gate.of(str(getattr(folder, "url", folder)))
        if program is not None and program.holds_lock:
            program.change()
        if program is None or program.holds_lock or program.is_acting:
            return act(folder, *args)

        def acting() -> Any:
            program.is_acting = True
            try:
                return act(folder, *args)
            finally:
                program.is_acting = False

        return program.request(name, acting)

    return through


def run_schedule(gate: Gate, seed: int) -> None:
    """Let two or three programs save in a random order of their requests.

    Programs are suspended, cut off and started between any two requests. Some requests
    lose their answer, and some take effect only later. After every request, all
    committed steps are there.
    """
    chosen = random.Random(seed)
    to_start, running = chosen.choice([2, 3]), list[Program]()
    while to_start or running:
        if to_start and (not running or chosen.random() < START_RATE):
            running.append(gate.start(num_saves=2))
            to_start -= 1
        program = (
            running[-1] if chosen.random() < NEWEST_RATE else chosen.choice(running)
        )
        if chosen.random() < CUT_RATE:
            program.cut_off()
        elif gate.on_disk:
            if chosen.random() < CUT_RATE:
                program.die_within(chosen.randrange(MOST_CHANGES))
            program.step("through", chosen.randrange(8))
        else:
            fate = chosen.choices(["through", "lost", "late"], [94, 3, 3])[0]
            program.step(fate, chosen.randrange(8))
        if chosen.random() < ARRIVAL_RATE:
            gate.let_arrive()
        running = [each for each in running if not each.has_ended]
        gate.check()
    while gate.late:
        gate.let_arrive()
        gate.check()
    newest = max(gate.acknowledged, default=0)
    last = gate.start(num_saves=1)
    last.finish()
    gate.check()
    assert last.error is None, f"seed {seed}: {last.error}"
    assert last.restored is not None
    assert last.restored >= newest
    files = (path for path in gate.folder.rglob("*/*") if path.is_file())
    left = {path.relative_to(gate.folder).parts[0] for path in files}
    steps = gate.committed().keys()
    assert left <= steps, f"seed {seed}: {left - steps} are left"
