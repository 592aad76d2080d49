from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys
from roxxel_store.streams import prepare_streams
prepare_streams()
opened = os.open("/dev/zero", os.O_RDONLY)
print("caf\\u00e9", flush=True)
print(opened > 2, file=sys.stderr)
"""


def run(redirection: str, encoding: str = "utf-8") -> tuple[int, bytes, bytes]:
    script = f'PYTHONIOENCODING={encoding} exec "$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, PROGRAM],
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_no_file_takes_the_place_of_a_closed_standard_output() -> None:
    assert run(">&-") == (0, b"", b"True\n")


def test_all_streams_may_be_closed() -> None:
    assert run("<&- >&- 2>&-") == (0, b"", b"")


def test_a_character_that_the_encoding_lacks_is_escaped() -> None:
    assert run("", "ascii") == (0, b"caf\\xe9\n", b"True\n")
