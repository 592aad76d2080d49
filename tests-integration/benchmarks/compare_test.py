"""The comparison runs small without a network, and names the peers that are missing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ._held import Held
from .peers import cold, delivered

COMPARE = Path(__file__).parent / "compare.py"
MACHINE = {
    "processor": "any",
    "cores": 2,
    "memory_gib": 1,
    "system": "any",
    "python": "any",
    "load_before": 0,
}
LABELS = {"mib": 1, "dtype": "uint16", "shape": "16x1025", "to": "numpy"}


def compare(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(COMPARE), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="drops pages as Linux lets it")
def test_roxxel_a_peer_and_the_limits_are_compared(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-python"

    text = compare(
        *("--mib", "1", "--shapes", "16x65", "--dtypes", "uint16"),
        *("--rounds", "1", "--write-rounds", "1", "--seconds", "0.01"),
        *("--adapters", "limits", "peer_memmap", "peer_grain"),
        *("--interpreter", f"peer_grain={missing}", "--out", str(tmp_path)),
    )

    found = json.loads((tmp_path / "figures.json").read_text())
    assert list(found["not_run"]) == ["peer_grain"]
    assert str(missing) in text
    assert "|  | documents |" in text  # of writing, which has no shape
    ours = [r for r in found["records"] if r.get("adapter") == "roxxel"]
    assert {r["figure"] for r in ours} == {
        *("checks", "throughput", "open", "resume", "resume, blended", "memory"),
        *("write", "write, synced", "bytes a token"),
    }
    checks = next(r for r in ours if r["figure"] == "checks")
    assert checks["pieces"] == 1
    names = ("consecutive", "exactly_once", "resumes", "disjoint", "blended")
    assert {name: checks[name] for name in names} == dict.fromkeys(names, True)


FAILS = """#!{python}
import json, subprocess, sys

peer = subprocess.Popen(
    [sys.executable, sys.argv[1]],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
)
for line in sys.stdin:
    job = json.loads(line).get("job", {{}})
    if {when}:
        sys.exit("gave up")
    peer.stdin.write(line)
    peer.stdin.flush()
    print(peer.stdout.readline(), end="", flush=True)
"""


def who_fails(path: Path, when: str) -> Path:
    """Write an interpreter that runs a peer, and that ends at its first job."""
    path.write_text(FAILS.format(python=sys.executable, when=when))
    path.chmod(0o755)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="drops pages as Linux lets it")
def test_who_fails_is_named_and_loses_only_what_came_after(tmp_path: Path) -> None:
    second_round = who_fails(tmp_path / "a", "job.get('seed') == 1")
    shared = who_fails(tmp_path / "b", "'process_index' in job")

    text = compare(
        *("--mib", "1", "--shapes", "16x65", "--dtypes", "uint16", "--to", "numpy"),
        *("--pages", "warm", "--rounds", "3", "--write-rounds", "1"),
        *("--seconds", "0.01", "--adapters", "peer_memmap", "--out", str(tmp_path)),
        *("--interpreter", f"peer_memmap={second_round}"),
        *("--interpreter", f"ours={shared}"),
    )

    found = json.loads((tmp_path / "figures.json").read_text())
    loop = [r for r in found["records"] if r.get("adapter") == "memmap loop"]
    values = {r["figure"]: r["values"] for r in loop if "values" in r}
    assert [len(values[name]) for name in ("throughput", "open", "resume")] == [1] * 3
    scaling = [r["figure"] for r in found["records"] if "adapter" not in r]
    assert set(scaling) == {"shards", "blend"}
    assert [*found["not_run"]] == [
        "memmap loop, 1 MiB of uint16, 16x65, to numpy, warm pages",
        "memmap loop, 1 MiB of uint16, 16x65",
        "roxxel, scaling",
    ]
    assert "the last it said is 'gave up'" in text


@pytest.mark.skipif(sys.platform != "linux", reason="drops pages as Linux lets it")
def test_held_files_stay_in_memory_until_they_are_let_go(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "corpus"
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * 256)

    with Held() as held:
        held.hold(tmp_path)
        assert is_in_memory_after_a_drop(path)
        with pytest.raises(OSError, match="100% of the pages stay in memory"):
            cold.drop_all([path])
        held.release(tmp_path / "other")
        assert is_in_memory_after_a_drop(path)
        held.release(path.parent)
        assert not is_in_memory_after_a_drop(path)
        held.hold(path.parent)
        assert is_in_memory_after_a_drop(path)
    assert not is_in_memory_after_a_drop(path)


def is_in_memory_after_a_drop(path: Path) -> bool:
    share = cold.drop([path])
    assert share in {0, 1}
    return share == 1


def test_the_report_begins_with_where_roxxel_is_not_ahead(tmp_path: Path) -> None:
    figures: list[dict[str, Any]] = [
        {"figure": "throughput", "pages": "warm", **LABELS, "adapter": name} | values
        for name, values in (
            ("roxxel", {"values": [2.0, 3.0, 4.0]}),
            ("gather", {"values": [4.0, 4.0, 4.0]}),
            ("litdata", {"values": [1.0, 1.0, 1.0]}),
            ("loadax", {"values": [1.0, 2.0, 2.0]}),
        )
    ]
    path = tmp_path / "figures.json"
    found = {"machine": MACHINE, "versions": {}, "not_run": {}, "records": figures}
    path.write_text(json.dumps(found))

    text = compare("--from-json", str(path), "--out", str(tmp_path))

    assert text.splitlines()[2:6] == [
        "Where Roxxel is not ahead as promised:",
        "",
        (
            "- tokens/s, 1 MiB of uint16, 16x1025, to numpy, warm pages: 2.00 "
            "(1.50 to 2.00) of loadax, the target is 2.5."
        ),
        "",
    ]


def test_the_report_tells_of_memory_checks_and_who_did_not_run(tmp_path: Path) -> None:
    corpus = {"mib": 1, "dtype": "uint16", "shape": "16x1025"}
    held = dict.fromkeys(("consecutive", "exactly_once", "resumes", "blended"), True)
    ours = {"adapter": "roxxel"}
    memory = {"figure": "memory", "values": [9.5 * 2**20]}
    delivered = {"delivered": 1.0, "pieces": 1, "blend_off": None, "jump": 0.3}
    checks = {"figure": "checks", "disjoint": False} | held | delivered
    figures: list[dict[str, Any]] = [ours | corpus | memory, ours | checks]
    path = tmp_path / "figures.json"
    not_run = {"loadax, the checks": "no such thing"}
    found = {"machine": MACHINE, "versions": {}, "not_run": not_run, "records": figures}
    path.write_text(json.dumps(found))

    text = compare("--from-json", str(path), "--out", str(tmp_path))

    assert text.splitlines()[2:11] == [
        "Where Roxxel is not ahead as promised:",
        "",
        "- private memory, 1 MiB of uint16, 16x1025: 9.5 MiB, the target is 8.",
        (
            "- what is delivered: two processes get different tokens does not hold for "
            "roxxel."
        ),
        "",
        "Not run:",
        "",
        "- loadax, the checks: no such thing",
        "",
    ]


@dataclass(frozen=True)
class Source:
    num_tokens: int
    weight: float


@dataclass(frozen=True)
class Job:
    sources: tuple[Source, ...] = (Source(1024, 1.0),)
    batch_size: int = 4
    seq_len: int = 8
    start: int = 0
    process_index: int = 0
    process_count: int = 1


def epoch(job: Job, limit: int) -> list[np.ndarray]:
    """Return the batches of a correct loader."""
    rows = np.random.default_rng(0).permutation(1024 // 8)[:, None] * 8 + np.arange(8)
    batches = rows.astype(np.int32).reshape(-1, 4, 8)[job.start : limit]
    share = 4 // job.process_count
    return [b[job.process_index * share :][:share] for b in batches]


def glued(job: Job, limit: int) -> list[np.ndarray]:
    """Return samples of two halves from different places."""
    found = epoch(job, limit)
    return [np.concatenate([b[:, :4], b[::-1, 4:]], axis=1) for b in found]


def repeated(job: Job, limit: int) -> list[np.ndarray]:
    """Return an epoch with one batch twice."""
    found = epoch(replace(job, start=0), limit)
    return [*found, found[0]][job.start :]


def forgetful(job: Job, limit: int) -> list[np.ndarray]:
    """Return another order after resuming."""
    return epoch(job, limit)[:: -1 if job.start else 1]


def alike(job: Job, limit: int) -> list[np.ndarray]:
    """Return the same rows in every process."""
    return epoch(replace(job, process_index=0), limit)


def test_a_loader_without_fault_passes_every_check() -> None:
    found = delivered.report(epoch, Job(), None)

    assert found["pieces"] == 1
    assert found["delivered"] == 1
    names = ("consecutive", "exactly_once", "resumes", "disjoint")
    assert all(found[name] is True for name in names)
    assert found["blended"] is None


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        (glued, "consecutive"),
        (repeated, "exactly_once"),
        (forgetful, "resumes"),
        (alike, "disjoint"),
    ],
)
def test_a_fault_is_found_and_no_other(loader: Any, name: str) -> None:
    found = delivered.report(loader, Job(), None)

    names = ("consecutive", "exactly_once", "resumes", "disjoint")
    assert [n for n in names if not found[n]] == [name]


def test_a_blend_is_as_far_off_as_its_worst_batch() -> None:
    job = Job(sources=(Source(1024, 0.5), Source(1024, 0.5)), batch_size=16)
    whole = np.zeros((16, 8), np.int32)
    mixed = whole.copy()
    mixed[::2] += delivered.SOURCE

    def blended(job: Job, limit: int) -> list[np.ndarray]:
        del job, limit
        return [mixed, whole]

    assert delivered.blend_off(blended, job) == 8
