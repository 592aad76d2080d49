"""Measures preparation, against bare tokenizing and other tools.

Programs tokenize the same JSON lines with the same tokenizer of Hugging Face, one after
the other, each in two processes of one thread: processes that only parse and encode
with `fastokens` (`bare`, the limit), `encode_files` of gigatoken, `roxxel-prepare write
--workers 2` and 1 (`one`), the same with `--tokenizer-backend tokenizers`, datatrove's
tokenizer pipeline, and a loop over lines like that of Megatron-LM. The number of tokens
must be the same, except that gigatoken and datatrove turn the text of a special token
into this token. The shards of both backends, and of one and two workers, must be the
same. The goals of Roxxel: at least half the speed of the limit, two workers 1.8 times
as fast as one, less than 400 MiB per worker, and never more disk space than 1.1 times
the corpus. Times include the start of each program. On a busy machine, compare the
figures per CPU second.

The inputs are the Python sources of this environment, each with a numbered header,
repeated up to `--mib`. Better give your own files of JSON lines (`--inputs`), because
an encoder caches the words of repeated text. The tokenizer is a byte-level BPE trained
on a part of the inputs, or yours (`--tokenizer`).

With `--memory GB`, one worker writes the inputs repeatedly, up to that size, and the
program prints the worker's memory meanwhile: its caches must be bounded.

    python tests-integration/benchmarks/prepare.py               # 1 GiB
    python tests-integration/benchmarks/prepare.py --mib 4 --without datatrove
    python tests-integration/benchmarks/prepare.py --inputs texts --without loop
    python tests-integration/benchmarks/prepare.py --inputs texts --memory 20
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from roxxel_format import Roxxel
from tokenizers import models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

WORKERS = 2
FILES = 16
MOST_CHARACTERS = 1 << 18
END = "<|endoftext|>"
WAYS = ("bare", "gigatoken", "roxxel", "one", "tokenizers", "datatrove", "loop")
OF_ROXXEL = ("roxxel", "one", "tokenizers")
PEERS = ("gigatoken", "datatrove")
MEMORY_ROWS = 20
FOLDER = Path(__file__).parent
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Measured:
    """The cost of one way.

    Attributes:
        wall_s: Seconds until all its processes ended.
        cpu_s: Processor time of all its processes.
        peak_mib: Greatest memory of one of its processes.
        num_tokens: Number of tokens by its own count.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float
    num_tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--inputs", type=Path, help="folder of JSON lines")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--without", choices=WAYS[1:], action="append", default=[])
    parser.add_argument("--memory", type=float, metavar="GB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        inputs = made / "inputs"
        if options.inputs is None:
            write_inputs(inputs, options.mib << 20)
        else:
            inputs.symlink_to(options.inputs.resolve())
        tokenizer = made / "tokenizer.json"
        if options.tokenizer is None:
            size = min(options.mib << 20, 16 << 20)
            write_tokenizer(tokenizer, options.vocab_size, size)
        else:
            tokenizer.symlink_to(options.tokenizer.resolve())
        print(
            f"{platform.platform()}, {os.cpu_count()} cores, Python {sys.version[:6]}"
        )
        if options.memory is not None:
            show_memory(made, int(options.memory * 1e9))
        else:
            run(made, set(options.without))


def run(folder: Path, without: set[str]) -> None:
    """Measure every way, and print a table."""
    num_bytes = sum(path.stat().st_size for path in (folder / "inputs").iterdir())
    print(f"{num_bytes / 1e6:.1f} MB of JSON lines, {WORKERS} processes")
    found: dict[str, Measured] = {}
    share = 0.0
    for way in WAYS:
        if way in without:
            continue
        if way in PEERS and not is_installed(way):
            print(f"{way}: not installed; name an interpreter in {variable(way)}")
            continue
        output = folder / way
        output.mkdir()
        with watched(output) as sizes:
            found[way] = measured(commands(way, folder, output), output)
        if way == "roxxel":
            shards = sum(path.stat().st_size for path in output.glob("*.rox"))
            share = max(sizes) / shards
    show(found, num_bytes)
    print(f"peak disk use of roxxel: {share:.3f} of the corpus (goal at most 1.1)")
    if "one" in found:
        one, two = found["one"], found["roxxel"]
        print(
            f"two workers over one: {one.wall_s / two.wall_s:.2f} (goal at least 1.8), "
            f"with {two.cpu_s / one.cpu_s:.2f} of its processor time"
        )
    counted = {way: each.num_tokens for way, each in found.items() if way not in PEERS}
    assert len({*counted.values()}) == 1, counted
    ours = [way for way in OF_ROXXEL if way in found]
    digests = {tuple(Roxxel(folder / way / "c_*.rox").shard_digests) for way in ours}
    assert len(digests) == 1
    print(f"shards of {', '.join(ours)}: byte-identical")


def show(found: dict[str, Measured], num_bytes: int) -> None:
    print(
        "way        MB per CPU s  MB/s wall  of bare: cpu  wall  MiB a process  tokens"
    )
    bare = found["bare"]
    for way, each in found.items():
        print(
            f"{way:10} {num_bytes / 1e6 / each.cpu_s:12.2f} "
            f"{num_bytes / 1e6 / each.wall_s:10.2f} {bare.cpu_s / each.cpu_s:13.3f} "
            f"{bare.wall_s / each.wall_s:5.3f} {each.peak_mib:16.0f} "
            f"{each.num_tokens:10}"
        )


def show_memory(folder: Path, num_bytes: int) -> None:
    """Let one worker write this much text, and print its memory meanwhile."""
    files = sorted((folder / "inputs").iterdir())
    again = folder / "again"
    again.mkdir()
    size = 0
    for number, file in zip(count(), cycle(files), strict=False):
        if size >= num_bytes:
            break
        size += file.stat().st_size
        (again / f"{number:06}.jsonl").symlink_to(file.resolve())
    output = folder / "memory"
    output.mkdir()
    words = ["write", str(output / "c_*.rox"), str(again), "--workers", "1"]
    words += ["--tokenizer", str(folder / "tokenizer.json")]
    command = [sys.executable, "-m", "roxxel_prepare", *words]
    print(f"{size / 1e9:.2f} GB of JSON lines, one worker")
    print("  seconds  GB of shards  MiB", flush=True)
    began = time.perf_counter()
    most = shown = 0
    with subprocess.Popen(command, env=os.environ | ONE_THREAD) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
            most = max(most, 0 if found is None else int(found[1]) >> 10)
            written = sum(map(size_of, output.glob("*.rox")))
            if written > shown + size // 2 // MEMORY_ROWS:
                seconds = time.perf_counter() - began
                print(f"{seconds:9.0f} {written / 1e9:13.2f} {most:4}", flush=True)
                most, shown = 0, written
            time.sleep(0.2)
    assert not process.returncode


def commands(way: str, folder: Path, output: Path) -> list[list[str]]:
    """Return the commands of a way, which run at the same time."""
    tokenizer, inputs = str(folder / "tokenizer.json"), folder / "inputs"
    files = sorted(map(str, inputs.iterdir()))
    if way in OF_ROXXEL:
        backend = way if way == "tokenizers" else "fastokens"
        workers = 1 if way == "one" else WORKERS
        words = ["write", str(output / "c_*.rox"), str(inputs)]
        words += ["--workers", str(workers), "--tokenizer", tokenizer]
        words += ["--tokenizer-backend", backend]
        return [[sys.executable, "-m", "roxxel_prepare", *words]]
    if way == "datatrove":
        return [[*peer(way), tokenizer, str(output), str(inputs)]]
    if way == "gigatoken":
        parts = (files[number::WORKERS] for number in range(WORKERS))
        return [[*peer(way), tokenizer, *part] for part in parts]
    script = str(FOLDER / "_tokenizing.py")
    return [
        [
            *(sys.executable, script, way, tokenizer, str(output / f"{number}.bin")),
            *files[number::WORKERS],
        ]
        for number in range(WORKERS)
    ]


def peer(way: str) -> list[str]:
    """Return the command of another tool; `uv` installs it unless its path is given."""
    interpreter = os.environ.get(variable(way))
    made = ["uv", "run", "--quiet", "--no-project", "--script"]
    start = [interpreter] if interpreter else made
    return [*start, str(FOLDER / "peers" / f"prepare_{way}.py")]


def variable(way: str) -> str:
    return f"ROXXEL_BENCH_{way.upper()}"


def is_installed(way: str) -> bool:
    """Return whether a tool starts; this also installs it before it is measured."""
    try:
        return not subprocess.run(
            peer(way), capture_output=True, check=False
        ).returncode
    except FileNotFoundError:  # uv, or the interpreter
        return False


def measured(words: list[list[str]], output: Path) -> Measured:
    """Run commands at the same time, and measure them with their child processes."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "_measured.py"), json.dumps(words)],
        capture_output=True,
        text=True,
        env=os.environ | ONE_THREAD,
        check=False,
    )
    assert not done.returncode, done.stderr
    *printed, last = done.stdout.splitlines()
    if [*output.glob("*.rox")]:
        num_tokens = Roxxel(output / "c_*.rox").num_tokens
    else:
        num_tokens = sum(map(int, printed))
    wall_s, cpu_s, peak_mib = json.loads(last)
    return Measured(wall_s, cpu_s, peak_mib, num_tokens)


@contextmanager
def watched(folder: Path) -> Generator[list[int]]:
    """Yield a list that gets the size of the folder many times a second."""
    sizes = [0]
    ends = threading.Event()

    def watch() -> None:
        while not ends.wait(0.1):
            sizes.append(sum(map(size_of, folder.rglob("*"))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sizes
    finally:
        ends.set()
        thread.join()
        sizes.append(sum(map(size_of, folder.rglob("*"))))


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # A draft was renamed meanwhile.
        return 0


def sources() -> Iterator[str]:
    """Yield the Python sources of this environment, the largest cut."""
    for kind in ("stdlib", "purelib"):
        for path in sorted(Path(sysconfig.get_path(kind)).rglob("*.py")):
            text = path.read_text("utf-8", errors="replace")[:MOST_CHARACTERS]
            if text:
                yield text


def write_inputs(folder: Path, num_bytes: int) -> None:
    """Write files of JSON lines with this total size."""
    folder.mkdir()
    texts = (
        f"# copy {copy} of source {number}\n{text}"
        for copy in count()
        for number, text in enumerate(sources())
    )
    size = 0
    for file_number in range(FILES):
        stop = num_bytes * (file_number + 1) // FILES
        with (folder / f"{file_number:02}.jsonl").open("w", encoding="utf-8") as file:
            while size < stop:
                size += file.write(json.dumps({"text": next(texts)}) + "\n")


def write_tokenizer(path: Path, vocab_size: int, num_characters: int) -> None:
    """Train a byte-level BPE on some of the sources."""
    tokenizer: Any = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def some() -> Iterator[str]:
        size = 0
        for number, text in enumerate(sources()):
            if number % 7 == 0 and size < num_characters:
                size += len(text)
                yield text

    tokenizer.train_from_iterator(some(), trainer)
    tokenizer.save(str(path))


if __name__ == "__main__":
    main()
