"""Names commands as the user types them in the environment that runs.

`pip install "roxxel-format[bucket]"` is a dead end for most people: `uv run` makes an
environment without pip, and the index may know no package of this name. So the command
follows from how the package was installed, which its metadata records (PEP 610), and
from where: `uv sync` changes the workspace's `.venv` alone, and uv installs the members
of a workspace editable in any other environment too.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any


class MissingExtraError(ModuleNotFoundError):
    """A library is missing that an extra of a Roxxel package installs.

    Attributes:
        command: The command that installs it here.

    Example:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """

    command: str = ""


def missing_extra(
    what: str, library: str, package: str, extra: str
) -> MissingExtraError:
    """Return the error for a library that is not installed, with the command to run.

    Raise it from the `ModuleNotFoundError` of the import.

    Args:
        what: What needs the library: a function, an option, or the path of a file.
        library: Import name of the library.
        package: The Roxxel package whose extra installs it, such as `roxxel-format`.
        extra: Name of the extra.

    Example:
        >>> str(missing_extra("--ray", "ray", "not-installed", "ray"))
        '--ray needs ray; install it: pip install "not-installed[ray]"'
    """
    command = _command(package, extra)
    error = MissingExtraError(
        f"{what} needs {library}; install it: {command}", name=library
    )
    error.command = command
    return error


def roxxel_command(line: str) -> str:
    """Return a command of a package as the user of this environment types it.

    `roxxel format` is `roxxel-format` where only this package is installed, and the
    form of all pages where everything is. The installed commands decide, which takes
    10 ms once a message is printed: no package is imported, and a project of the public
    index that is also named roxxel has another command or none.

    Args:
        line: The command after `roxxel`, such as `format adopt "wiki_*.rox"`.

    Example:
        >>> roxxel_command("format info").replace("-", " ")
        'roxxel format info'
    """
    from importlib import metadata

    installed = metadata.entry_points(
        group="console_scripts", name="roxxel", value="roxxel.cli:main"
    )
    return f"roxxel{' ' if installed else '-'}{line}"


def _command(package: str, extra: str) -> str:
    from importlib import metadata

    from roxxel_store.records import parse_object

    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return f'pip install "{package}[{extra}]"'
    record = distribution.read_text("direct_url.json") or "{}"
    origin = parse_object(record, f"{package}/direct_url.json", "install it again")
    is_by_uv = (distribution.read_text("INSTALLER") or "").strip() == "uv"
    # `uv run` sets this variable in the environment of its child.
    is_uv_run = "UV_RUN_RECURSION_DEPTH" in os.environ
    is_editable = bool(origin.get("dir_info", {}).get("editable"))
    site = Path(str(distribution.locate_file(""))).resolve()
    if is_by_uv and is_editable and _is_of_workspace(site, Path(_path(origin))):
        # uv knows the extras of all members by their names.
        if is_uv_run:
            return f"uv run --extra {extra} ..."
        # The program may run in any folder, `uv sync` alone only in the checkout.
        folder = shlex.quote(_path(origin))
        return f"uv sync --project {folder} --inexact --extra {extra}"
    wanted = _requirement(package, extra, origin)
    if is_uv_run:
        return f"uv run --with {shlex.quote(wanted)} ..."
    installer = _uv_for(site) if is_by_uv else "pip install"
    return f'{installer}{" -e" if is_editable else ""} "{wanted}"'


def _uv_for(site: Path) -> str:
    """Return the command of uv that installs into the environment of `site`."""
    active = os.environ.get("VIRTUAL_ENV")
    if active and Path(active).resolve() in site.parents:
        return "uv pip install"
    # Without an active environment, uv would look for one in the working folder.
    return f"uv pip install --python {shlex.quote(sys.executable)}"


def _is_of_workspace(site: Path, package: Path) -> bool:
    """Return whether packages in `site` are in the `.venv` of a package's workspace."""
    return any(
        (folder / ".venv").resolve() in site.parents
        for folder in package.resolve().parents
    )


def _requirement(package: str, extra: str, origin: dict[str, Any]) -> str:
    """Return the requirement that names the place from which a package came."""
    url: str = origin.get("url", "")
    if url.startswith("file:"):
        return f"{_path(origin)}[{extra}]"
    if "vcs_info" in origin:
        subdirectory = origin.get("subdirectory")
        place = f"#subdirectory={subdirectory}" if subdirectory else ""
        return f"{package}[{extra}] @ {origin['vcs_info']['vcs']}+{url}{place}"
    return f"{package}[{extra}]"


def _path(origin: dict[str, Any]) -> str:
    """Return the folder from which a package came."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(origin["url"]).path)
