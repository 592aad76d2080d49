"""Every task of the project, one session each.

`nox` without arguments checks and tests on this Python all that does not take long.
`nox -l` lists all sessions; the others run only if you name them. `.ci/run` runs those
that a change must pass.
Arguments after `--` go to pytest. `nox --force-python 3.13` uses another Python.

Each package is tested in an environment with only this package and its dependencies, so
an import that its `pyproject.toml` does not declare fails. The session `boundaries`
reports imports that the design forbids; if it fails, the sessions that require it do
not run.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import dropwhile
from pathlib import Path

import nox
from packaging.requirements import Requirement

PACKAGES = (
    "roxxel-store",
    "roxxel-format",
    "roxxel-prepare",
    "roxxel-curriculum",
    "roxxel-loader",
    "roxxel-ckpt",
    "roxxel-train",
    "roxxel",
)

# The newest Python of this machine on which JAX is known to run.
OLDEST_PYTHON = "3.11"
NEWEST_PYTHON = "3.14" if shutil.which("python3.14") else "3.13"

LOWEST = ("--resolution", "lowest-direct")

# The points of the JAX matrix: a Python, and requirements. Only JAX is pinned, so that
# uv finds a Flax that fits this JAX. The oldest point uses the lowest versions of all
# dependencies. JAX 0.9 is the first with explicit meshes; JAX 0.10 is the last for
# Python 3.11. No requirements means the versions of uv's lock, on this Python.
POINTS = {
    "workspace": (None, ()),
    "oldest": (OLDEST_PYTHON, LOWEST),
    "jax-0.9": ("3.12", ("jax==0.9.2",)),
    "jax-0.10": ("3.11", ("jax==0.10.2",)),
    "newest": (NEWEST_PYTHON, ("jax",)),
}

# The only dependencies that the environment of these packages may have.
BARE = {
    "roxxel-store": (),
    "roxxel-format": ("numpy", "roxxel-store"),
    "roxxel-prepare": ("numpy", "roxxel-format", "roxxel-store"),
    "roxxel-curriculum": ("numpy", "roxxel-format", "roxxel-store"),
}

INTEGRATION = Path("tests-integration")
BENCHMARKS = INTEGRATION / "benchmarks"
TOOLS = INTEGRATION / "tools"
DIST = Path("dist")

# Exit code of tools/devices.py if no device was found.
NONE_FOUND = 3

# The sessions `boundaries`, `docs`, `benchmarks` and `drill` run these. Ray starts its
# workers again if they import for too long, so a busy machine decides how often.
OTHERS = (
    "--ignore=tests-integration/test_boundaries.py",
    "--ignore=tests-integration/test_ray_train.py",
    "--ignore=tests-integration/test_docs.py",
    "--ignore=tests-integration/benchmarks",
)

# Tests run at the same time, one for each core, but at most four. The tests of a file
# run in one process, because they share fixtures and compiled programs. Their order is
# random; pytest's first lines name the seed that repeats it. Files come to workers in
# the order of `forked/suites.py`.
PARALLEL = (
    *("--numprocesses=auto", "--maxprocesses=4"),
    *("--dist=loadfile", "--no-loadscope-reorder"),
)

# Some tests wait for the programs that they start, and those for each other, for disks,
# time limits and servers. So four run at once, however few the cores.
FOUR = ("--numprocesses=4",)
WAITING = ("roxxel-format", "roxxel-ckpt", "roxxel-train")

# The tests of packages that the session `long` runs.
LONG = ("packages/roxxel/tests/test_diff.py",)

# Only the point "workspace" runs these tests: no version of JAX changes their results,
# or the other tests make the same calls of JAX.
ONCE = (
    "bridges",
    "test_command_train.py",
    "test_document_claims.py",
    "test_hostile_files.py",
    "test_hostile_runs.py",
    "test_house.py",
    "test_primary.py",
    "test_readme.py",
    "test_registry_pages.py",
    "test_release.py",
    "test_replaced_corpus.py",
    "test_story.py",
    "test_text_of_a_run.py",
    "test_tools.py",
    "test_wrong_input.py",
)

# Tests, the argument of `-k` that selects them, and the variables that lengthen them.
DRILLS = (
    (
        "packages/roxxel-ckpt/tests/test_programs.py",
        "kill",
        {"ROXXEL_CKPT_KILLS": "30"},
    ),
    ("tests-integration/test_drill.py", "test", {"ROXXEL_DRILL": "60"}),
    (
        "tests-integration/test_disk_faults.py",
        "test",
        {"ROXXEL_DISK_FAULTS": "all"},
    ),
    ("tests-integration/test_effects.py", "test", {"ROXXEL_EFFECT_SEEDS": "5"}),
    ("tests-integration/test_ray_train.py", "test", {}),
)

# What the session `bridges` installs, by the framework of its tests: a Python, the
# package whose tests these are, and requirements. MaxText has what it needs on a TPU in
# an extra, which a CPU can have but for `libtpu` and for builds of torch that are on no
# index.
BRIDGES = {
    "torch": (
        None,
        "roxxel-curriculum",
        ("torch>=2.6", "accelerate>=1", "transformers>=5"),
    ),
    "keras": (None, "roxxel-curriculum", ("keras>=3.15", "jax>=0.10")),
    "olmo_core": (None, "roxxel-curriculum", ("ai2-olmo-core==3.0.0",)),
    # A torch for CPUs brings no triton, which torchtitan imports.
    "torchtitan": (None, "roxxel-curriculum", ("torchtitan==0.3.0", "triton")),
    "levanter": (
        NEWEST_PYTHON,
        "roxxel-loader",
        ("marin-levanter==0.2.227.dev40316220070", "--prerelease=allow"),
    ),
    "maxtext": (NEWEST_PYTHON, "roxxel-loader", ("maxtext==0.2.5",)),
    "tunix": (NEWEST_PYTHON, "roxxel-loader", ("google-tunix==0.1.7",)),
}
OF_TPU = """
import importlib.metadata, re
for line in importlib.metadata.requires("maxtext"):
    if re.search(r'extra == .tpu.$', line) and not re.match("libtpu|torch", line):
        print(line.partition(";")[0])
"""

# Programs that try to break a corpus, with the sizes of a whole campaign.
FUZZERS = (
    ("format_fuzz", ("--files", "100000")),
    ("manifest_fuzz", ("--files", "10000")),
    ("input_fuzz", ("--files", "2000")),
    ("recognise_fuzz", ("--inputs", "3000")),
    ("bucket_faults", ("--runs", "2000")),
)
# Programs that kill whole runs and Ray tasks; they need every package and extra.
OF_RUNS = (
    ("format_prepare", ("--ray", "--kills", "30")),
    ("bucket_takeovers", ("--schedules", "300")),
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
    "types(sources)",
    "tests",
    "integration(workspace)",
    "docs",
]
nox.needs_version = ">=2026.10"
# Tests start hundreds of programs. Without the bytecode of their imports, each would
# compile 1 200 modules before its first line.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# What one session compiles serves the others, and nothing that an earlier run left.
PROGRAMS = tempfile.TemporaryDirectory(prefix="roxxel-programs-")
os.environ.setdefault("ROXXEL_TEST_PROGRAMS", PROGRAMS.name)
nox.options.default_venv_backend = "uv"
# A session without its interpreter must not look like a session that passed.
# `nox --no-error-on-missing-interpreters` lists it as skipped instead.
nox.options.error_on_missing_interpreters = True

# Environments of this run of nox, as sessions made them.
EARLIER: list[Path] = []


def has_own_environment(session: nox.Session) -> bool:
    """Return whether the session may install; `nox --no-venv` runs where nox runs."""
    return session.venv_backend != "none"


def python_of(session: nox.Session) -> str:
    """Return the interpreter of the session's environment."""
    return "python" if has_own_environment(session) else sys.executable


def sync(session: nox.Session, *arguments: str) -> None:
    """Install exactly the packages of uv's resolution into the session's environment.

    With `nox --no-venv` this function does nothing, because the environment is the
    user's own.
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
    lend_bytecode(Path(session.virtualenv.location))


def lend_bytecode(environment: Path) -> None:
    """Link what an earlier session has compiled of the libraries that both have.

    All processes of a session begin at once, and each would compile what it imports.
    Python compiles again where a link does not belong to the file that lies there.
    """
    for path in EARLIER[-1].rglob("*.pyc") if EARLIER else ():
        folder = environment / path.parent.relative_to(EARLIER[-1])
        source = folder.parent / f"{path.name.partition('.')[0]}.py"
        if source.exists() and not (folder / path.name).exists():
            folder.mkdir(exist_ok=True)
            os.link(path, folder / path.name)
    EARLIER.append(environment)


def with_members(package: str) -> Sequence[str]:
    """Return a package and the members of the workspace that it depends on."""
    project = nox.project.load_toml(f"packages/{package}/pyproject.toml")["project"]
    needed = {Requirement(line).name for line in project["dependencies"]} & {*PACKAGES}
    stand = {name for member in needed for name in with_members(member)}
    return [name for name in PACKAGES if name in {package, *stand}]


def sources(*packages: str) -> Sequence[str]:
    """Return packages as folders, so that an index cannot provide their names."""
    return [f"./packages/{package}" for package in packages]


def test_tools(package: str) -> Sequence[str]:
    """Return the arguments that install the test tools of a package."""
    return ["--group", f"packages/{package}/pyproject.toml:test"]


@nox.session
def boundaries(session: nox.Session) -> None:
    """Check what each package imports and requires against the design."""
    sync(session, "--only-group", "types")  # the smallest that has pytest
    pytest = (python_of(session), "-m", "pytest", "--quiet")
    session.run(*pytest, INTEGRATION / "test_boundaries.py")


@nox.session(requires=["boundaries"])
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(requires=["boundaries"])
@nox.parametrize("part", ["sources", "tests"], ids=["sources", "tests"])
def types(session: nox.Session, part: str) -> None:
    """Check types with pyright; the tests are more than the sources.

    The quicker ty and pyrefly found 39 and 40 of 46 planted mistakes, pyright 44.
    """
    sync(session, "--all-packages", "--all-extras", "--group", "types")
    folder = {"sources": "src", "tests": "tests"}[part]
    files = [*Path("packages").glob(f"*/{folder}")]
    files += [Path("noxfile.py")] if part == "sources" else [INTEGRATION]
    options = ("--threads", "2", "--pythonpath", f"{session.bin}/python")
    session.run("pyright", *options, *files)


@nox.session(requires=["boundaries"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Test one package with only its own dependencies."""
    sync(session, "--package", package, "--group", "test")
    options = ("-m", "not long", *PARALLEL, *(FOUR if package in WAITING else ()))
    session.run("pytest", f"packages/{package}", *options, *session.posargs)


@nox.session(requires=["boundaries"])
@nox.parametrize(
    "python,wanted", [nox.param(*point, id=name) for name, point in POINTS.items()]
)
def integration(session: nox.Session, wanted: Sequence[str]) -> None:
    """Run the integration tests at one point of the JAX matrix.

    The session `long` runs those that kill programs or start many.
    """
    selected: Sequence[str] = ("-m", "not long")
    if wanted:
        unneeded = [f"--ignore={INTEGRATION / name}" for name in ONCE]
        selected = ("-m", "not long or versions", *unneeded)
        # Install all in one call: flax declares too wide a range of JAX versions.
        session.install(*wanted, *sources(*PACKAGES), "--group", "integration")
    else:
        sync(session, "--all-packages", "--group", "integration")
    options = (*OTHERS, *selected, *PARALLEL, *FOUR, *session.posargs)
    session.run("pytest", INTEGRATION, *options)


@nox.session(requires=["boundaries"])
def long(session: nox.Session) -> None:
    """Run the tests that kill programs or start many of them."""
    sync(session, "--all-packages", "--group", "integration")
    options = (*OTHERS, "-m", "long", *PARALLEL, *FOUR, *session.posargs)
    session.run("pytest", INTEGRATION, *LONG, *options)


@nox.session(requires=["boundaries"])
@nox.parametrize(
    "python,framework",
    [nox.param(python, name, id=name) for name, (python, *_) in BRIDGES.items()],
)
def bridges(session: nox.Session, framework: str) -> None:
    """Feed steps to a loop of a framework, in an environment of that framework alone.

    They have gigabytes to download, so `.ci/run` leaves this session out.
    """
    _, package, wanted = BRIDGES[framework]
    session.install(*sources(*with_members(package)), *wanted, "pytest>=9")
    if framework == "maxtext":
        lines = session.run("python", "-c", OF_TPU, silent=True)
        session.install(*wanted, *str(lines).split())
    tests = INTEGRATION / "bridges" / f"test_{framework}.py"
    session.run(
        "pytest",
        tests,
        # A test starts a trainer up to four times, which compiles each time.
        *("-o", "faulthandler_timeout=3600"),
        *session.posargs,
        env={"KERAS_BACKEND": "jax", "HF_HUB_OFFLINE": "1"},
    )


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
    """Run the integration tests on the devices of a platform.

    Without a device the session fails, or with `-- --may-skip` is skipped. With
    `nox --no-venv` the tests use the environment that nox runs in, so that a machine
    without a package index can run them.
    """
    words = [word for word in session.posargs if word != "--may-skip"]
    jax = f"jax[{extra}]"
    if has_own_environment(session):
        session.install(jax, *sources(*PACKAGES), "--group", "integration")
    said = session.run(
        *(python_of(session), TOOLS / "devices.py", platform),
        env={"JAX_PLATFORMS": ""},  # all platforms
        silent=True,
        success_codes=[0, NONE_FOUND],
    )
    # Drivers may write to the same stream, so search for the line.
    [(number, answer)] = re.findall(r"^found (\d+): (.*)$", str(said), re.MULTILINE)
    if number == "0":
        leave = session.skip if "--may-skip" in session.posargs else session.error
        leave(f"{jax} finds no {platform} device here: {answer}; nothing was tested")
    session.log(f"{number} {platform} devices: {answer}")
    session.run(
        *(python_of(session), "-m", "pytest", "-rs", INTEGRATION, *OTHERS, *words),
        env={"ROXXEL_TEST_DEVICES": f"{platform}:{number}"},
    )


@nox.session(python=OLDEST_PYTHON, requires=["boundaries"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def minimal(session: nox.Session, package: str) -> None:
    """Test one package with the lowest versions that its `pyproject.toml` allows."""
    members = sources(*with_members(package))
    session.install(*LOWEST, *members, *test_tools(package))
    session.run("pytest", f"packages/{package}", *PARALLEL, *session.posargs)


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
    """Check the built files of one package, each in an empty environment.

    They must equal the sources, which the session `tests` tests.
    """
    bare = ("python", TOOLS / "bare.py", package, *BARE.get(package, ()))
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
        session.run(*bare)


@nox.session(requires=["build"])
@nox.parametrize("package", PACKAGES[1:], ids=PACKAGES[1:])
def siblings(session: nox.Session, package: str) -> None:
    """Test one built package beside the oldest releases that its ranges allow.

    Where no release is in a range, the sibling of this checkout stands for it.
    """
    wheels = [*DIST.glob(f"{package.replace('-', '_')}-[0-9]*.whl")]
    command = ("python", TOOLS / "release.py", "--oldest", package)
    for line in str(session.run(*command, silent=True)).splitlines():
        name, _, tag = line.partition(" ")
        folder = Path(session.create_tmp()) / (tag or name)
        source = Path.cwd()
        if tag:
            folder.mkdir(parents=True, exist_ok=True)
            packed, source = folder / "at.tar", folder / "at"
            session.run_install(
                *("git", "archive", "--output", packed, tag, f"packages/{name}"),
                external=True,
            )
            shutil.unpack_archive(packed, source)
        session.run_install(
            *("uv", "build", "--quiet", "--wheel", "--out-dir", folder),
            source / "packages" / name,
            external=True,
        )
        wheels += folder.glob("*.whl")
    session.install(*map(str, wheels), *test_tools(package))
    session.run("pytest", f"packages/{package}", *PARALLEL, *session.posargs)


@nox.session(requires=["boundaries"])
def docs(session: nox.Session) -> None:
    """Build the site, with warnings as errors, and run the examples of its pages."""
    groups = ("--group", "integration", "--group", "docs")
    sync(session, "--all-packages", "--all-extras", *groups)
    site = Path("docs") / "_build"
    # -E reads all pages again: Sphinx repeats no warning about an unchanged page.
    build = ("sphinx-build", "-E", "-W", "-q", "docs", str(site))
    # A page is one test, and shares nothing with the others. Each worker asks for the
    # next, so that the longest, which are the first, end before the rest.
    pages = (*PARALLEL, "--dist=load", "--maxschedchunk=1", *session.posargs)
    with ThreadPoolExecutor() as beside:  # Sphinx uses one core alone.
        built = beside.submit(session.run, *build)
        session.run("pytest", INTEGRATION / "test_docs.py", *pages)
        built.result()
    session.log(f"the site is in {site / 'index.html'}")


@nox.session
def resolve(session: nox.Session) -> None:
    """Resolve the workspace twice without a lock; the results must be the same."""
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


@nox.session(requires=["boundaries", "benchmarks"])
def release(session: nox.Session) -> None:
    """Build the packages whose version has no tag, or report why this is refused.

    `ROXXEL_TAG=roxxel-format-v0.2.0` builds that package alone, as if the tag were not
    set yet.
    """
    tag = os.environ.get("ROXXEL_TAG", "")
    found = session.run("python", TOOLS / "release.py", ".", tag, silent=True)
    if not found:
        session.log("nothing to release: every version has its tag")
    # Empty the folder first, because all of its files will be uploaded.
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

    Every file must give the original tokens or an error of one sentence. Every killed
    run must have the result of a run that was never killed. Options after -- go to the
    programs that read files.
    """
    run_programs(session, FUZZERS)
    sync(session, "--all-packages", "--group", "integration")
    for name, options in OF_RUNS:
        session.run("python", f"{BENCHMARKS}/{name}.py", *options)


@nox.session
def campaign(session: nox.Session) -> None:
    """Kill writers, appends and preparations; run `clean` while writers work."""
    run_programs(session, CAMPAIGNS)


def run_programs(
    session: nox.Session, programs: Sequence[tuple[str, Sequence[str]]]
) -> None:
    """Run benchmark programs that need only roxxel-prepare, with their options."""
    sync(session, "--package", "roxxel-prepare", "--group", "test")
    for name, options in programs:
        session.log(" ".join([name, *options]))
        session.run("python", f"{BENCHMARKS}/{name}.py", *options, *session.posargs)


@nox.session(requires=["boundaries"])
def benchmarks(session: nox.Session) -> None:
    """Run every benchmark once, small: none is noticed otherwise when it breaks.

    A change of the packages needs no benchmark, so only a release runs this session.
    """
    sync(session, "--all-packages", "--group", "integration")
    session.run("pytest", BENCHMARKS, *PARALLEL, *FOUR, *session.posargs)


@nox.session
def drill(session: nox.Session) -> None:
    """Kill programs at many more moments than the suite does; each must resume."""
    sync(session, "--all-packages", "--group", "integration")
    for path, words, environment in DRILLS:
        session.run("pytest", path, "-k", words, *session.posargs, env=environment)


@nox.session
def bench(session: nox.Session) -> None:
    """Run all benchmarks, or the named ones, with the given options.

    `ROXXEL_BENCH_JAX="jax[cuda13]"` installs what JAX needs for an accelerator.
    """
    sync(session, "--all-packages", "--group", "integration", "--extra", "plot")
    accelerator = os.environ.get("ROXXEL_BENCH_JAX")
    if accelerator and has_own_environment(session):
        session.install(accelerator)
    words = session.posargs
    options = list(dropwhile(lambda word: not word.startswith("-"), words))
    # These need minutes of all cores, and `accelerator` a GPU: run them by name.
    campaigns = {name for name, _ in (*FUZZERS, *CAMPAIGNS)} | {"accelerator"}
    names = words[: len(words) - len(options)] or sorted(
        path.stem
        for path in BENCHMARKS.glob("[a-z]*.py")
        if not path.stem.endswith("_test") and path.stem not in campaigns
    )
    for name in names:
        session.log(name)
        session.run(python_of(session), f"{BENCHMARKS}/{name}.py", *options)
