"""The examples of the README run unchanged."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from .conftest import environment

README = Path(__file__).parents[1] / "README.md"


def programs() -> tuple[str, str]:
    """Return the program of the first screen, and the one that trains."""
    first, *blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    return first, "".join(blocks)


def lines_of(program: str, folder: Path, compilation_cache: Path) -> list[str]:
    """Run a program in a folder and return the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=environment(1, compilation_cache),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_first_program_prints_what_the_picture_shows(
    tmp_path: Path, compilation_cache: Path
) -> None:
    first, _ = programs()

    lines = lines_of(first, tmp_path, compilation_cache)

    assert "400 steps" in lines[0]
    assert lines[-2].startswith("(4, 513) Location(source='code', start=41606,")
    assert lines[-1] == "[40, 43, 56, 73, 302, 362, 372]"


def test_first_commands_need_no_pip_of_the_system() -> None:
    text = README.read_text()
    [commands] = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    bare = re.compile(r"(?:^|[\s`])pip install uv", re.MULTILINE)
    pages = [README, *README.parent.glob("docs/**/*.md")]
    pages += README.parent.glob("packages/*/README.md")

    # Debian and Ubuntu refuse a pip outside of an environment.
    for line in commands.splitlines():
        assert line.startswith("python3 -m venv ~/uv && ~/uv/bin/pip install uv && ")
    assert [page.name for page in pages if bare.search(page.read_text())] == []
    assert 'uv run --with "jax[cuda13]" roxxel quickstart' in text


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\((?!https://)([^)#]+)", README.read_text())
    links += re.findall(r"(?:src|srcset)=\"(.*?)\"", README.read_text())

    assert len(links) > 20
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_example_of_the_readme_runs(tmp_path: Path, compilation_cache: Path) -> None:
    lines = lines_of(programs()[1], tmp_path, compilation_cache)

    assert "80 steps" in lines[0]
    assert lines[-2].startswith("done: 80 of 80 steps, loss 0.")
    assert lines[-1].startswith("(16, 65) Location(source='self'")


def test_example_shows_what_was_trained_after_a_longer_phase_was_added(
    tmp_path: Path, compilation_cache: Path
) -> None:
    _, program = programs()
    longer = program.replace(
        "[short, long]", "[short, long, Phase(10, batch_size=2, seq_len=513)]"
    )
    assert longer != program

    before = lines_of(program, tmp_path, compilation_cache)
    after = lines_of(longer, tmp_path, compilation_cache)

    assert after[-2].startswith("done: 90 of 90 steps")
    assert after[-1] == before[-1]


def test_commands_of_the_table_run_on_the_run_of_the_quickstart(
    tmp_path: Path, compilation_cache: Path
) -> None:
    listed = re.findall(r"^\| `(roxxel [^`]*)` \|", README.read_text(), re.MULTILINE)
    commands = [line for line in listed if line.split()[2].startswith("runs/")]
    printed: dict[str, str] = {}

    for line in ["roxxel quickstart --steps 12", *commands]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", *shlex.split(line)],
            cwd=tmp_path,
            env=environment(1, compilation_cache),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        printed[line.split()[1]] = done.stdout + done.stderr

    assert list(printed) == [
        *("quickstart", "plan", "train", "show", "where", "audit", "report"),
    ]
    assert "12 steps" in printed["plan"]
    assert "complete" in printed["train"]
    assert printed["show"].startswith("step 9: ")
    assert len(printed["show"].splitlines()) > 20, "rows with their text"
    assert "with these tokens, which the run never reads" in printed["where"]
    assert (tmp_path / "runs/quickstart/report.html").exists()
