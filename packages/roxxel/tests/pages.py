"""Folders of runs that no trainer has written, and checks of their pages."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from html.parser import HTMLParser
from importlib import resources
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from roxxel.report import RunFacts, page, read_facts

if TYPE_CHECKING:
    from pathlib import Path


class Checked(HTMLParser):
    """Checks that elements nest, and gathers what could reach outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.outside: list[str] = []
        self.given: list[str] = []  # names of attributes

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.given += [name for name, _ in attrs]
        self.outside += [
            str(value)
            for name, value in attrs
            if name in {"src", "href", "srcset", "action", "data", "xlink:href"}
        ]
        if tag not in {"meta", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


_PACKED = resources.files("roxxel.report") / "plotly-basic.min.js.gz"
LIBRARY = gzip.decompress(_PACKED.read_bytes()).decode()


def checked(html: str) -> Checked:
    html = html.replace(LIBRARY, "", 1)  # no test here is about the code of Plotly
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert parser.outside == []
    assert "@import" not in html
    assert "url(" not in html
    assert "://" not in html
    return parser


def drawn_of(html: str) -> dict[str, Any]:
    """Return everything that the script of a page draws."""
    found = re.search(r'id="numbers">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def numbers_of(html: str) -> dict[str, Any]:
    """Return the points of each line, by chart and name."""
    return {
        key: {line["name"]: {"x": line["x"], "y": line["y"]} for line in chart["lines"]}
        for key, chart in drawn_of(html)["charts"].items()
    }


def train_row(step: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "time": f"2026-11-21T12:00:{step:02}.000+00:00",
        "phase": int(step > 4),
        "loss": 6.0 - step / 4,
        "loss_mean": 6.25 - step / 4,
        "tokens": 16 * step,
        "tokens_by_source": {"self": 12 * step, "code <x>": 4 * step},
        "step_s": 0.5,
        "tokens_per_s": 32.0 + step,
        "wait_s": 0.05,
        "wait_share": step / 100,
        "grad_norm": 1.5 * step,
        **more,
    }


def write_run(
    folder: Path,
    rows: list[dict[str, Any]],
    log: str = "",
    tail: str = "",
) -> Path:
    folder.mkdir(parents=True)
    start = {
        "kind": "start",
        "step": 0,
        "time": "2026-11-21T12:00:00Z",
        "total_steps": 8,
        "settings": {"seed": 7},
        "versions": {"jax": "9.8.7"},
        "command": ["/home/me/bin/roxxel", "train", "a b.toml"],
        "devices": {"TPU <v4>": 8},
        "processes": 2,
    }
    lines = "".join(json.dumps(row) + "\n" for row in [start, *rows])
    (folder / "metrics.jsonl").write_text(lines + tail)
    (folder / "system.log").write_text(log)
    record = {"version": 1, "data": {"step": 0}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def write_checkpoint(folder: Path, step: int, loss: float, **more: float) -> None:
    phases = [
        {
            "start": start,
            "batch_size": 2,
            "seq_len": seq_len,
            "weights": {"self": 3, "code <x>": 1},
            "edited": edited,
        }
        for start, seq_len, edited in ((0, 8, False), (4, 16, False), (6, 16, True))
        if start < step
    ]
    metrics = {"loss": loss, **more}
    write_description(folder, step, metrics=metrics, extra={"data": {"phases": phases}})


def write_description(folder: Path, step: int, **members: Any) -> None:
    """Leave a step of a run as a save leaves it, without arrays."""
    body: dict[str, Any] = {
        "format": 2,
        "step": step,
        "metrics": {},
        "extra": None,
        "versions": {},
        "saved_at": 0.0,
        "digests": [],
        **members,
    }
    crc = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    path = folder / "checkpoints" / str(step) / "checkpoint.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"body": body, "crc32": crc}))
    record = folder / "run.json"  # which a trainer writes before it saves
    if not record.exists():
        record.write_text("{}")


def facts_and_page(run: Path) -> tuple[RunFacts, str]:
    facts = read_facts(run)
    # Copying the library of the charts takes longer than making the page.
    with patch("roxxel.report._parts._chart_library", return_value=""):
        html = page(facts)
    checked(html)
    return facts, html


def figure(html: str, key: str) -> str:
    found = re.search(rf'<figure id="{key}"[ >].*?</figure>', html, re.DOTALL)
    assert found is not None
    return found[0]
