"""Every task of the project, one session each.

`nox` without arguments checks and tests everything on this Python; `nox -l` lists what
else there is, which takes longer or wants another machine, and runs when it is named.
Words after `--` go to pytest. `nox --force-python 3.13` takes another Python.

Each package is tested in an environment that holds that package and its own
dependencies and nothing else, so an import its `pyproject.toml` does not declare fails.
Where a package reaches further than the design lets it, `boundaries` says so, and what
would only fail for the same reason does not run.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path

import nox
from packaging.requirements import Requirement

PACKAGES = (
    "roxxel-format",
    "roxxel-curriculum",
    "roxxel-loader",
    "roxxel-ckpt",
    "roxxel-train",
    "roxxel",
)

# The newest of this machine; none but those that JAX is known to run on.
OLDEST_PYTHON = "3.11"
NEWEST_PYTHON = "3.14" if shutil.which("python3.14") else "3.13"

LOWEST = ("--resolution", "lowest-direct")

# The points of the JAX matrix: Python, and what is asked for. Flax must be resolved
# beside the JAX it was made for, so only JAX is pinned; the oldest point takes the
# lowest version of everything. JAX 0.9 was the first whose meshes are explicit, 0.10 is
# the last for Python 3.11. Nothing asked for means uv's resolution, on this Python.
POINTS = {
    "workspace": (None, ()),
    "oldest": (OLDEST_PYTHON, LOWEST),
    "jax-0.9": ("3.12", ("jax==0.9.2",)),
    "jax-0.10": ("3.11", ("jax==0.10.2",)),
    "newest": (NEWEST_PYTHON, ("jax",)),
}

# All that the environment of a package may hold, where it is that little.
BARE = {
    "roxxel-format": ("numpy",),
    "roxxel-curriculum": ("numpy", "roxxel-format"),
}

INTEGRATION = Path("tests-integration")
BENCHMARKS = INTEGRATION / "benchmarks"
TOOLS = INTEGRATION / "tools"
DIST = Path("dist")

# How tools/devices.py says so.
NONE_FOUND = 3

# The session `docs` runs what the pages show.
NO_PAGES = "--ignore=tests-integration/test_docs.py"

# Tests, the words that choose among them, and what makes them long.
DRILLS = (
    (
        "packages/roxxel-ckpt/tests/test_programs.py",
        "kill",
        {"ROXXEL_CKPT_KILLS": "30"},
    ),
    ("tests-integration/test_drill.py", "test", {"ROXXEL_DRILL": "60"}),
)

# Programs that try to break a corpus, with the sizes of a whole campaign.
FUZZERS = (
    ("format_fuzz", ("--files", "100000")),
    ("manifest_fuzz", ("--files", "10000")),
    ("input_fuzz", ("--files", "2000")),
    ("bucket_faults", ("--runs", "2000")),
)
# The same for whole runs and for Ray, which need every package and extra.
OF_RUNS = (
    ("format_prepare", ("--ray", "--kills", "30")),
    ("bucket_kills", ("--kills", "10", "--processes", "1")),
    ("bucket_kills", ("--kills", "10", "--processes", "2")),
)
CAMPAIGNS = (
    ("format_kill", ("--kills", "50")),
    ("format_append", ("--appends", "200", "--kills", "20", "--processes", "2")),
    ("format_append", ("--appends", "200", "--kills", "20", "--processes", "4")),
    ("format_clean", ("--writes", "30")),
    ("format_prepare", ("--kills", "30")),
)

nox.options.sessions = [
    "boundaries",
    "lint",
    "types",
    "tests",
    "integration(workspace)",
    "docs",
]
nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "uv"
# A session without its interpreter must not look like a session that passed.
# `nox --no-error-on-missing-interpreters` lists it as skipped instead.
nox.options.error_on_missing_interpreters = True


def has_own_environment(session: nox.Session) -> bool:
    """Return whether the session may install; `nox --no-venv` runs where nox runs."""
    return session.venv_backend != "none"


def python_of(session: nox.Session) -> str:
    """Return the interpreter of the session's environment."""
    return "python" if has_own_environment(session) else sys.executable


def sync(session: nox.Session, *arguments: str) -> None:
    """Make the session's environment hold what uv's resolution names, no more.

    With `nox --no-venv` the environment is the user's and stays as it is.
    """
    if not has_own_environment(session):
        return
    session.run_install(
        "uv",
        "sync",
        "--quiet",
        "--no-default-groups",
        *arguments,
        env={
            "UV_PROJECT_ENVIRONMENT": session.virtualenv.location,
            "UV_PYTHON": session.virtualenv.location,
        },
        external=True,
    )


def with_members(package: str) -> Sequence[str]:
    """Return a package and those members that it stands on."""
    project = nox.project.load_toml(f"packages/{package}/pyproject.toml")["project"]
    needed = {Requirement(line).name for line in project["dependencies"]} & {*PACKAGES}
    stand = {name for member in needed for name in with_members(member)}
    return [name for name in PACKAGES if name in {package, *stand}]


def sources(*packages: str) -> Sequence[str]:
    """Return packages as folders, so that none of a like name comes from an index."""
    return [f"./packages/{package}" for package in packages]


def test_tools(package: str) -> Sequence[str]:
    """Return what brings in the test tools of a package."""
    return ["--group", f"packages/{package}/pyproject.toml:test"]


@nox.session
def boundaries(session: nox.Session) -> None:
    """Check what each package imports and requires against the design."""
    sync(session, "--only-group", "integration")
    pytest = (python_of(session), "-m", "pytest", "--quiet")
    session.run(*pytest, INTEGRATION / "test_boundaries.py")


@nox.session(requires=["boundaries"])
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(requires=["boundaries"])
def types(session: nox.Session) -> None:
    """Check types over sources and tests with pyright."""
    sync(session, "--all-packages", "--all-extras", "--group", "types")
    session.run("pyright", "--pythonpath", f"{session.bin}/python")


@nox.session(requires=["boundaries"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Test one package with its own dependencies alone."""
    sync(session, "--package", package, "--group", "test")
    session.run("pytest", f"packages/{package}", *session.posargs)


@nox.session(requires=["boundaries"])
@nox.parametrize(
    "python,wanted", [nox.param(*point, id=name) for name, point in POINTS.items()]
)
def integration(session: nox.Session, wanted: Sequence[str]) -> None:
    """Test what only holds across packages, at one point of the JAX matrix."""
    if wanted:
        # In one call: flax says too little of which JAX it can live with.
        session.install(*wanted, *sources(*PACKAGES), "--group", "integration")
    else:
        sync(session, "--all-packages", "--group", "integration")
    session.run("pytest", INTEGRATION, NO_PAGES, *session.posargs)


@nox.session(name="integration-tpu", requires=["boundaries"])
def integration_tpu(session: nox.Session) -> None:
    """Run the integration tests on the TPUs of this machine."""
    on_devices(session, "tpu", "tpu")


@nox.session(name="integration-gpu", requires=["boundaries"])
@nox.parametrize("extra", ["cuda12", "cuda13"], ids=["cuda12", "cuda13"])
def integration_gpu(session: nox.Session, extra: str) -> None:
    """Run the integration tests on the GPUs of this machine."""
    on_devices(session, "cuda", extra)


def on_devices(session: nox.Session, platform: str, extra: str) -> None:
    """Run the integration tests on what JAX finds of a platform.

    Nothing found fails the session; `-- --may-skip` skips it instead. With
    `nox --no-venv` the tests use the environment that nox runs in, so that a machine
    without a package index can run them.
    """
    words = [word for word in session.posargs if word != "--may-skip"]
    jax = f"jax[{extra}]"
    if has_own_environment(session):
        session.install(jax, *sources(*PACKAGES), "--group", "integration")
    said = session.run(
        *(python_of(session), TOOLS / "devices.py", platform),
        env={"JAX_PLATFORMS": ""},  # all that JAX knows
        silent=True,
        success_codes=[0, NONE_FOUND],
    )
    # Drivers write to the same place.
    [(number, answer)] = re.findall(r"^found (\d+): (.*)$", str(said), re.MULTILINE)
    if number == "0":
        leave = session.skip if "--may-skip" in session.posargs else session.error
        leave(f"{jax} finds no {platform} device here: {answer}; nothing was tested")
    session.log(f"{number} {platform} devices: {answer}")
    session.run(
        *(python_of(session), "-m", "pytest", "-rs", INTEGRATION, NO_PAGES, *words),
        env={"ROXXEL_TEST_DEVICES": f"{platform}:{number}"},
    )


@nox.session(python=OLDEST_PYTHON, requires=["boundaries"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def minimal(session: nox.Session, package: str) -> None:
    """Test one package with the lowest versions that it says it can live with."""
    members = sources(*with_members(package))
    session.install(*LOWEST, *members, *test_tools(package))
    session.run("pytest", f"packages/{package}", *session.posargs)


@nox.session(requires=["boundaries"])
def build(session: nox.Session) -> None:
    """Build wheel and source distribution of every package into dist/."""
    session.run_install(
        *("uv", "build", "--quiet", "--all-packages", "--clear", "--out-dir", DIST),
        external=True,
    )


@nox.session(requires=["build"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def isolated(session: nox.Session, package: str) -> None:
    """Test one package from its built files alone, in an empty environment."""
    bare = ("python", TOOLS / "bare.py", package, *BARE.get(package, ()))
    contents: set[object] = set()
    for ending in (".tar.gz", "-py3-none-any.whl"):
        # By file name: an index may hold other packages of these names.
        files = [
            str(path)
            for member in with_members(package)
            for path in DIST.glob(f"{member.replace('-', '_')}-[0-9]*{ending}")
        ]
        session.run_install(
            *("uv", "venv", "--quiet", "--clear", "--python", f"{session.bin}/python"),
            session.virtualenv.location,
            external=True,
        )
        session.install(*files)
        contents.add(session.run(*bare, silent=True))
    if len(contents) > 1:
        session.error(f"the wheel and the sdist of {package} hold different files")
    session.install(*files, *test_tools(package))
    session.run("pytest", f"packages/{package}", *session.posargs)


@nox.session(requires=["boundaries"])
def docs(session: nox.Session) -> None:
    """Build the site, warnings being errors, and run what its pages show."""
    groups = ("--group", "integration", "--group", "docs")
    sync(session, "--all-packages", "--all-extras", *groups)
    site = Path("docs") / "_build"
    # All pages are read anew: one that was warned of is not passed over.
    session.run("sphinx-build", "-E", "-W", "-q", "docs", str(site))
    session.run("pytest", INTEGRATION / "test_docs.py", *session.posargs)
    session.log(f"the site is in {site / 'index.html'}")


@nox.session
def resolve(session: nox.Session) -> None:
    """Resolve the workspace twice, from nothing; both must be the same."""
    locks: list[bytes] = []
    for name in ("first", "second"):
        folder = Path(session.create_tmp()) / name
        for path in (Path("pyproject.toml"), *Path("packages").glob("*/[!.]*.*")):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(path.read_bytes())
        (folder / "uv.lock").unlink(missing_ok=True)
        session.run_install(
            *("uv", "lock", "--quiet", "--project", folder, "--refresh"),
            external=True,
        )
        locks.append((folder / "uv.lock").read_bytes())
    if locks[0] != locks[1]:
        session.error(f"two resolutions differ; compare {session.create_tmp()}/*")


@nox.session(requires=["boundaries"])
def release(session: nox.Session) -> None:
    """Build, in order, what has a version without a tag, or say why it may not be."""
    found = session.run("python", TOOLS / "release.py", silent=True)
    if not found:
        session.log("nothing to release: every version has its tag")
    # Nothing else may lie there: what is uploaded is the folder.
    folder = DIST / "release"
    shutil.rmtree(folder, ignore_errors=True)
    for name, version in (line.split() for line in str(found).splitlines()):
        session.run_install(
            *("uv", "build", "--package", name, "--out-dir", folder), external=True
        )
        session.log(f"when it is published: git tag {name}-v{version}")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Read mutated shards, manifests and inputs; kill tasks of Ray, runs in a bucket.

    Every file gives the original tokens or an error of one sentence; every run ends as
    one that was never killed. Options after -- are for all programs of files.
    """
    run_programs(session, FUZZERS)
    sync(session, "--all-packages", "--group", "integration")
    for name, options in OF_RUNS:
        session.run("python", f"{BENCHMARKS}/{name}.py", *options)


@nox.session
def campaign(session: nox.Session) -> None:
    """Kill writers, appends and preparations, and clean beside living writers."""
    run_programs(session, CAMPAIGNS)


def run_programs(
    session: nox.Session, programs: Sequence[tuple[str, Sequence[str]]]
) -> None:
    """Run benchmark programs that need roxxel-format alone, with their options."""
    sync(session, "--package", "roxxel-format", "--group", "test")
    for name, options in programs:
        session.log(" ".join([name, *options]))
        session.run("python", f"{BENCHMARKS}/{name}.py", *options, *session.posargs)


@nox.session
def drill(session: nox.Session) -> None:
    """Kill programs at many more moments than the suite does; each must go on."""
    sync(session, "--all-packages", "--group", "integration")
    for path, words, environment in DRILLS:
        session.run("pytest", path, "-k", words, *session.posargs, env=environment)


@nox.session
def bench(session: nox.Session) -> None:
    """Run every benchmark, or those whose names are given, with the options given.

    `ROXXEL_BENCH_JAX="jax[cuda13]"` installs what JAX needs for an accelerator.
    """
    sync(session, "--all-packages", "--group", "integration", "--extra", "plot")
    accelerator = os.environ.get("ROXXEL_BENCH_JAX")
    if accelerator and has_own_environment(session):
        session.install(accelerator)
    words = session.posargs
    options = list(dropwhile(lambda word: not word.startswith("-"), words))
    campaigns = {name for name, _ in (*FUZZERS, *CAMPAIGNS)}
    names = words[: len(words) - len(options)] or sorted(
        path.stem
        for path in BENCHMARKS.glob("[a-z]*.py")
        if not path.stem.endswith("_test") and path.stem not in campaigns
    )
    for name in names:
        session.log(name)
        session.run(python_of(session), f"{BENCHMARKS}/{name}.py", *options)
