"""Compares Roxxel with other loaders and with the limits of the machine, in one run.

Every loader does the same work. First it writes documents of log-normal length, in the
form that it reads best; this is timed once for each corpus. Then it reads int32 batches
of shuffled samples, as numpy arrays or as jax.Array, and the batches are checked. The
loaders run in turn, round after round, so that a change of the machine's speed affects
all of them; a ratio compares figures of one round. The defaults are small; the
published figures come from:

    compare.py --mib 64 --rounds 5 --seconds 0.5
    compare.py --mib 1024 --dtypes uint16 --rounds 5 --seconds 1 --scale full

Peers run in environments that uv makes from the dependencies that their scripts name.
To use an existing environment, pass its interpreter
(`--interpreter peer_grain=/path/python`). The report names each peer that could not
run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import _report
import _scaling
import numpy as np
from _adapters import (
    ADAPTERS,
    GATHER,
    Adapter,
    Crew,
    NotOfferedError,
    PeerError,
    chosen,
)
from _held import Held
from _report import Record

Ask = Callable[[Adapter, int], dict[str, float]]

POSITIONS = 1 << 29  # from a source to the next, see peers/delivered.py


@dataclass(frozen=True)
class Setting:
    """A corpus and a shape of batches.

    Attributes:
        mib: Size of the corpus.
        dtype: Stored type of a token.
        num_tokens: Tokens of the corpus.
        shape: Sequences of a batch, and tokens of a sequence.
        home: Folder of the flat file, and of each script's corpus.
    """

    mib: float
    dtype: str
    num_tokens: int
    shape: tuple[int, int]
    home: Path

    @property
    def resume_at(self) -> int:
        """The batch at 90 % of an epoch."""
        return self.num_tokens // self.shape[1] // self.shape[0] * 9 // 10

    def corpus_labels(self) -> Record:
        """Return the labels of a figure of the corpus, for any shape."""
        return {"mib": self.mib, "dtype": self.dtype}

    def labels(self) -> Record:
        """Return the labels of a figure."""
        return self.corpus_labels() | {"shape": "x".join(map(str, self.shape))}

    def source(self, adapter: Adapter) -> Record:
        """Return where an adapter's corpus lies."""
        return {
            "folder": str(self.home / adapter.script),
            "flat": str(self.home / "flat"),
            "num_tokens": self.num_tokens,
            "weight": 1.0,
        }

    def blend(self, adapter: Adapter) -> list[Record]:
        """Return two corpora of the same content, and their shares."""
        again = self.home / f"{adapter.script}-again"
        if not again.is_symlink():
            again.symlink_to(self.home / adapter.script)
        first = self.source(adapter)
        return [first | {"weight": 0.7}, first | {"weight": 0.3, "folder": str(again)}]

    def job(self, adapter: Adapter, **more: Any) -> Record:
        """Return the job of an adapter."""
        return {
            "sources": [self.source(adapter)],
            "dtype": self.dtype,
            "batch_size": self.shape[0],
            "seq_len": self.shape[1],
            "variant": adapter.variant,
            "put": adapter.put,
        } | more


def rounds(
    crew: Crew, adapters: list[Adapter], labels: Record, ask: Ask, num_rounds: int
) -> list[Record]:
    """Measure all in turn, round after round.

    Args:
        crew: The processes.
        adapters: The adapters to measure.
        labels: Labels of the figures.
        ask: Returns figures by name.
        num_rounds: Number of rounds; every second one has the reverse order.

    Returns:
        A record for each adapter and figure, with a value for each round. If an adapter
        fails in a round, its records have only the rounds before.
    """
    found: dict[tuple[str, str], list[float]] = {}
    # Ratios are of values of one round: none may follow a round that has none.
    failed: set[str] = set()
    for number in range(num_rounds):
        for adapter in adapters[:: -1 if number % 2 else 1]:
            if adapter.name in failed or not crew.has(adapter):
                continue
            try:
                figures = ask(adapter, number)
            except NotOfferedError:
                continue
            except PeerError as error:
                crew.failed(adapter, _report.label(labels), error)
                failed.add(adapter.name)
                continue
            for figure, value in figures.items():
                found.setdefault((figure, adapter.name), []).append(value)
    return [
        {"figure": figure, "adapter": name, **labels, "values": values}
        for (figure, name), values in found.items()
    ]


def compare(
    crew: Crew, setting: Setting, options: argparse.Namespace, held: Held
) -> list[Record]:
    """Let all adapters write one corpus for one shape; measure opening and reading."""
    labels = setting.labels()
    loaders = [adapter for adapter in crew.adapters if adapter.kind != "limit"]

    def prepare(adapter: Adapter, number: int) -> dict[str, float]:
        del number
        write_corpus(crew, setting, adapter, setting.shape[1])
        return {}  # nothing is measured: `rounds` notes who fails

    def throughput(to: str, pages: str) -> Ask:
        def ask(adapter: Adapter, number: int) -> dict[str, float]:
            job = setting.job(adapter, seed=number, to=to)
            answer = measured(crew, adapter, job, options.seconds, cold=pages == "cold")
            return {"throughput": answer["tokens"] / answer["seconds"]}

        return ask

    def opening(adapter: Adapter, number: int) -> dict[str, float]:
        job = setting.job(adapter, seed=number)
        late = job | {"start": setting.resume_at}
        first = crew.ask(adapter, "measure", job=job, seconds=0)
        resumed = crew.ask(adapter, "measure", job=late, seconds=0)
        return {"open": first["first_s"], "resume": resumed["first_s"]}

    def blended(adapter: Adapter, number: int) -> dict[str, float]:
        blend = setting.blend(adapter)
        job = setting.job(adapter, seed=number, start=setting.resume_at, sources=blend)
        resumed = crew.ask(adapter, "measure", job=job, seconds=0)
        return {"resume, blended": resumed["first_s"]}

    def memory(adapter: Adapter, number: int) -> dict[str, float]:
        del number
        with crew.another(adapter) as peer:
            answer = peer.ask("memory", job=setting.job(adapter), num_batches=50)
        return {"memory": answer["bytes"]}

    rounds(crew, writers(crew), labels, prepare, 1)
    records: list[Record] = []
    for to, pages in product(options.to, options.pages):
        asked = [adapter for adapter in crew.adapters if to in adapter.to]
        if pages == "warm":
            held.hold(setting.home)
        else:
            held.release()
            crew.end()  # whoever has mapped a corpus keeps it in memory
        told = labels | {"to": to, "pages": pages}
        num_rounds = options.rounds if pages == "warm" else options.cold_rounds
        records += rounds(crew, asked, told, throughput(to, pages), num_rounds)
    held.hold(setting.home)
    records += rounds(crew, loaders, labels, opening, options.rounds)
    blending = [adapter for adapter in loaders if adapter.blends]
    records += rounds(crew, blending, labels, blended, options.rounds)
    records += rounds(crew, loaders, labels, memory, 1)
    for adapter in writers(crew):
        held.release(setting.home / adapter.script)
        shutil.rmtree(setting.home / adapter.script, ignore_errors=True)
    return records


def measured(
    crew: Crew, adapter: Adapter, job: Record, seconds: float, *, cold: bool
) -> Record:
    """Let an adapter draw batches; cold pages, and the gather to JAX, in a new process.

    Args:
        crew: The processes.
        adapter: Who draws.
        job: The batches to draw.
        seconds: For how long, without opening.
        cold: Whether to evict the pages from memory first.

    Returns:
        `first_s` to the first batch, and `seconds` and `tokens` of the batches after
        it.
    """
    todo: Record = {"job": job, "seconds": seconds, "cold": cold}
    # A process that had cold pages mapped before would have kept them in memory. And
    # the gather is the limit that others are judged by: JAX takes its arrays over or
    # copies them as they happen to lie, for a process's whole life.
    if cold or (adapter.name == GATHER and job["to"] == "jax"):
        with crew.another(adapter) as peer:
            return peer.ask("measure", **todo)
    return crew.ask(adapter, "measure", **todo)


def writing(crew: Crew, setting: Setting, num_rounds: int) -> list[Record]:
    """Measure how fast documents are written; all adapters write the same ones."""

    def write(adapter: Adapter, number: int) -> dict[str, float]:
        del number
        answer = write_corpus(crew, setting, adapter, None)
        return {
            "write": answer["tokens"] / answer["seconds"],
            "write, synced": answer["tokens"] / answer["synced_seconds"],
            "bytes a token": answer["bytes"] / answer["tokens"],
        }

    labels = setting.corpus_labels()
    print(f"{_report.label(labels)}, writing", file=sys.stderr, flush=True)
    records = rounds(crew, writers(crew), labels, write, num_rounds)
    for adapter in writers(crew):
        shutil.rmtree(setting.home / adapter.script, ignore_errors=True)
    return records


def writers(crew: Crew) -> list[Adapter]:
    """Return an adapter of each script that writes its own corpus."""
    return list({a.script: a for a in crew.adapters if crew.writes(a)}.values())


def write_corpus(
    crew: Crew, setting: Setting, adapter: Adapter, seq_len: int | None
) -> Record:
    """Let an adapter write its corpus, and replace an existing one.

    Args:
        crew: The processes.
        setting: The corpus to write.
        adapter: Who writes.
        seq_len: Tokens of the samples that will be read; None if only writing is
            measured.

    Returns:
        `seconds` to write, `synced_seconds` with the sync, `bytes` on disk, and
        `tokens`.
    """
    folder = setting.home / adapter.script
    shutil.rmtree(folder, ignore_errors=True)
    return crew.ask(
        adapter,
        "write",
        flat=str(setting.home / "flat"),
        ends=str(setting.home / "ends.npy"),
        dtype=setting.dtype,
        folder=str(folder),
        seq_len=seq_len,
    )


def check(crew: Crew, home: Path) -> list[Record]:
    """Check the batches of every adapter except the limits."""
    settings: list[Setting] = []
    for number in range(2):
        folder = home / str(number)
        folder.mkdir()
        line = np.arange(300_000, dtype=np.int32) + number * POSITIONS
        line.tofile(folder / "flat")
        write_ends(folder, len(line))
        settings.append(Setting(0, "int32", len(line), (16, 129), folder))
    records: list[Record] = []
    for adapter in crew.adapters:
        if adapter.kind == "limit" or not crew.has(adapter):
            continue
        try:
            if crew.writes(adapter):
                for setting in settings:
                    write_corpus(crew, setting, adapter, setting.shape[1])
            first, second = (setting.source(adapter) for setting in settings)
            blend = [first | {"weight": 0.7}, second | {"weight": 0.3}]
            job = settings[0].job(adapter)
            found = crew.ask(
                adapter,
                "check",
                job=job,
                blend=job | {"sources": blend} if adapter.blends else None,
            )
        except PeerError as error:
            crew.failed(adapter, "the checks", error)
            continue
        records.append({"figure": "checks", "adapter": adapter.name, **found})
    return records


def write_flat(folder: Path, mib: float, dtype: str) -> int:
    """Write random tokens and where their documents end; return how many there are."""
    num_tokens = int(mib * 2**20) // np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)
    with (folder / "flat").open("wb") as file:
        for start in range(0, num_tokens, 1 << 24):
            count = min(1 << 24, num_tokens - start)
            tokens = rng.integers(1, 50_000, count, np.uint16)
            file.write(tokens.astype(dtype).tobytes())
        file.flush()
        os.fsync(file.fileno())  # else the disk is still at it when the first writes
    write_ends(folder, num_tokens)
    return num_tokens


def write_ends(folder: Path, num_tokens: int) -> None:
    """Write the ends of documents of log-normal length, 800 tokens on average."""
    rng = np.random.default_rng(1)
    lengths = np.maximum(1, rng.lognormal(6.0, 1.2, num_tokens // 500 + 64))
    ends = np.cumsum(lengths.astype(np.int64))
    np.save(folder / "ends.npy", np.append(ends[ends < num_tokens], num_tokens))


def machine() -> Record:
    """Return the labels of the figures."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, nargs="+", default=[8], help="sizes")
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=lambda text: tuple(map(int, text.split("x"))),
        default=[(16, 1025), (64, 2049), (1, 32769)],
        help="such as 16x1025",
    )
    parser.add_argument("--dtypes", nargs="+", default=["uint16", "int32"])
    parser.add_argument("--to", nargs="+", default=["numpy", "jax"])
    parser.add_argument("--pages", nargs="+", default=["warm", "cold"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cold-rounds", type=int, default=1, help="each with new processes, so slow"
    )
    parser.add_argument("--write-rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each draw")
    parser.add_argument(
        "--adapters",
        nargs="+",
        default=[],
        metavar="NAME",
        help="besides roxxel: limits, peers, or some of "
        + ", ".join(dict.fromkeys(adapter.script for adapter in ADAPTERS)),
    )
    parser.add_argument(
        "--interpreter", action="append", default=[], metavar="SCRIPT=PYTHON"
    )
    parser.add_argument("--scale", default="small", choices=["none", "small", "full"])
    parser.add_argument("--folder", type=Path, help="for the corpora")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("dist/bench"),
        help="for report.md, figures.json and the pictures (default: dist/bench)",
    )
    parser.add_argument("--from-json", type=Path, help="only report these figures")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> Record:
    """Run the comparison and return all figures."""
    interpreters = dict(pair.split("=", 1) for pair in options.interpreter)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as name,
        Crew(chosen(options.adapters), interpreters, Path(name)) as crew,
        Held() as held,
    ):
        folder = Path(name)
        found: Record = {"machine": machine(), "versions": crew.versions}
        (folder / "checks").mkdir()
        records = check(crew, folder / "checks")
        for mib in options.mib:
            for dtype in options.dtypes:
                home = folder / f"{mib}-{dtype}"
                home.mkdir()
                num_tokens = write_flat(home, mib, dtype)
                settings = [
                    Setting(mib, dtype, num_tokens, shape, home)
                    for shape in options.shapes
                ]
                records += writing(crew, settings[0], options.write_rounds)
                for setting in settings:
                    told = _report.label(setting.labels())
                    print(told, file=sys.stderr, flush=True)
                    records += compare(crew, setting, options, held)
                held.release(home)
                shutil.rmtree(home)
        if options.scale != "none":
            records += _scaling.measure(crew, folder, full=options.scale == "full")
        return found | {"records": records, "not_run": crew.not_run}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = parse(arguments)
    if options.from_json:
        found = json.loads(options.from_json.read_text())
    else:
        found = measure(options)
    text = _report.markdown(found)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "figures.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "report.md").write_text(text)
    _report.draw(found, options.out)


if __name__ == "__main__":
    main()
