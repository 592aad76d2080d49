"""A request to be forgotten is one command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel import open_run, withdraw
from roxxel.cli import main
from roxxel.config import ConfigError, load_config, parse_config, withdrawn_text
from roxxel_format import Roxxel

from .test_replay import MODEL

CONFIG = """\
# My run.
model = "tiny:make"
save_path = "run"
longest = 1000

[sources]
self = "web_*.rox"
code = "code.rox"

[[phases]]
steps = 8                     # later more
batch_size = 8
seq_len = 17
weights = { self = 0.7, code = 0.3 }

[trainer]
log_every = 1
checkpoint_every = 4
max_to_keep = 9
fields = ["tokens", "segment_ids", "loss_mask"]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the first 8 of 20 steps."""
    folder = tmp_path_factory.mktemp("withdraw")
    rng = np.random.default_rng(1)
    for name in ("web_*.rox", "code.rox"):
        documents = [rng.integers(0, 60, 40, np.uint16) for _ in range(20)]
        Roxxel(folder / name).write(documents, vocab_size=64)
    (folder / "tiny.py").write_text(MODEL)
    (folder / "run.toml").write_text(CONFIG)
    assert main(["train", str(folder / "run.toml")]) == 0
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the folder, where the run is to go on to step 20."""
    folder = tmp_path / "here"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    (folder / "run.toml").write_text(CONFIG.replace("steps = 8 ", "steps = 20"))
    return folder


def reading(source: int, start: int, stop: int, until: int) -> list[int]:
    """Return the steps whose windows hold some tokens, one after another."""
    sampler = open_run("run").sampler()
    found: list[int] = []
    for step in range(until):
        windows = sampler.windows(step)
        mine = windows.source == source
        if ((windows.start[mine] < stop) & (windows.stop[mine] > start)).any():
            found.append(step)
    return found


def test_one_command_says_where_masks_and_gives_a_receipt(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["withdraw", "run", "--documents", "self:3,4,7", "--receipt", "r.json"]

    assert main(command) == 0

    said = capsys.readouterr().out
    receipt = json.loads((project / "r.json").read_text())
    learned = {each["document"]: each["learned"] for each in receipt["documents"]}
    assert learned == {n: reading(0, 40 * n, 40 * n + 40, 8) for n in (3, 4, 7)}
    assert (receipt["masked_from"], receipt["trained_steps"]) == (8, 8)
    first = min(step for steps in learned.values() for step in steps)
    assert receipt["replay_from"] == first // 4 * 4
    assert receipt["replay_steps"] == 8 - first // 4 * 4
    assert receipt["run"]["name"] == "run"
    assert receipt["corpora"] == {"self": Roxxel("web_*.rox").fingerprint}
    assert "self:3: learned in" in said
    assert "leaves them out from step 8 on" in said
    text = (project / "run.toml").read_text()
    assert "# later more" in text
    assert load_config("run.toml").schedule.without == {"self": [[3, 5], 7]}

    assert main(command) == 0  # nothing more changes
    assert (project / "run.toml").read_text() == text
    answered = (project / "r.json").read_bytes()
    assert main(["withdraw", "run", "--documents", "self:9", "--receipt", "r.json"])
    assert "r.json: is the receipt of another request" in capsys.readouterr().err
    assert (project / "r.json").read_bytes() == answered
    assert (project / "run.toml").read_text() == text
    capsys.readouterr()
    assert main(["plan", "run.toml"]) == 0
    assert "8" in capsys.readouterr().out
    assert main(["train", "run.toml"]) == 0
    sampler = open_run("run").sampler()
    assert sampler.masked_steps("self", 4) == (range(8, 20),)
    capsys.readouterr()
    assert main(["withdraw", "run", "--documents", "code:1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["masked_from"] == shown["total_steps"] == 20
    assert Path(shown["receipt"]).exists()


def test_steps_that_left_out_the_tokens_have_not_learned_the_document(
    project: Path,
) -> None:
    without = '\n[without]\nself = ["tokens:[120,160)"]\n'
    (project / "run.toml").write_text((project / "run.toml").read_text() + without)
    assert main(["train", "run.toml"]) == 0

    [asked] = withdraw(open_run("run"), {"self": [3]}).documents

    assert asked.tokens == (120, 160)
    assert asked.learned == tuple(reading(0, 120, 160, 8))
    assert len(reading(0, 120, 160, 20)) > len(asked.learned)


@pytest.mark.parametrize(
    ("change", "given_", "message"),
    [
        (('"loss_mask"', '"positions"'), ("self", [1]), "give fields = "),
        (('save_path = "run"', 'save_path = "b"'), ("self", [1]), "give --config FILE"),
        (("steps = 20", "steps = 20"), ("self", []), "no document is named"),
    ],
)
def test_what_cannot_be_masked_leaves_the_config_as_it_was(
    change: tuple[str, str], given_: tuple[str, list[int]], message: str, project: Path
) -> None:
    file = project / "run.toml"
    file.write_text(file.read_text().replace(*change))
    before = file.read_text()

    with pytest.raises(ValueError, match=message):
        withdraw(open_run("run"), dict([given_]))

    assert file.read_text() == before
    assert not [*project.glob("*withdrawn*.json")]


def test_two_configs_of_one_run_are_named(project: Path) -> None:
    other = project / "other.toml"
    other.write_text((project / "run.toml").read_text())
    try:
        with pytest.raises(
            ConfigError, match=r"other\.toml and .*run\.toml have .*--config"
        ):
            withdraw(open_run("run"), {"self": [1]})
        found = withdraw(open_run("run"), {"self": [1]}, config=other)
        assert found.config == str(other)
        assert "without" not in (project / "run.toml").read_text()
    finally:
        other.unlink()


Items = st.one_of(
    st.none(),
    st.sampled_from(["old.txt", "scan.json", "tokens:[4,9)"]),
    st.lists(
        st.one_of(
            st.integers(0, 12),
            st.tuples(st.integers(0, 6), st.integers(7, 12)).map(list),
            st.sampled_from(["old.txt", "tokens:[4,9)"]),
        ),
        max_size=4,
    ),
)


def covered(items: Any) -> tuple[set[int], set[str]]:
    """Return the documents and the texts that a value of `without` names."""
    listed = [items] if isinstance(items, str) else list(items or [])
    numbers: set[int] = set()
    for each in listed:
        if isinstance(each, int):
            numbers.add(each)
        elif isinstance(each, list):
            numbers.update(range(*each))
    return numbers, {each for each in listed if isinstance(each, str)}


@settings(max_examples=60, deadline=None)
@given(before=Items, more=st.sets(st.integers(0, 12), min_size=1))
def test_a_config_names_what_it_named_and_more(
    tmp_path_factory: pytest.TempPathFactory, before: Any, more: set[int]
) -> None:
    file = tmp_path_factory.getbasetemp() / "config.toml"
    table = "" if before is None else f"\n[without]\nself = {json.dumps(before)}  # !\n"
    file.write_text(CONFIG + table)

    text = withdrawn_text(load_config(file), {"self": sorted(more)})

    after = parse_config(text, file).schedule.without["self"]
    numbers, texts = covered(before)
    assert covered(after) == (numbers | more, texts)
    assert "# My run." in text
    file.write_text(text)
    assert withdrawn_text(load_config(file), {"self": sorted(more)}) == text
