"""The examples of the README run unchanged."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from .conftest import run_python

pytestmark = pytest.mark.first

README = Path(__file__).parents[1] / "README.md"


def program() -> str:
    """Return the program that the blocks of the page are together."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    return "".join(blocks)


def lines_of(program: str, folder: Path, compilation_cache: Path) -> list[str]:
    """Run a program in a folder and return the lines that it printed."""
    done = run_python(folder, compilation_cache, "-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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
    assert "](docs/install.md)" in text
    install = (README.parent / "docs/install.md").read_text()
    assert 'uv run --with "jax[cuda13]" roxxel quickstart' in install


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\((?!https://)([^)#]+)", README.read_text())
    links += re.findall(r"(?:src|srcset)=\"(.*?)\"", README.read_text())

    assert len(links) > 20
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_example_of_the_readme_plans_trains_and_answers(
    tmp_path: Path, compilation_cache: Path
) -> None:
    longer = program().replace("Phase(10, ", "Phase(15, ")
    assert longer != program()

    before = lines_of(program(), tmp_path, compilation_cache)
    after = lines_of(longer, tmp_path, compilation_cache)

    assert "50 steps" in before[0]
    assert before[-4].startswith("(2, 513) Location(source=")
    assert 45 in ast.literal_eval(before[-3]), "the step that read the window"
    assert before[-2].startswith("done: 50 of 50 steps, loss ")
    assert before[-1].startswith("(8, 129) Location(source=")
    assert after[-2].startswith("done: 55 of 55 steps")
    assert after[-1] == before[-1]


@pytest.mark.long
def test_commands_of_the_table_run_on_the_run_of_the_quickstart(
    tmp_path: Path, compilation_cache: Path
) -> None:
    listed = re.findall(r"^\| `(roxxel [^`]*)` \|", README.read_text(), re.MULTILINE)
    commands = [line for line in listed if line.split()[2].startswith("runs/")]
    printed: dict[str, str] = {}

    for line in ["roxxel quickstart --steps 12", *commands]:
        done = run_python(tmp_path, compilation_cache, "-m", *shlex.split(line))
        assert done.returncode == 0, f"{line}: {done.stderr}"
        printed[line.split()[1]] = done.stdout + done.stderr

    assert list(printed) == [
        *("quickstart", "plan", "train", "show", "where", "verify", "report"),
    ]
    assert "12 steps" in printed["plan"]
    assert "complete" in printed["train"]
    assert printed["show"].startswith("step 9: ")
    assert len(printed["show"].splitlines()) > 20, "rows with their text"
    assert "with these tokens, which no step reads" in printed["where"]
    assert (tmp_path / "runs/quickstart/report.html").exists()
