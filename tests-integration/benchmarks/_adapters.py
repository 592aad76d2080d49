"""The libraries of the comparison, each in a process of its own.

Each script in `peers/` runs in its own environment, which uv makes from the
dependencies that the script names. The process reads and writes JSON lines (see
`peers/serve.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

PEERS = Path(__file__).parent / "peers"
HERE = ("ours", "limits", "peer_memmap")  # need no more than this environment has
TIMEOUT_S = 600


@dataclass(frozen=True)
class Adapter:
    """One way to make batches.

    Attributes:
        name: Its name in the report.
        script: Which script in `peers/` knows it.
        kind: Roxxel's own, a peer, or a limit.
        variant: Which way, if the script knows several.
        put: How its numpy batches become a `jax.Array`.
        blends: Whether it can blend corpora.
        to: The targets for which it is measured; a limit of placing arrays does not
            apply to numpy.
    """

    name: str
    script: str
    kind: Literal["ours", "peer", "limit"] = "peer"
    variant: str = ""
    put: str = "callback"
    blends: bool = False
    to: tuple[str, ...] = ("numpy", "jax")


OURS = "roxxel"
GATHER = "gather"
ADAPTERS = (
    Adapter(OURS, "ours", "ours", blends=True),
    Adapter("roxxel, hints", "ours", "ours", "hints", to=("numpy",)),
    Adapter("memcpy", "limits", "limit", "memcpy"),
    Adapter("cast copy", "limits", "limit", "cast"),
    Adapter(GATHER, "limits", "limit", "gather"),
    Adapter(
        "memcpy, device_put", "limits", "limit", "memcpy", "device_put", to=("jax",)
    ),
    Adapter(
        "cast copy, device_put", "limits", "limit", "cast", "device_put", to=("jax",)
    ),
    Adapter(
        "gather, device_put", "limits", "limit", "gather", "device_put", to=("jax",)
    ),
    Adapter("memmap loop", "peer_memmap"),
    Adapter("grain, memory map", "peer_grain", variant="map", blends=True),
    Adapter(
        "grain, memory map, threads", "peer_grain", variant="map threads", blends=True
    ),
    Adapter("grain, ArrayRecord", "peer_grain", variant="records", blends=True),
    Adapter(
        "grain, ArrayRecord, threads",
        "peer_grain",
        variant="records threads",
        blends=True,
    ),
    Adapter("mosaicml-streaming", "peer_streaming", blends=True),
    Adapter("litdata", "peer_litdata", blends=True),
    Adapter("loadax", "peer_loadax"),
    Adapter("roxxel 0.9.14", "peer_roxxel_0_9_14", blends=True),
    Adapter(
        "roxxel 0.9.14, thread", "peer_roxxel_0_9_14", variant="threads", blends=True
    ),
    Adapter("datasets", "peer_datasets", blends=True),
)


class PeerError(Exception):
    """A peer's process ended, or could not do a job."""


class NotOfferedError(PeerError):
    """A library does not offer what a job needs."""


class Peer:
    """A script's process, which does one job at a time.

    Args:
        script: Name of a script in `peers/`.
        interpreter: Python with the script's dependencies; by default this one, or the
            one of an environment that uv makes.
        folder: Where the process runs.
    """

    def __init__(self, script: str, interpreter: str | None, folder: Path) -> None:
        path = str(PEERS / f"{script}.py")
        if interpreter is None and script in HERE:
            interpreter = sys.executable
        made = ["uv", "run", "--quiet", "--no-project", "--script", path]
        flags = os.environ.get("XLA_FLAGS", "")
        self._script = script
        self._log = folder / f"{script}.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [interpreter, path] if interpreter else made,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                start_new_session=True,  # uv has a child, which must end with it
                env=os.environ
                | {
                    "JAX_PLATFORMS": "cpu",
                    "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=1",
                    "HF_HUB_OFFLINE": "1",
                    "LITDATA_DISABLE_VERSION_CHECK": "1",
                },
            )

    def send(self, do: str, **fields: Any) -> None:
        """Ask for something."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do} | fields) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(self._last_words()) from None

    def receive(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return the answer; end the process if none comes in time.

        Raises:
            NotOfferedError: The library does not offer what the job needs.
            PeerError: There is no answer, or it is an error.
        """
        assert self._process.stdout is not None
        timer = threading.Timer(timeout_s, self._kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise PeerError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "not_offered" in answer:
            raise NotOfferedError(self._script)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a job, and return the answer."""
        self.send(do, **fields)
        return self.receive()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "nothing"
        return f"{self._script} ended; the last it said is {said[:300]!r}"


def chosen(words: list[str]) -> list[Adapter]:
    """Return Roxxel, and the adapters that the words name; without words, all.

    Args:
        words: Names of adapters or scripts, `"peers"` or `"limits"`.
    """
    known = {a: {a.name, a.script, f"{a.kind}s"} for a in ADAPTERS}
    unknown = set(words).difference(*known.values())
    if unknown:
        raise SystemExit(
            f"unknown adapters {sorted(unknown)}; known are "
            f"{sorted(set[str]().union(*known.values()))}"
        )
    return [
        adapter
        for adapter, names in known.items()
        if not words or adapter.name == OURS or names & set(words)
    ]


class Crew:
    """The processes of the adapters that take part.

    Attributes:
        adapters: The adapters that take part.
        versions: Versions of the relevant distributions, by script.
        not_run: Reason for each missing adapter or script.
    """

    def __init__(
        self,
        adapters: list[Adapter],
        interpreters: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.adapters = adapters
        self.versions: dict[str, dict[str, str]] = {}
        self.not_run: dict[str, str] = {}
        self._interpreters = interpreters
        self._folder = folder
        self._running: dict[str, Peer] = {}
        self._writers: set[str] = set()
        for script in dict.fromkeys(adapter.script for adapter in adapters):
            try:
                self._start(script)
            except PeerError as error:
                self.not_run[script] = str(error)

    def _start(self, script: str) -> Peer:
        """Start a process, and keep it.

        An adapter that cannot be started no longer takes part.
        """
        try:
            peer, hello = self._greeted(script)
        except PeerError:
            self.versions.pop(script, None)
            raise
        self._running[script] = peer
        self.versions[script] = hello["versions"]
        if hello["writes"]:
            self._writers.add(script)
        return peer

    def _greeted(self, script: str) -> tuple[Peer, dict[str, Any]]:
        """Return a new process, and its description of itself."""
        peer = self._new(script)
        try:
            return peer, peer.ask("hello")
        except PeerError:
            peer.close()
            raise

    def _new(self, script: str) -> Peer:
        try:
            return Peer(script, self._interpreters.get(script), self._folder)
        except OSError as error:
            raise PeerError(str(error)) from error

    def has(self, adapter: Adapter) -> bool:
        """Return whether the adapter's process could be started."""
        return adapter.script in self.versions

    def writes(self, adapter: Adapter) -> bool:
        """Return whether the adapter writes its own corpus."""
        return adapter.script in self._writers

    def ask(self, adapter: Adapter, do: str, **fields: Any) -> dict[str, Any]:
        """Send a job to an adapter's process, and return the answer."""
        peer = self._running.get(adapter.script) or self._start(adapter.script)
        return peer.ask(do, **fields)

    def another(self, adapter: Adapter) -> Peer:
        """Return another process of an adapter; the caller closes it."""
        return self._greeted(adapter.script)[0]

    def failed(self, adapter: Adapter, what: str, error: PeerError) -> None:
        """Record what an adapter could not do, and end its process."""
        self.not_run.setdefault(f"{adapter.name}, {what}", str(error))
        if adapter.script in self._running:
            self._running.pop(adapter.script).close()

    def end(self) -> None:
        """End all processes; the next job of an adapter starts a new one."""
        while self._running:
            _, peer = self._running.popitem()
            peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
