"""Real processes under `jax.distributed`: together they make the batches of one."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import forked
import pytest
from compilation import QUICK_COMPILATION

from .conftest import PROGRAMS
from .runs import all_said, free_port

pytestmark = pytest.mark.first

PROGRAM = PROGRAMS / "loader_processes.py"


@functools.cache
def reports(devices: tuple[int, ...]) -> list[dict[str, Any]]:
    """Run one process for each number of devices; return what they report."""
    port, count = free_port(), len(devices)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{index}.json") for index in range(count)]
        processes = [
            forked.Popen(
                [sys.executable, str(PROGRAM), str(index), str(count), str(port), file],
                env=os.environ
                | {
                    "JAX_PLATFORMS": "cpu",
                    "XLA_FLAGS": f"--xla_force_host_platform_device_count={num} "
                    + QUICK_COMPILATION,
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index, (num, file) in enumerate(zip(devices, files, strict=True))
        ]
        said = all_said(processes, 180)
        assert [process.returncode for process in processes] == [0] * count, said
        return [json.loads(file.read_text()) for file in files]


def digests(report: dict[str, Any]) -> dict[str, str]:
    return {
        name: value
        for name, value in report.items()
        if name.startswith(("stream ", "loader "))
    }


@pytest.mark.parametrize("devices", [(2, 2), (3, 1)], ids=str)
def test_processes_make_the_batches_of_one(devices: tuple[int, ...]) -> None:
    """Each process also checks that it reads what its devices hold and no more."""
    [alone] = reports((4,))
    together = reports(devices)

    for report in together:
        assert digests(report) == digests(alone)
    lengths = [report["local lengths"] for report in together]
    assert [sum(batch) for batch in zip(*lengths, strict=True)] == [8, 8, 4]


@pytest.mark.parametrize("name", ["rows", "columns", "both", "both reversed"])
@pytest.mark.parametrize("devices", [(4,), (2, 2), (3, 1)], ids=str)
def test_a_process_reads_the_bytes_of_its_devices(
    devices: tuple[int, ...], name: str
) -> None:
    """Three batches of 8 x 12 tokens of 4 bytes, a quarter of them for a device."""
    num_bytes = [report[f"bytes {name}"] for report in reports(devices)]

    assert num_bytes == [3 * 8 * 12 * 4 * share // 4 for share in devices]


def test_local_batches_become_the_global_one() -> None:
    [alone] = reports((4,))

    assert {report["placed"] for report in reports((2, 2))} == {alone["placed"]}


def test_local_batches_for_unequal_processes_are_an_error() -> None:
    for report in reports((3, 1)):
        assert "pass this sharding to the Dataloader" in report["placed"]


def test_rows_that_processes_share_are_an_error() -> None:
    for report in reports((2, 2)):
        assert "processes [0, 1] hold the same rows" in report["shared rows"]


def test_a_part_of_the_own_rows_does_not_come_back_to_the_host() -> None:
    for report in reports((2, 2)):
        assert "holds only parts of rows" in report["part of rows"]


def test_rows_are_described_for_each_process() -> None:
    words = re.sub(r" on device \d+", "", reports((2, 2))[1]["description"])

    assert words.splitlines() == [
        "process 0: rows 0-1 of 8; rows 2-3 of 8",
        "process 1: rows 4-5 of 8; rows 6-7 of 8",
    ]
