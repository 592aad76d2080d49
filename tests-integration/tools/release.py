"""Decides which packages may be released, and in which order.

A package must be released if its version has no tag `NAME-vX.Y.Z` yet. Each package has
its own version, so it can be released alone. The packages stay compatible because the
range that a package requires of another must include the version in this checkout.

    python tests-integration/tools/release.py

prints the name and version of each package to build, dependencies first, or prints the
reasons against a release and returns exit code 1.

    python tests-integration/tools/release.py . roxxel-format-v0.2.0

does so for the package of a tag alone, as if the tag were not set yet.

    python tests-integration/tools/release.py --oldest roxxel-train

prints the package and every member below it, each with the tag of the oldest release
that the ranges allow; a member without such a release has none.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]


class Version(NamedTuple):
    """A version of three numbers."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @property
    def next_incompatible(self) -> Version:
        """The first version that may break users of this version."""
        if self.major:
            return Version(self.major + 1, 0, 0)
        return Version(0, self.minor + 1, 0)

    @property
    def successors(self) -> tuple[Version, Version, Version]:
        """The versions that may be released after this version."""
        return (
            Version(self.major, self.minor, self.patch + 1),
            Version(self.major, self.minor + 1, 0),
            Version(self.major + 1, 0, 0),
        )


def parse_version(text: str) -> Version:
    """Return a version from its text; missing numbers are 0.

    Raises:
        ValueError: It is not one, two or three numbers.
    """
    if not re.fullmatch(r"\d+(\.\d+){0,2}", text):
        raise ValueError(
            f"version {text!r} is not of the form X.Y.Z; write three numbers"
        )
    numbers = [int(number) for number in text.split(".")]
    return Version(*[*numbers, 0, 0][:3])


@dataclass(frozen=True)
class Member:
    """What the files of one package say about it.

    Attributes:
        version: From `pyproject.toml`.
        written: Every `__version__ = "..."` of its sources.
        needs: Member packages it depends on, and the range it asks of each.
        changelog: Text of `CHANGELOG.md`.
    """

    name: str
    version: Version
    needs: Mapping[str, str]
    changelog: str
    written: Sequence[str] = ()


@dataclass(frozen=True)
class Tagged:
    """The newest release of a package.

    Attributes:
        version: Its version.
        needs: The ranges that it asked for.
        is_past: Whether the package's sources have changed since.
    """

    version: Version
    needs: Mapping[str, str]
    is_past: bool = False


def to_release(
    members: Sequence[Member], tagged: Mapping[str, Tagged]
) -> Sequence[Member]:
    """Return the members whose version has no tag, dependencies first."""
    left = {
        member.name: member
        for member in members
        if member.name not in tagged or tagged[member.name].version != member.version
    }
    ordered: list[Member] = []
    while left:
        free = [one for one in left.values() if not left.keys() & one.needs.keys()]
        assert free, f"packages need each other: {sorted(left)}"
        ordered += free
        left = {name: left[name] for name in left if left[name] not in free}
    return ordered


def refusals(members: Sequence[Member], tagged: Mapping[str, Tagged]) -> Sequence[str]:
    """Return the reasons against a release of the members, one sentence each."""
    found = [*range_refusals(members)]
    released = {one.name for one in members if one not in to_release(members, tagged)}
    waiting = {name for name in released if tagged[name].is_past}
    for member in to_release(members, tagged):
        if member.name in tagged:
            found += step_refusals(member, tagged[member.name].version)
        found += changelog_refusals(member, tagged.get(member.name))
        found += floor_refusals(member, to_release(members, tagged))
        found += [
            f"{member.name} {member.version} was tried with sources of {name} that "
            f"have changed since {tagged[name].version}; give {name} a new version too"
            for name in member.needs
            if name in waiting
        ]
    for member in members:
        last = tagged.get(member.name)
        found += version_refusals(member)
        if last and last.version == member.version and last.needs != member.needs:
            found.append(
                f"{member.name} {member.version} is released with {_ranges(last.needs)}"
                f" and now requires {_ranges(member.needs)}; "
                "give it a new version, because a released one cannot change"
            )
    return found


def tag_refusals(
    members: Sequence[Member], tagged: Mapping[str, Tagged], tag: str
) -> Sequence[str]:
    """Return the reasons against publishing what a tag names.

    Args:
        members: The packages of the checkout at the tag.
        tagged: The newest releases before it.
        tag: Such as `roxxel-format-v0.2.0`.
    """
    name, _, text = tag.rpartition("-v")
    found = [member for member in members if member.name == name]
    if not found:
        known = ", ".join(member.name for member in members)
        return [f"tag {tag!r} names no package; name one of {known}"]
    [member] = found
    if text != str(member.version):
        here = f"which is {member.version} in pyproject.toml"
        right = f"{name}-v{member.version}"
        return [f"tag {tag!r} does not fit {name}, {here}; set the tag {right}"]
    return [
        f"{tag} requires {other}{text}, which has no release; release {other} first"
        for other, text in member.needs.items()
        if other not in tagged or not _fits(tagged[other].version, text)
    ]


def _fits(version: Version, text: str) -> bool:
    """Return whether a version is in a range of the form `>=A,<B`."""
    match = re.fullmatch(r">=([\d.]+),<([\d.]+)", text.replace(" ", ""))
    lower, upper = map(parse_version, match.groups()) if match else (version, version)
    return lower <= version < upper


def oldest(
    members: Sequence[Member], released: Mapping[str, Sequence[Version]], name: str
) -> Mapping[str, Version | None]:
    """Return the oldest release of every member below a package that it may meet.

    Args:
        members: The packages of the checkout.
        released: Every release of each package.
        name: The package.

    Returns:
        By member, dependencies first; None where no release is in all ranges.
    """
    needs = {member.name: member.needs for member in members}
    below: dict[str, list[str]] = {}

    def visit(name: str) -> None:
        for other, text in needs[name].items():
            if other not in below:
                visit(other)
            below.setdefault(other, []).append(text)

    visit(name)
    return {
        other: min(
            (
                version
                for version in released.get(other, ())
                if all(_fits(version, text) for text in texts)
            ),
            default=None,
        )
        for other, texts in below.items()
    }


def version_refusals(member: Member) -> Sequence[str]:
    """Return a sentence for each wrong version in the sources of a member."""
    here = f"{member.name} is {member.version} in pyproject.toml"
    return [
        f"{here} but __version__ is {other} in its sources; write the same in both"
        for other in member.written
        if other != str(member.version)
    ]


def range_refusals(members: Sequence[Member]) -> Sequence[str]:
    """Return a sentence for each range between members that does not fit the checkout.

    A range is `>=A,<B`: A is the oldest version that works, and B is the first version
    after the one in this checkout that may break. A wider range would include versions
    that were never tested.
    """
    versions = {member.name: member.version for member in members}
    found: list[str] = []
    for member in members:
        for name, text in member.needs.items():
            version = versions[name]
            asks = f"{member.name} {member.version} requires {name}{text}"
            remedy = (
                f"once the two are tried together, write "
                f"<{_short(version.next_incompatible)} in "
                f"packages/{member.name}/pyproject.toml and release {member.name} too"
            )
            match = re.fullmatch(r">=([\d.]+),<([\d.]+)", text.replace(" ", ""))
            if not match:
                found.append(f"{asks}, which is no range of the form >=A,<B; {remedy}")
                continue
            lower, upper = map(parse_version, match.groups())
            if not lower <= version < upper:
                found.append(f"{asks}, but {name} is {version}; {remedy}")
            elif upper > version.next_incompatible:
                found.append(
                    f"{asks}, which admits versions that may break it; {remedy}"
                )
    return found


def floor_refusals(member: Member, released: Sequence[Member]) -> Sequence[str]:
    """Return a sentence for each new version that a member may need but not require.

    The tests of the member have run only with these versions, so the member may use
    their additions.
    """
    return [
        f"{member.name} {member.version} was tried with {other.name} {other.version}, "
        f"which adds something, and requires {other.name}{member.needs[other.name]}; "
        f"write >={_short(other.version)} in packages/{member.name}/pyproject.toml"
        for other in released
        if other.name in member.needs
        and "### Added" in next(iter(_versions(other.changelog)), "")
        and _floor(member.needs[other.name]) < other.version
    ]


def _versions(changelog: str) -> Sequence[str]:
    """Return the sections of a changelog, the newest version first."""
    sections = changelog_sections(changelog)
    return [text for name, text in sections.items() if name != "Unreleased"]


def _floor(text: str) -> Version:
    """Return the lower end of a range; the lowest version if the range has none."""
    match = re.match(r">=([\d.]+)", text.strip())
    return parse_version(match[1]) if match else Version(0, 0, 0)


def step_refusals(member: Member, last: Version) -> Sequence[str]:
    """Return why a version cannot come after the last one that was released."""
    if member.version in last.successors:
        return []
    may = ", ".join(map(str, last.successors))
    return [f"{member.name} {member.version} cannot follow {last}; choose one of {may}"]


def changelog_refusals(member: Member, last: Tagged | None) -> Sequence[str]:
    """Return a sentence for each fault of a member's changelog."""
    where = f"packages/{member.name}/CHANGELOG.md"
    sections = changelog_sections(member.changelog)
    found: list[str] = []
    if sections.pop("Unreleased", ""):
        found.append(
            f"{where} has changes under Unreleased; move them under "
            f"'## [{member.version}] - YYYY-MM-DD'"
        )
    newest = next(iter(sections), "none")
    if newest != str(member.version):
        found.append(
            f"{where} begins with version {newest}, not {member.version}; "
            "say what changes for the user"
        )
    elif not sections[newest]:
        found.append(
            f"{where} does not mention {newest}; say what changes for the user"
        )
    elif (
        last
        and "### Removed" in sections[newest]
        and member.version < last.version.next_incompatible
    ):
        found.append(
            f"{member.name} {member.version} removes something that {last.version} "
            f"has; make it {last.version.next_incompatible}"
        )
    return found


def changelog_sections(text: str) -> dict[str, str]:
    """Return the sections of a changelog by their version, in the order of the file."""
    _, *parts = re.split(r"^## \[(.+)\].*$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))


def read_members(root: Path = ROOT) -> Sequence[Member]:
    """Return the packages of a checkout."""
    return [_read_member(path) for path in sorted((root / "packages").iterdir())]


def _read_member(folder: Path) -> Member:
    text = (folder / "pyproject.toml").read_text("utf-8")
    project = tomllib.loads(text)["project"]
    sources = [path.read_text("utf-8") for path in folder.glob("src/**/*.py")]
    written = [
        re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
        for source in sources
    ]
    return Member(
        name=project["name"],
        version=parse_version(project["version"]),
        needs=member_needs(text),
        changelog=(folder / "CHANGELOG.md").read_text("utf-8"),
        written=[version for several in written for version in several],
    )


def member_needs(pyproject: str) -> Mapping[str, str]:
    """Return the members that a `pyproject.toml` requires, with their ranges."""
    pattern = re.compile(r"(roxxel[a-z-]*)(?:\[[\w,-]+\])?(.*)")
    project = tomllib.loads(pyproject)["project"]
    matches = map(pattern.fullmatch, project["dependencies"])
    return {match[1]: match[2].strip() for match in matches if match}


def read_releases(root: Path = ROOT, but: str = "") -> Mapping[str, Sequence[Version]]:
    """Return every tagged release of each package, leaving out one tag."""
    found: dict[str, list[Version]] = {}
    for tag in _git(root, "tag", "--list", "roxxel*-v*").split():
        name, _, text = tag.rpartition("-v")
        if tag != but:
            found.setdefault(name, []).append(parse_version(text))
    return found


def read_tags(root: Path = ROOT, but: str = "") -> Mapping[str, Tagged]:
    """Return the newest tagged release of every package, leaving out one tag."""
    newest = {name: max(found) for name, found in read_releases(root, but).items()}
    return {
        name: Tagged(
            version,
            member_needs(_git_file(root, name, version)),
            is_past=bool(_git(root, "diff", f"{name}-v{version}", "--", _src(name))),
        )
        for name, version in newest.items()
    }


def _src(name: str) -> str:
    return f"packages/{name}/src"


def _git_file(root: Path, name: str, version: Version) -> str:
    return _git(root, "show", f"{name}-v{version}:packages/{name}/pyproject.toml")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _ranges(needs: Mapping[str, str]) -> str:
    return " ".join(name + text for name, text in needs.items()) or "no member"


def _short(version: Version) -> str:
    return re.sub(r"(\.0)+$", "", str(version))


def main(root: Path = ROOT, tag: str = "") -> int:
    """Print what to build, or the reasons against it."""
    members, tagged = read_members(root), read_tags(root, but=tag)
    reasons = [*refusals(members, tagged)]
    if tag:
        reasons += tag_refusals(members, tagged, tag)
    for reason in reasons:
        print(f"refused: {reason}", file=sys.stderr)
    if reasons:
        return 1
    for member in to_release(members, tagged):
        if not tag or tag.startswith(f"{member.name}-v"):
            print(member.name, member.version)
    return 0


def print_oldest(root: Path, name: str) -> int:
    """Print each member below a package, with the tag of its oldest fitting release."""
    found = oldest(read_members(root), read_releases(root), name)
    for other, version in found.items():
        print(other, "" if version is None else f"{other}-v{version}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What may be released.")
    parser.add_argument("root", type=Path, nargs="?", default=ROOT)
    parser.add_argument("tag", nargs="?", default="")
    parser.add_argument("--oldest", metavar="PACKAGE")
    given = parser.parse_args()
    if given.oldest:
        sys.exit(print_oldest(given.root, given.oldest))
    sys.exit(main(given.root, given.tag))
