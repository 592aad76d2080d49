"""Writes the repository's address wherever packages and pages show it.

The setting is `repository` below `[tool.roxxel]` in the `pyproject.toml` of the root.
While it is empty, packages have no `[project.urls]`, and pages install from a checkout
alone. After a change of the setting, run

    python tests-integration/tools/address.py

which rewrites every package's `pyproject.toml` and every page that installs a package.
`docs/conf.py` reads the setting itself.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
_URLS = re.compile(r"\[project\.urls\]\n(?:[^\n\[]+\n)*\n")
_NOTICE = re.compile(r"\*\*On the public package index, .*?(?=\n\n)", re.DOTALL)


def configured() -> str:
    """Return the address of the repository; empty while it has none."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["roxxel"]["repository"].rstrip("/")


def urls(address: str, package: str) -> dict[str, str]:
    """Return the `[project.urls]` of a package."""
    if not address:
        return {}
    changes = f"{address}/blob/main/packages/{package}/CHANGELOG.md"
    return {"Repository": address, "Changelog": changes}


def notice(address: str) -> str:
    """Return how to install, for pages that install a package."""
    text = (
        "**On the public package index, `roxxel` is another project.** Install from a "
        "checkout, as shown here"
    )
    if not address:
        return f"{text}."
    return (
        f"{text}, or without one: `pip install "
        f'"git+{address}#subdirectory=packages/NAME"`, with one such argument for each '
        "package."
    )


def with_urls(project: str, address: str, package: str) -> str:
    """Return the text of a package's `pyproject.toml` with its `[project.urls]`."""
    bare = _URLS.sub("", project)
    found = urls(address, package)
    if not found:
        return bare
    lines = "".join(f'{name} = "{url}"\n' for name, url in found.items())
    return bare.replace("[build-system]", f"[project.urls]\n{lines}\n[build-system]", 1)


def with_notice(page: str, address: str) -> str:
    """Return the text of a page with the notice of this address."""
    lines = textwrap.fill(
        notice(address), 100, break_long_words=False, break_on_hyphens=False
    )
    return _NOTICE.sub(lambda _: lines, page)


def pages() -> list[Path]:
    """Return every page for readers: the README files and the documentation."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md")]
    found += ROOT.glob("docs/**/*.md")
    return sorted(page for page in found if "_build" not in page.parts)


def main() -> None:
    """Rewrite every file that shows the address."""
    address = configured()
    for path in ROOT.glob("packages/*/pyproject.toml"):
        project = path.read_text("utf-8")
        path.write_text(with_urls(project, address, path.parent.name), "utf-8")
    for path in pages():
        path.write_text(with_notice(path.read_text("utf-8"), address), "utf-8")


if __name__ == "__main__":
    main()
