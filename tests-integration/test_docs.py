"""The examples of the documentation run unchanged, without a warning."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import runpy
import sys
import tomllib
import zlib
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
from matplotlib import image
from roxxel.config import parse_config
from roxxel_train import TIMING_FIELDS
from roxxel_train.config import TrainConfig

from .conftest import PROGRAMS, environment
from .tools.declared import is_of_extra

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
DEVICES = re.compile(r"<!-- runs on (\d+) devices -->")
BLOCK = re.compile(r"^(`{3,})([^\n]*)\n.*?^\1$", re.DOTALL | re.MULTILINE)
SHOWN = {"python", "sh", "text", "console", "toml"}


def pages() -> list[Path]:
    written = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]
    return sorted(page for page in written if "_build" not in page.parts)


def blocks(page: Path) -> list[str]:
    return [match[2] for match in BLOCK.finditer(page.read_text())]


PICTURES = ROOT / "docs" / "pictures"
DRAWN = sorted(
    {
        *re.findall(r"pictures/(.*?\.png)", (ROOT / "README.md").read_text()),
        *re.findall(r"pictures/(.*?\.png)", (ROOT / "docs/arithmetic.md").read_text()),
    }
)
SOURCES = {
    ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(
        ".__init__"
    ): path
    for source in ROOT.glob("packages/*/src")
    for path in source.rglob("*.py")
}
# Tests of their packages, or test_ray.py, run the examples of modules of extras.
EXAMPLES = sorted(
    name
    for name, path in SOURCES.items()
    if ">>> " in path.read_text() and not is_of_extra(path)
)

ELSEWHERE = "<!-- runs in "
LONGEST = ("blend", "forensics", "model", "evaluate", "tutorial")
# Its sweep trains 15 runs with one compiled update, so a better one pays.
OFTEN_RUN = "blend"
RUN = [
    pytest.param(page, marks=[pytest.mark.first] * (page.stem in LONGEST))
    for page in pages()
    if {"python", "sh"} & set(blocks(page)) and ELSEWHERE not in page.read_text()
]


def run_page(
    page: Path, folder: Path, compilation_cache: Path
) -> subprocess.CompletedProcess[str]:
    devices = DEVICES.search(page.read_text())
    told = {**environment(int(devices[1]) if devices else 1, compilation_cache)}
    if page.stem == OFTEN_RUN:
        told["XLA_FLAGS"] = told["XLA_FLAGS"].replace("level=0", "level=1")
    path = os.pathsep.join([str(forked.commands()), os.environ["PATH"]])
    return forked.run(
        [sys.executable, "-W", "error", str(PROGRAMS / "page.py"), str(page)],
        cwd=folder,
        env={**told, "PATH": path},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page: Path, tmp_path: Path, compilation_cache: Path) -> None:
    done = run_page(page, tmp_path, compilation_cache)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mark", "shown", "code"),
    [
        *[("output", shown, 0) for shown in ("two 2", "two ...")],
        *[("output", shown, 1) for shown in ("two 3", "two")],
        *[("output, numbers vary", shown, 0) for shown in ("two 3", "two 1.5, 8,000")],
        *[
            ("output, numbers vary", shown, 1)
            for shown in ("three 2", "two", "two 2 3")
        ],
    ],
)
def test_output_of_a_page_is_what_its_block_prints(
    mark: str, shown: str, code: int, tmp_path: Path, compilation_cache: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint('two', 1 + 1)\n```\n\n"
        f"<!-- {mark} -->\n```text\n{shown}\n```\n"
    )

    done = run_page(page, tmp_path, compilation_cache)

    assert done.returncode == code
    assert ("page.md:6: the page shows" in done.stderr) == bool(code)


def test_output_that_belongs_to_no_block_is_an_error(
    tmp_path: Path, compilation_cache: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n<!-- output -->\n\n```text\n1\n```\n")

    done = run_page(page, tmp_path, compilation_cache)

    assert done.returncode == 1
    assert "an <!-- output --> stands above no block" in done.stderr


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_say_their_language(page: Path) -> None:
    for said in blocks(page):
        assert said in SHOWN or said.startswith("{"), said


@pytest.mark.parametrize(
    ("word", "page"),
    [("overlap", "plan"), ("mfu", "metrics"), ("loss_mean", "metrics")],
)
def test_word_has_a_section_in_the_guide_where_a_reader_looks(
    word: str, page: str
) -> None:
    guide = (ROOT / f"docs/guides/{page}.md").read_text()
    sections = {
        title: text
        for title, _, text in (part.partition("\n") for part in guide.split("\n## "))
    }

    (explained,) = (text for title, text in sections.items() if f"`{word}`" in title)

    assert explained.count(f"`{word}`") + explained.count(f"`{word}=") > 0
    assert len(explained.split()) > 40
    assert f"(guides/{page}.md)" in (ROOT / "docs/index.md").read_text()


@pytest.mark.parametrize("module", EXAMPLES)
def test_example_of_a_docstring_gives_what_it_shows(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    package = importlib.import_module(module.partition(".")[0])
    public = {name: getattr(package, name) for name in package.__all__}
    globs = {"np": np, **public}

    done = doctest.testmod(importlib.import_module(module), extraglobs=globs)

    assert done.attempted
    assert not done.failed


def public_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield module and definition of every class that users name, errors apart."""
    for name, path in SOURCES.items():
        package = importlib.import_module(name.partition(".")[0])
        is_private = "._" in name
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            bases = " ".join(map(ast.unparse, node.bases))
            is_error = re.search(r"Error|Exception|SystemExit", bases) is not None
            if not is_error and (not is_private or node.name in package.__all__):
                yield name, node


@pytest.mark.parametrize(
    ("module", "node"),
    [
        pytest.param(module, node, id=f"{module}.{node.name}")
        for module, node in public_classes()
        # The quickstart is an example itself.
        if not module.startswith("roxxel.quickstart")
    ],
)
def test_every_public_class_has_an_example(module: str, node: ast.ClassDef) -> None:
    texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]

    assert any(isinstance(text, str) and ">>> " in text for text in texts), module


def test_pictures_are_those_that_are_drawn_today(tmp_path: Path) -> None:
    forked.run([sys.executable, PICTURES / "draw.py", tmp_path], check=True)

    assert sorted(path.name for path in tmp_path.iterdir()) == DRAWN
    for name in DRAWN:
        drawn, shown = image.imread(tmp_path / name), image.imread(PICTURES / name)
        assert drawn.shape == shown.shape
        # Another release may draw the edge of a letter in another grey.
        assert np.mean(np.abs(drawn - shown) > 0.1) < 0.001


@pytest.mark.parametrize("program", ["speed.py", "sketches.py"])
def test_drawings_are_what_their_program_draws_today(program: str) -> None:
    drawn: dict[str, str] = runpy.run_path(str(PICTURES / program))["drawings"]()

    assert {name: (PICTURES / name).read_text() for name in drawn} == drawn


def test_site_has_a_version_an_icon_and_a_search_that_explains() -> None:
    site = runpy.run_path(str(ROOT / "docs/conf.py"))

    assert site["version"] in site["html_title"]
    assert (ROOT / "docs" / site["html_favicon"]).exists()
    assert "guides" in (ROOT / "docs" / site["html_search_scorer"]).read_text("utf-8")
    guide = (ROOT / "docs/guides/model.md").read_text("utf-8")
    assert "## The learning rate\n" in guide


def test_names_of_other_libraries_have_one_page_and_need_no_network() -> None:
    module = runpy.run_path(str(ROOT / "docs/elsewhere.py"))
    listed = tomllib.loads((ROOT / "docs/elsewhere.toml").read_text("utf-8"))
    names: list[str] = []
    for project, library in listed.items():
        content: bytes = module["inventory"](project, library["pages"])
        lines = zlib.decompress(content.split(b"zlib.\n")[1]).decode().splitlines()
        names += [line.split()[0] for line in lines]
        assert all(len(line.split()) == 5 for line in lines)
        assert library["url"].startswith("https://")

    assert {"jax.Array", "nnx.Module", "npt.NDArray"} <= set(names)
    assert len(names) == len(set(names))


@cache
def generated() -> dict[str, Any]:
    """Return what the program has that writes the reference."""
    return runpy.run_path(str(ROOT / "docs/generated.py"))


def test_reference_is_made_from_the_code() -> None:
    module = generated()
    pages = {
        page.stem: module["filled"](page.read_text("utf-8"))
        for page in ROOT.glob("docs/reference/*.md")
    }

    in_python = {"optimizer", "loss_fn", "curriculum", "eval_curriculum"}
    in_python |= {"data_sharding", "logger", "checkpointer"}
    for setting in {each.name for each in fields(TrainConfig)} - in_python:
        assert f"| `{setting}` |" in pages["config"]
    first = re.findall(r"^\| `(\w+)` \|", pages["config"], re.MULTILINE)[:4]
    assert set(first) == {"model", "save_path", "sources", "phases"}
    for command in ("train", "where", "format info", "ckpt delete", "write"):
        assert f"## roxxel {command}\n" in pages["commands"]
    assert "| `--until` `K` | only the steps before step K |" in pages["commands"]
    assert "| `75` | a signal stopped the run after a save" in pages["commands"]
    assert "| `3` | a check found damage or a difference |" in pages["commands"]
    assert not [name for name, page in pages.items() if "<!-- generated" in page]


def test_examples_of_the_reference_are_one_config() -> None:
    page = generated()["config"]()
    above, *tables = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)

    config = parse_config("\n".join([above, *tables]), ROOT / "run.toml")

    [phase] = config.schedule.phases
    assert {*config.sources} == {*(phase.weights or ())}


@pytest.mark.parametrize(
    ("written", "module", "shown"),
    [
        ("_Every | None", "roxxel_train.config", "int | Literal['continuous'] | None"),
        ("_Steps", "roxxel_train.config", "tuple[int, int]"),
        ("Phase | Count", "roxxel_curriculum.curriculum", "Phase | int"),
        ("Weights | Path", "roxxel_train.config", "Weights | Path"),
        ("Annotated[int, Rule(must_be='[a, b]')]", "roxxel.config", "int"),
    ],
)
def test_signature_spells_out_a_type_without_an_entry(
    written: str, module: str, shown: str
) -> None:
    plain = generated()["plain"]

    assert plain(written, module) == shown


def test_table_of_the_log_has_every_field_of_a_row() -> None:
    page = (ROOT / "docs/reference/log.md").read_text("utf-8")
    table = page.partition("## Lines of")[0]

    assert not [name for name in TIMING_FIELDS if f"`{name}`" not in table]
    assert not [name for name in ("grad_norm", "digest") if f"`{name}`" not in table]


def test_a_reader_without_the_site_prints_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/reference/config.md").read_text("utf-8")
    assert "`python docs/generated.py config`" in page
    monkeypatch.setattr(sys, "argv", ["generated.py", "config"])

    runpy.run_path(str(ROOT / "docs/generated.py"), run_name="__main__")

    assert "| `save_path` |" in capsys.readouterr().out


def test_reference_names_the_variables_that_the_code_reads() -> None:
    page = (ROOT / "docs/reference/environment.md").read_text("utf-8")
    read = re.compile(r"""environ(?:\.get)?[\[(]"([A-Z_]+)\"""")
    found = {
        name for path in SOURCES.values() for name in read.findall(path.read_text())
    }

    # The system, uv and Google's machines set them.
    of_others = {"HOME", "UV_RUN_RECURSION_DEPTH", "GCE_METADATA_HOST"}
    assert [name for name in sorted(found - of_others) if name not in page] == []
    assert len(found) > 8


WRITTEN = re.compile(r"""(?:# file: |["'\s(=])([\w./*\[\]-]+)(?=["'\s),#@])""")
SUFFIXES = (".rox", ".toml", ".py", ".json", ".jsonl", ".txt", ".html", ".png", ".bin")
CHECKPOINTS = re.compile(r"""Checkpointer\("(\w+)""")


def test_two_pages_in_one_folder_do_not_meet_each_others_files() -> None:
    users: dict[str, set[str]] = {}
    for page in ROOT.glob("docs/**/*.md"):
        blocks = re.findall(
            r"```(?:python|sh|toml)\n(.*?)```", page.read_text(), re.DOTALL
        )
        shown = "\n".join(blocks)
        folders = CHECKPOINTS.findall(shown)
        for name in WRITTEN.findall(shown):
            is_file = "/" in name.strip("/") or name.endswith(SUFFIXES)
            # A pattern that begins with a star names inputs.
            if (is_file or name in folders) and not name.startswith("*."):
                users.setdefault(name.removeprefix("./"), set()).add(page.name)

    assert len(users) > 90
    assert {name: pages for name, pages in users.items() if len(pages) > 1} == {}
