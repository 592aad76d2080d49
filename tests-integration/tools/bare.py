"""Checks one package in an environment with only this package and its dependencies.

    python tests-integration/tools/bare.py roxxel-format numpy

The program imports every public module of the package, and looks up every public name.
The libraries of extras are missing here, so the error of each module that needs one
must name the extra to install. The environment may contain only the packages named
after the first; without such names, it may contain any. If the package passes, the
program prints a digest of its files.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import sys
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
            wrong += unusable(found.name, package)
    if not (root / "py.typed").exists():
        wrong.append(f"{name} has no py.typed")
    return wrong


def foreign(package: str, others: set[str]) -> list[str]:
    """Return the packages that are installed and should not be."""
    installed = {one.name.lower().replace("_", "-") for one in distributions()}
    return [
        f"{one} came with {package}, which may bring {sorted(others)} alone"
        for one in sorted(installed - others - {package})
    ]


def unusable(module: str, package: str) -> list[str]:
    """Return the error of importing a module, unless it names the extra to install."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if f'pip install "{package}[' not in str(error):
            return [f"importing {module}: {error}; declare it, or name its extra"]
    return []


def digest(package: str) -> str:
    """Return a digest of the names and contents of the files that a package brought."""
    inside = [
        f"{file} {file.hash.value}"
        for file in distribution(package).files or []
        if file.hash and not file.parts[0].endswith(".dist-info")
    ]
    return hashlib.sha256("\n".join(sorted(inside)).encode()).hexdigest()


if __name__ == "__main__":
    findings = main(sys.argv[1], sys.argv[2:])
    print(*findings or [digest(sys.argv[1])], sep="\n")
    sys.exit(1 if findings else 0)
