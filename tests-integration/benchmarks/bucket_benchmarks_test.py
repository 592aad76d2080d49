"""The benchmark of buckets runs once, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from . import bucket_requests, bucket_start


def test_reading_from_a_bucket() -> None:
    program = Path(__file__).with_name("bucket_read.py")
    small = ("--mib", "4", "--steps", "30", "--shapes", "4x257", "--latency-ms", "5")
    loaders = ("--loaders", "blocks", "cached", "disk")
    done = subprocess.run(
        [sys.executable, str(program), *small, *loaders, "--step-ms", "1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )

    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "4x257 blocks from step 0",
        "4x257 blocks from step 1836",
        "4x257 cached from step 0",
        "4x257 cached from step 1836",
        "4x257 cached from step 0, cache full",
        "4x257 disk from step 0",
        "4x257 disk from step 1836",
    ]


def test_requests_to_a_bucket() -> None:
    found = bucket_requests.main(["--rows", "64", "--ahead", "32", "--latency-ms", "1"])

    assert set(found) == set(bucket_requests.READERS)
    assert all(figures["threads"] > 0 for [figures] in found.values())


def test_no_host_reads_a_whole_shard_for_its_rows_of_the_first_step() -> None:
    one, eight = bucket_start.main(["--hosts", "1", "8"])

    assert eight.manifest_bytes == 8 * one.manifest_bytes
    assert eight.shard_bytes < 2 * one.shard_bytes
    assert one.largest_share < 0.05
    assert eight.largest_share < one.largest_share
