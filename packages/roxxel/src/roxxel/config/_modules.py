"""The modules in a config's folder, which belong to that config alone.

Two configs in one process may each have a `helper.py`: a sweep, a replay or a notebook
loads several. So a module of a folder is imported under a name that includes its
folder: `helper.py` in `/home/ada/first` is the module `/home/ada/first.helper`.
Pickles, dataclasses and tracebacks find it by this name, as they find any module.

In such a module, `import helper` always means the file next to it, even if an installed
package has that name or the import runs later. Installed packages do not see these
files. Python has no hook for the imports of one module. But it takes `__import__` from
the `__builtins__` of the importing module, so the modules of a folder have their own
builtins.

Everything that is loaded from a folder shares its modules, until one of their files has
changed: then the next load imports all of them anew.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import sys
import threading
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType


def import_beside(folder: Path, name: str) -> ModuleType:
    """Import a module from a config's folder or, failing that, from `sys.path`.

    Raises:
        ModuleNotFoundError: There is no such module, or it imports one that is missing.
            The error's `name` has no folder.
        Exception: The module raised this error.
    """
    code = _newest(str(folder.resolve()))
    try:
        return code.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None:
            error.name = error.name.removeprefix(f"{code.package}.")
        raise


def module_file(folder: Path, name: str) -> Path | None:
    """Return the file of the module that `import_beside` would import; None if unknown.

    This function imports nothing.
    """
    files = module_files(folder, name)
    return files[-1] if len(files) == len(name.split(".")) else None


def module_files(folder: Path, name: str) -> list[Path | None]:
    """Return the files of the packages around a module, and its own file.

    A package without code has no file. The list ends at the first module that does not
    exist; it is empty if no folder has the outermost package.
    """
    own = str(folder.resolve())
    is_own = _is_beside(own, name.partition(".")[0])
    find, path = (_found, [own]) if is_own else (_installed, None)
    files: list[Path | None] = []
    whole = ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = find(whole, path)
        if spec is None:
            break
        files.append(Path(spec.origin) if spec.origin else None)
        path = list(spec.submodule_search_locations or ())
    return files


class _Code:
    """The modules of one folder, as its files were at their import."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        # A dot in a module's name ends a package, and `;2` is the second reading.
        name = folder.replace("%", "%25").replace(".", "%2E").replace(";", "%3B")
        self.package = name if number == 1 else f"{name};{number}"
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._importlib = ModuleType(importlib.__name__, importlib.__doc__)
        vars(self._importlib).update(
            __getattr__=partial(getattr, importlib), import_module=self.import_module
        )
        self._number = number
        self._beside: dict[str, bool] = {}
        self.digests: dict[str, bytes | None] = {}

    def next(self) -> _Code:
        return _Code(self.folder, self._number + 1)

    def is_current(self) -> bool:
        """Return whether each module would still be found and read unchanged."""
        return all(
            _is_beside(self.folder, name) == was for name, was in self._beside.items()
        ) and all(_digest(file) == was for file, was in self.digests.items())

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import a module as `importlib` does, but from the folder first."""
        return importlib.import_module(self._own(name) or name, package)

    def _own(self, name: str) -> str | None:
        """Return the full name of a module of the folder; None for other modules."""
        top = name.partition(".")[0]
        if not top:
            return None
        if top not in self._beside:
            self._beside[top] = _is_beside(self.folder, top)
        return f"{self.package}.{name}" if self._beside[top] else None

    def _import(
        self,
        name: str,
        globals_: Mapping[str, Any] | None = None,
        locals_: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Run an import statement of a module in the folder."""
        own = None if level else self._own(name)
        if own is not None and not fromlist:
            importlib.import_module(own)
            # The statement `import a.b` binds the name `a`.
            return sys.modules[f"{self.package}.{name.partition('.')[0]}"]
        found = builtins.__import__(own or name, globals_, locals_, fromlist, level)
        # The `import_module` of our `importlib` looks in the folder first, too.
        return self._importlib if found is importlib else found


class _Finder(MetaPathFinder):
    """Finds the modules of the folders that have been loaded, and no others."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del target
        code = _packages.get(fullname.partition(".")[0])
        if code is None:
            return None
        if path is None:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [code.folder]
            return spec
        return _found(fullname, path)


class _SourceLoader(SourceFileLoader):
    """Loads a module of a folder."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        code = _packages[spec.name.partition(".")[0]]
        module = ModuleType(spec.name)
        vars(module)["__builtins__"] = code.builtins
        return module

    def get_code(self, fullname: str) -> CodeType:
        # Never from `__pycache__`, which does not notice an edit that leaves the size
        # alone within one second.
        data = self.get_data(self.path)
        digests = _packages[fullname.partition(".")[0]].digests
        digests[self.path] = hashlib.sha256(data).digest()
        return self.source_to_code(data, self.path)


_LOADERS: Any = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (_SourceLoader, SOURCE_SUFFIXES),
)
_SUFFIXES = ("", *EXTENSION_SUFFIXES, *SOURCE_SUFFIXES)
_finder = _Finder()
_lock = threading.Lock()
_newest_of: dict[str, _Code] = {}
_packages: dict[str, _Code] = {}


def _newest(folder: str) -> _Code:
    """Return the modules of a folder, in the present state of its files."""
    with _lock:
        code = _newest_of.get(folder)
        if code is None or not code.is_current():
            code = _Code(folder, 1) if code is None else code.next()
            _newest_of[folder] = _packages[code.package] = code
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        return code


def _is_beside(folder: str, name: str) -> bool:
    """Return whether a top-level module belongs to the folder.

    A subfolder without Python code, such as `wandb`, hides no installed package.
    """
    spec = _found(name, [folder])
    if spec is None or spec.loader is not None:
        return spec is not None
    loaded = sys.modules.get(name)
    if loaded is not None:
        return hasattr(loaded, "__path__") and getattr(loaded, "__file__", None) is None
    other = importlib.util.find_spec(name)
    return other is None or other.origin is None


def _found(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module in folders whose listings are read anew."""
    parts: list[str] = []
    tail = name.rpartition(".")[2]
    for folder in path or ():
        # Only then list the folder, which may hold a corpus of many shards.
        if not any(Path(folder, tail + suffix).exists() for suffix in _SUFFIXES):
            continue
        spec = FileFinder(folder, *_LOADERS).find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            parts += spec.submodule_search_locations or ()
    if not parts:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = parts
    return spec


def _installed(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module on `sys.path`, or in an editable installation."""
    spec = PathFinder.find_spec(name, path)
    if spec is not None:
        return spec
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((each for each in found if each and each.has_location), None)


def _digest(file: str) -> bytes | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return None
