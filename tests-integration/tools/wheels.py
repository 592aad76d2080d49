"""Collects the wheels that a GPU machine without a package index needs.

    python tests-integration/tools/wheels.py FOLDER

The folder gets this repository's packages, and Flax, Optax and Orbax with what they
import, for CPython 3.12 on x86-64 Linux. JAX, its CUDA plugin and numpy are left out:
they belong to the machine. There, install with

    python3 -m pip install --no-index --no-deps --target /tmp/site FOLDER/*.whl

and put `/tmp/site` on PYTHONPATH. pip and uv use the index that they are configured
for. The exit code is 1 if the wheels take more than 60 MiB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_BYTES = 60 << 20

# Known to run with JAX 0.11.2.
PINS = (
    *("flax==0.12.12", "optax==0.2.8", "orbax-checkpoint==0.12.8"),
    *("absl-py==2.5.1", "aiofiles==25.1.0", "etils==1.15.0", "fsspec==2026.9.0"),
    *("humanize==4.17.0", "markdown-it-py==4.3.0", "mdurl==0.1.2", "msgpack==1.2.4"),
    *("msgspec==0.22.0",),
    *("prometheus-client==0.26.0", "protobuf==7.36.2", "psutil==7.2.2"),
    *("pygments==2.21.0", "pyyaml==6.0.4", "rich==15.0.0", "simplejson==4.3.0"),
    *("tensorstore==0.1.86", "tqdm==4.70.1", "treescope==0.1.10"),
    *("typing-extensions==4.16.0", "uvloop==0.23.0", "zipp==4.1.2"),
)
GLIBCS = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")


def main(folder: Path) -> int:
    """Fill the folder; return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    tags = [f"manylinux_{each}_x86_64" for each in GLIBCS]
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    download = ("download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms)
    target = ("--python-version", "3.12", "--implementation", "cp")
    subprocess.run(
        [_found("pip"), *download, *target, "--dest", str(folder), *PINS], check=True
    )
    build = ("build", "--quiet", "--wheel", "--all-packages", "--out-dir", str(folder))
    subprocess.run([_found("uv"), *build], cwd=ROOT, check=True)
    (folder / ".gitignore").unlink(missing_ok=True)
    wheels = sorted(folder.glob("*.whl"))
    num_bytes = sum(path.stat().st_size for path in wheels)
    print(f"{folder}: {len(wheels)} wheels, {num_bytes / (1 << 20):.1f} MiB")
    if num_bytes > MOST_BYTES:
        print(f"{num_bytes} bytes are more than {MOST_BYTES}", file=sys.stderr)
        return 1
    return 0


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"{program} is not on the PATH; install it first")
    return path


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
