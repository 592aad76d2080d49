"""Every task of the project, one session each.

`nox` without arguments checks and tests everything; `fuzz`, `drill` and `bench` take
longer or want a quiet machine, and run when they are named.

Each package is tested in an environment that holds that package and its own
dependencies and nothing else, so an import its `pyproject.toml` does not declare fails.
"""

from pathlib import Path

import nox

PACKAGES = (
    "roxxel-format",
    "roxxel-curriculum",
    "roxxel-loader",
    "roxxel-ckpt",
    "roxxel-train",
    "roxxel",
)

BENCHMARKS = Path("tests-integration") / "benchmarks"

# Tests, the words that choose among them, and what makes them long.
DRILLS = (
    (
        "packages/roxxel-ckpt/tests/test_programs.py",
        "kill",
        {"ROXXEL_CKPT_KILLS": "30"},
    ),
)

nox.options.sessions = ["lint", "types", "tests", "integration", "docs"]
nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "uv"
# A session without its interpreter must not look like a session that passed.
nox.options.error_on_missing_interpreters = True


def sync(session: nox.Session, *arguments: str) -> None:
    """Make the session's environment hold what uv's resolution names, no more."""
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


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types over sources and tests with pyright."""
    sync(session, "--all-packages", "--all-extras", "--group", "types")
    session.run("pyright", "--pythonpath", f"{session.bin}/python")


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Test one package with its own dependencies alone."""
    sync(session, "--package", package, "--group", "test")
    session.run("pytest", f"packages/{package}", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Test what only holds across packages."""
    sync(session, "--all-packages", "--group", "integration")
    pages = "--ignore=tests-integration/test_docs.py"  # the session `docs` runs them
    session.run("pytest", "tests-integration", pages, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, warnings being errors, and run what its pages show."""
    sync(session, "--all-packages", "--group", "integration", "--group", "docs")
    site = Path("docs") / "_build"
    session.run("sphinx-build", "-W", "--keep-going", "-q", "docs", str(site))
    session.run("pytest", "tests-integration/test_docs.py", *session.posargs)
    session.log(f"the site is in {site / 'index.html'}")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Read 100 000 mutated shards: the original tokens or a ShardError."""
    sync(session, "--package", "roxxel-format", "--group", "test")
    files = session.posargs or ["--files", "100000"]
    session.run("python", f"{BENCHMARKS}/format_fuzz.py", *files)


@nox.session
def drill(session: nox.Session) -> None:
    """Kill programs at many more moments than the suite does; each must go on."""
    sync(session, "--all-packages", "--group", "integration")
    for path, words, environment in DRILLS:
        session.run("pytest", path, "-k", words, *session.posargs, env=environment)


@nox.session
def bench(session: nox.Session) -> None:
    """Run every benchmark, or those whose names are given."""
    sync(session, "--all-packages", "--group", "integration")
    names = session.posargs or sorted(
        path.stem
        for path in BENCHMARKS.glob("*.py")
        if not path.stem.endswith(("_test", "fuzz", "kill"))
    )
    for name in names:
        session.log(name)
        session.run("python", f"{BENCHMARKS}/{name}.py")
