"""Checks one package in an environment with only this package and its dependencies.

    python tests-integration/tools/bare.py roxxel-format numpy

The program imports every public module of the package, and looks up every public name.
The libraries of extras are missing here, so the error of each module that needs one
must name the extra to install. The environment may contain only the packages named
after the first; without such names, it may contain any.

The installed files must equal the sources in `packages/`, so what the tests of the
sources prove holds for the built files. Run the program in the root of the repository.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib.metadata import distribution, distributions
from pathlib import Path


def main(package: str, others: list[str]) -> list[str]:
    """Return the faults of the package or its environment, one line each."""
    name = package.replace("-", "_")
    wrong = foreign(package, set(others)) if others else []
    module = importlib.import_module(name)
    root = Path(str(module.__file__)).parent
    if not root.is_relative_to(sys.prefix):
        wrong.append(f"{name} was found in {root}, not in this environment")
    wrong += [
        f"{name}.{public} is in __all__ and cannot be imported"
        for public in module.__all__
        if not hasattr(module, public)
    ]
    inside = pkgutil.walk_packages([str(root)], f"{name}.", onerror=lambda _: None)
    for found in inside:
        if "._" not in found.name:
            wrong += unusable(found.name)
    if not (root / "py.typed").exists():
        wrong.append(f"{name} has no py.typed")
    return wrong + differing(package, Path("packages") / package / "src")


def foreign(package: str, others: set[str]) -> list[str]:
    """Return the packages that are installed and should not be."""
    installed = {one.name.lower().replace("_", "-") for one in distributions()}
    return [
        f"{one} came with {package}, which may bring {sorted(others)} alone"
        for one in sorted(installed - others - {package})
    ]


def unusable(module: str) -> list[str]:
    """Return the error of importing a module, unless it names what to install.

    That is an extra, or the library of a bridge, which its users have.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A distribution may have another name than its module: marin-levanter.
        is_named = "; install " in str(error)
        if type(error).__name__ != "MissingExtraError" and not is_named:
            return [f"importing {module}: {error}; declare it, or name its extra"]
    return []


def differing(package: str, sources: Path) -> list[str]:
    """Return the files that differ between the package and its sources."""
    installed = {
        file.as_posix(): file.hash.value
        for file in distribution(package).files or []
        if file.hash and not file.parts[0].endswith((".dist-info", ".."))
    }
    ours = {
        path.relative_to(sources).as_posix(): hash_of(path)
        for path in sources.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return [
        f"{name}: the installed file is not the one in {sources}"
        for name in sorted({*installed, *ours})
        if installed.get(name) != ours.get(name)
    ]


def hash_of(path: Path) -> str:
    """Return the hash of a file in the form of a wheel's record."""
    digest = sha256(path.read_bytes()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


if __name__ == "__main__":
    findings = main(sys.argv[1], sys.argv[2:])
    for finding in findings:
        print(finding)
    sys.exit(1 if findings else 0)
