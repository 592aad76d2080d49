"""A package can be released alone if its version, changelog and ranges allow it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .tools import release
from .tools.release import Member, Tagged, Version

ROOT = Path(__file__).parents[1]
FIRST = Version(0, 1, 0)


def changelog(version: str, text: str = "### Fixed\n\n- It.") -> str:
    return f"# Changelog\n\n## [Unreleased]\n\n## [{version}] - 2026-11-20\n\n{text}\n"


def member(name: str, version: Version = FIRST, **needs: str) -> Member:
    ranges = {f"roxxel-{other}": text for other, text in needs.items()}
    return Member(f"roxxel-{name}", version, ranges, changelog(str(version)))


BASE = member("format")
ABOVE = member("curriculum", format=">=0.1,<0.2")
TOP = member("loader", curriculum=">=0.1,<0.2")
TAGGED = {one.name: Tagged(one.version, one.needs) for one in (BASE, ABOVE, TOP)}

versions = st.builds(Version, *[st.integers(0, 20)] * 3)


def names(members: tuple[Member, ...], tagged: dict[str, Tagged]) -> list[str]:
    return [one.name for one in release.to_release(members, tagged)]


@settings(deadline=None)
@given(versions, st.integers(0, 2))
def test_only_a_step_within_a_minor_version_is_compatible_before_1(
    version: Version, step: int
) -> None:
    successor = version.successors[step]
    compatible = step == 0 or (step == 1 and version.major > 0)

    assert version < successor
    assert (successor < version.next_incompatible) == compatible


@settings(deadline=None)
@given(versions)
def test_a_version_is_read_as_it_is_written(version: Version) -> None:
    assert release.parse_version(str(version)) == version


def test_nothing_is_to_be_released_when_all_versions_have_tags() -> None:
    assert names((BASE, ABOVE, TOP), TAGGED) == []
    assert release.refusals((BASE, ABOVE, TOP), TAGGED) == []


def test_a_first_release_builds_those_first_that_others_need() -> None:
    assert names((TOP, ABOVE, BASE), {}) == [BASE.name, ABOVE.name, TOP.name]
    assert release.refusals((TOP, ABOVE, BASE), {}) == []


def test_a_bump_of_one_package_alone_goes_through() -> None:
    bumped = member("format", Version(0, 1, 1))

    assert names((bumped, ABOVE, TOP), TAGGED) == [BASE.name]
    assert release.refusals((bumped, ABOVE, TOP), TAGGED) == []


def test_an_incompatible_bump_alone_is_refused() -> None:
    bumped = member("format", Version(0, 2, 0))

    [reason] = release.refusals((bumped, ABOVE, TOP), TAGGED)

    assert reason == (
        "roxxel-curriculum 0.1.0 requires roxxel-format>=0.1,<0.2, but roxxel-format "
        "is 0.2.0; once the two are tried together, write <0.3 in "
        "packages/roxxel-curriculum/pyproject.toml and release roxxel-curriculum too"
    )


def test_an_incompatible_bump_goes_through_with_those_that_need_it() -> None:
    bumped = member("format", Version(0, 2, 0))
    above = member("curriculum", Version(0, 1, 1), format=">=0.1,<0.3")

    assert names((bumped, above, TOP), TAGGED) == [BASE.name, ABOVE.name]
    assert release.refusals((bumped, above, TOP), TAGGED) == []


def test_a_released_package_that_asks_for_another_range_is_refused() -> None:
    bumped = member("format", Version(0, 2, 0))
    same = member("curriculum", format=">=0.2,<0.3")

    [reason] = release.refusals((bumped, same, TOP), TAGGED)

    assert "is released with roxxel-format>=0.1,<0.2 and now requires" in reason


@pytest.mark.parametrize(
    ("section", "floor", "refused"),
    [("Added", "0.1", True), ("Fixed", "0.1", False), ("Added", "0.1.1", False)],
)
def test_who_is_released_with_something_new_asks_for_it(
    section: str, floor: str, *, refused: bool
) -> None:
    text = changelog("0.1.1", f"### {section}\n\n- It.")
    bumped = replace(member("format", Version(0, 1, 1)), changelog=text)
    above = member("curriculum", Version(0, 1, 1), format=f">={floor},<0.2")

    reasons = release.refusals((bumped, above, TOP), TAGGED)

    assert [
        "tried with roxxel-format 0.1.1, which adds something" in one for one in reasons
    ] == [True] * refused
    assert not release.floor_refusals(above, ())


@pytest.mark.parametrize("text", ["==0.1.0", ">=0.1", "", "~=0.1", ">=0.1,<0.2,!=0.1"])
def test_a_range_of_another_form_is_refused(text: str) -> None:
    [reason] = release.range_refusals((BASE, member("curriculum", format=text)))

    assert "is no range of the form >=A,<B" in reason


@pytest.mark.parametrize("text", [">=0.1,<0.3", ">=0.1,<1"])
def test_a_range_beyond_the_next_incompatible_version_is_refused(text: str) -> None:
    [reason] = release.range_refusals((BASE, member("curriculum", format=text)))

    assert "admits versions that may break it; once" in reason


@pytest.mark.parametrize("version", [Version(0, 0, 9), Version(0, 1, 2)])
def test_a_version_that_skips_or_goes_back_is_refused(version: Version) -> None:
    [reason] = release.step_refusals(member("format", version), FIRST)

    assert reason == (
        f"roxxel-format {version} cannot follow 0.1.0; "
        "choose one of 0.1.1, 0.2.0, 1.0.0"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# Changelog\n", "begins with version none, not 0.1.1"),
        (changelog("0.1.0"), "begins with version 0.1.0, not 0.1.1"),
        (changelog("0.1.1", ""), "does not mention 0.1.1"),
        (changelog("0.1.1", "### Removed\n\n- It."), "make it 0.2.0"),
        (
            changelog("0.1.1").replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"),
            "has changes under Unreleased",
        ),
    ],
)
def test_a_changelog_that_does_not_tell_of_the_version_is_refused(
    text: str, reason: str
) -> None:
    bumped = replace(member("format", Version(0, 1, 1)), changelog=text)

    [found] = release.changelog_refusals(bumped, TAGGED[BASE.name])

    assert reason in found


def test_sources_of_another_version_are_refused() -> None:
    [reason] = release.version_refusals(replace(BASE, written=("0.1.0", "0.0.9")))

    assert (
        "is 0.1.0 in pyproject.toml but __version__ is 0.0.9 in its sources" in reason
    )


def test_a_version_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'0\.1\.0rc1' is not of the form X\.Y\.Z"):
        release.parse_version("0.1.0rc1")


def git(folder: Path, *arguments: str) -> None:
    # No file of settings may sign, hook or rename what happens here.
    options = ["-c", "user.name=n", "-c", "user.email=e", "-c", "core.hooksPath="]
    command = ["git", "-C", str(folder), *options, "-c", "commit.gpgsign=false"]
    subprocess.run([*command, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def as_released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout's packages, all released as they are; no test changes them."""
    root = tmp_path_factory.mktemp("released")
    members = release.read_members()
    for member in members:
        folder = root / "packages" / member.name
        folder.mkdir(parents=True)
        here = ROOT / "packages" / member.name
        text = (here / "pyproject.toml").read_text("utf-8")
        (folder / "pyproject.toml").write_text(text, "utf-8")
        (folder / "CHANGELOG.md").write_text(changelog(str(member.version)), "utf-8")
        compiled = shutil.ignore_patterns("__pycache__")
        shutil.copytree(here / "src", folder / "src", ignore=compiled)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "all")
    for member in members:
        git(root, "tag", f"{member.name}-v{member.version}")
    return root


@pytest.fixture
def released(as_released: Path, tmp_path: Path) -> Path:
    """A copy of them, to change."""
    return shutil.copytree(as_released, tmp_path / "root")


def bump(root: Path, name: str, step: int) -> Version:
    """Write the version that comes after that of a package, by a step of this size."""
    folder = root / "packages" / name
    [old] = [one.version for one in release.read_members(root) if one.name == name]
    new = old.successors[step]
    for path in [folder / "pyproject.toml", *folder.glob("src/*/_version.py")]:
        text = path.read_text("utf-8")
        path.write_text(text.replace(f'"{old}"', f'"{new}"'), "utf-8")
    (folder / "CHANGELOG.md").write_text(changelog(str(new)), "utf-8")
    return new


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, release.__file__, str(root), *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_program_names_what_to_build(released: Path) -> None:
    none = run(released)
    assert (none.returncode, none.stdout) == (0, "")

    version = bump(released, "roxxel-format", 0)

    done = run(released)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"roxxel-format {version}\n"


def test_a_tag_publishes_its_package_alone(released: Path) -> None:
    version = bump(released, "roxxel-format", 0)
    bump(released, "roxxel-loader", 0)
    tag = f"roxxel-format-v{version}"
    git(released, "add", ".")
    git(released, "commit", "--quiet", "--message", "bump")

    before = run(released, tag)
    git(released, "tag", tag)

    assert before.stdout == run(released, tag).stdout == f"roxxel-format {version}\n"


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("roxxel-format-v0.2.0", "which is 0.1.0 in pyproject.toml; set the tag"),
        ("roxxel-other-v0.1.0", "names no package; name one of"),
        ("0.1.0", "names no package; name one of"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(
    as_released: Path, tag: str, reason: str
) -> None:
    done = run(as_released, tag)

    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_a_package_is_published_after_those_that_it_needs() -> None:
    [reason] = release.tag_refusals((BASE, ABOVE), {}, "roxxel-curriculum-v0.1.0")

    assert reason == (
        "roxxel-curriculum-v0.1.0 requires roxxel-format>=0.1,<0.2, which has no "
        "release; release roxxel-format first"
    )
    assert not release.tag_refusals((BASE, ABOVE), TAGGED, "roxxel-curriculum-v0.1.0")


def test_the_oldest_siblings_are_those_that_all_ranges_allow() -> None:
    both = member("train", curriculum=">=0.1,<0.2", format=">=0.1.1,<0.2")
    released = {BASE.name: [Version(0, 1, 2), FIRST, Version(0, 1, 1)]}

    found = release.oldest((BASE, ABOVE, both), released, both.name)

    assert found == {BASE.name: Version(0, 1, 1), ABOVE.name: None}
    assert [*found] == [BASE.name, ABOVE.name]


def test_sources_that_wait_for_a_version_hold_back_who_needs_them(
    released: Path,
) -> None:
    changed = released / "packages/roxxel-loader/src/roxxel_loader/__init__.py"
    changed.write_text(changed.read_text("utf-8") + "\n# New.\n", "utf-8")
    assert run(released).returncode == 0

    bump(released, "roxxel-train", 0)

    done = run(released)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "refused: roxxel-train 0.1.1 was tried with sources of roxxel-loader that have "
        "changed since 0.1.0; give roxxel-loader a new version too\n"
    )
    bump(released, "roxxel-loader", 0)
    assert run(released).stdout == "roxxel-loader 0.1.1\nroxxel-train 0.1.1\n"


def test_the_program_refuses_with_the_reasons(released: Path) -> None:
    version = bump(released, "roxxel-ckpt", 2)

    done = run(released)

    assert (done.returncode, done.stdout) == (1, "")
    reasons = done.stderr.splitlines()
    assert len(reasons) == 2  # The trainer and the umbrella stand on it.
    assert all(f"but roxxel-ckpt is {version};" in reason for reason in reasons)


def test_the_versions_and_ranges_of_this_checkout_fit() -> None:
    members = release.read_members()

    assert not release.range_refusals(members)
    assert not [reason for one in members for reason in release.version_refusals(one)]
