"""`roxxel report A B` draws runs together and names what differs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from roxxel.cli import main

from .pages import checked, drawn_of, numbers_of, train_row, write_run

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
{first}
save_path = "{name}"
seed = {seed}

[sources]
self = "{web}"

[[phases]]
steps = 8
batch_size = 2
seq_len = 8

[model_args]
{args}

[eval.code]
path = "code.rox"
steps = 1
batch_size = 2
seq_len = 8
"""


def write_config(run: Path, **changed: Any) -> None:
    values = {"first": "", "name": run.name, "seed": 0, "web": "web.rox", "args": ""}
    text = CONFIG.format(**(values | changed))
    log = run / "metrics.jsonl"
    start, *rows = log.read_text().splitlines(keepends=True)
    log.write_text(
        f"{json.dumps(json.loads(start) | {'config': text})}\n{''.join(rows)}"
    )


def drawn(tmp_path: Path, *runs: Path) -> str:
    out = tmp_path / "page.html"
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    html = out.read_text()
    checked(html)
    return html


def cells(html: str, title: str) -> list[list[str]]:
    """Return the rows of a table, without its head."""
    text = html.replace("<wbr/>", "")  # where a long word may break
    found = re.search(rf"<h2>{title}</h2>.*?<tbody>(.*?)</tbody>", text)
    assert found is not None
    rows = re.findall("<tr>(.*?)</tr>", found[1])
    return [re.findall("<td[^>]*>(.*?)</td>", row) for row in rows]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return two runs; the second reads twice as many tokens in a step."""
    short = [train_row(step) for step in range(1, 9)]
    short.append({"kind": "eval", "step": 3, "eval_loss/code": 4.0})
    long = [train_row(step, tokens=32 * step) for step in range(2, 7, 2)]
    return write_run(tmp_path / "a", short), write_run(tmp_path / "b <2>", long)


def test_losses_are_drawn_together_each_with_its_own_clock(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    html = drawn(tmp_path, *pair)

    numbers = numbers_of(html)
    assert numbers["loss"] == {
        "a": {"x": list(range(1, 9)), "y": [6.25 - s / 4 for s in range(1, 9)]},
        "b <2>": {"x": [2, 4, 6], "y": [5.75, 5.25, 4.75]},
    }
    assert numbers["eval-eval_loss/code"] == {"a": {"x": [3], "y": [4.0]}}
    of_page = drawn_of(html)
    lines = of_page["charts"]["loss"]["lines"]
    assert [(line["clock"], line["color"]) for line in lines] == [(0, 0), (1, 1)]
    first, second = (clock["tokens"] for clock in of_page["clocks"])
    assert first == [16 * step for step in range(9)]
    assert second == [0, 64, 128, 192]
    assert ["tokens", "128", "192"] in cells(html, "Runs")
    command = "roxxel train &#x27;a b.toml&#x27;"
    assert ["command", command, command] in cells(html, "Runs")


def test_differences_of_the_configs_are_a_table(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = pair
    write_config(first, args="width = 4\nnames = [1, 2]", web="../data/web.rox")
    write_config(
        second,
        first='relative_to = ".."',
        seed=1,
        web="data/web.rox",
        args="names = [1, 2]",
    )

    html = drawn(tmp_path, first, second)

    assert cells(html, "Differences of the configs") == [
        ["seed", "0", "1"],
        ["model_args.width", "4", ""],
        ["eval.code.sources.self", f"{first}/code.rox", f"{tmp_path}/code.rox"],
    ]
    assert "An empty cell is the default." in html


def test_runs_without_a_config_are_named(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    third = write_run(tmp_path / "c", [train_row(1)])
    write_config(pair[0])
    write_config(third, seed=1)

    html = drawn(tmp_path, *pair, third)

    assert "These runs have no readable config: b &lt;2&gt;." in html


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    paths = [tmp_path / "x" / "run", tmp_path / "y" / "run"]
    for path in paths:
        path.parent.mkdir()
        write_run(path, [train_row(1)])

    html = drawn(tmp_path, *paths)

    assert list(numbers_of(html)["loss"]) == list(map(str, paths))


def test_page_of_several_runs_is_written_here(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["report", "a", "b <2>"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "a: complete, 8 of 8 steps, loss 4.0000",
        "b <2>: stopped, 6 of 8 steps, loss 4.5000",
        "wrote report.html; open it in a browser",
    ]
    checked((tmp_path / "report.html").read_text())
    assert not (pair[0] / "report.html").exists()


def test_runs_that_cannot_be_drawn_together_are_one_sentence(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(pair[0])

    assert main(["report", *[first] * 9]) == 1

    assert capsys.readouterr().err.splitlines() == [
        ("roxxel: a page draws at most 8 runs together, got 9; give fewer runs"),
    ]
