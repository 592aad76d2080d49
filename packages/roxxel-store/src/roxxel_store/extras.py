"""Name the extra of a missing library, and commands as the user types them."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtraError(ModuleNotFoundError):
    """A library is missing that an extra of a Roxxel package installs.

    Example:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


def missing_extra(
    what: str, library: str, package: str, extra: str
) -> MissingExtraError:
    """Return the error for a library that is not installed, with the extra to install.

    Raise it from the `ModuleNotFoundError` of the import.

    Args:
        what: What needs the library: a function, an option, or the path of a file.
        library: Import name of the library.
        package: The Roxxel package whose extra installs it, such as `roxxel-format`.
        extra: Name of the extra.

    Example:
        >>> str(missing_extra("--ray", "ray", "roxxel-prepare", "ray"))
        '--ray needs ray; install it: pip install "roxxel-prepare[ray]"'
    """
    return MissingExtraError(
        f'{what} needs {library}; install it: pip install "{package}[{extra}]"',
        name=library,
    )


def modules_of(what: str, package: str, *names: str) -> list[Any]:
    """Import modules of a framework that users install themselves.

    Args:
        what: What needs the framework.
        package: What to install.
        names: Full names of the modules.

    Raises:
        ModuleNotFoundError: The framework, or a package that it imports, is missing.

    Example:
        >>> modules_of("my.bridge", "numpy", "numpy")[0].__name__
        'numpy'
    """
    try:
        return [importlib.import_module(name) for name in names]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {error.name}; install {package}", name=error.name
        ) from error


def roxxel_command(line: str) -> str:
    """Return a command of a package as the user of this environment types it.

    `roxxel format` is `roxxel-format` where only this package is installed, and the
    form of all pages where everything is. `roxxel-prepare write` is then `roxxel
    write`. It looks at the installed commands, which
    takes 10 ms once a message is printed. It imports no package, and another project
    named roxxel cannot mislead it.

    Args:
        line: The command after `roxxel`, such as `format clean "wiki_*.rox"`.

    Example:
        >>> roxxel_command("format info").replace("-", " ")
        'roxxel format info'
    """
    from importlib import metadata

    installed = metadata.entry_points(
        group="console_scripts", name="roxxel", value="roxxel.cli:main"
    )
    return f"roxxel {line.removeprefix('prepare ')}" if installed else f"roxxel-{line}"
