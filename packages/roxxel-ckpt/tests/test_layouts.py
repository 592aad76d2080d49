"""Files that do not fit each other are found before memory is taken for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_ckpt import CheckpointDamagedError, _integrity, cli
from roxxel_ckpt._place import description

from .helpers import checkpointer, save_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WEIGHTS = "state/model/weights"
LAYOUT = f"{WEIGHTS}/zarr.json"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return the directory of a step with float32[64, 8] in one chunk."""
    with checkpointer(tmp_path / "run") as saving:
        save_all(saving, 1)
    return tmp_path / "run" / "1"


def seal(step: Path, change: Callable[[Any, Any], None] = lambda *_: None) -> None:
    """Give the changed files of a step right digests, as a hostile program would.

    `change` edits the digests and the description.
    """
    commit, digests = step / "checkpoint.json", step / "digests" / "0.json"
    body = json.loads(commit.read_text())["body"]
    commit.unlink()
    digests.unlink()
    files = _integrity.digest_files(step)
    change(files, body)
    digests.write_text(description.sealed(files))
    body["digests"] = [description.crc_of(files)]
    commit.write_text(description.sealed(body))


def refused(step: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return why restore, verify and export refuse a step."""
    with pytest.raises(CheckpointDamagedError) as error:
        checkpointer(step.parent).restore(1)
    out = step.parent.parent / "out.safetensors"
    assert cli.main(["verify", str(step)]) == 3
    assert cli.main(["export", str(step), str(out)]) == 1
    said = capsys.readouterr()
    assert "DAMAGED" in said.out
    assert "cannot be exported" in said.err
    return str(error.value)


def grid(chunk: list[Any]) -> Callable[[Any], None]:
    def edit(layout: Any) -> None:
        layout["chunk_grid"]["configuration"]["chunk_shape"] = chunk

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda layout: layout.update(shape=[10**12, 8]),
        lambda layout: layout.update(shape=[64]),
        lambda layout: layout.update(data_type="float64"),
        lambda layout: layout.update(chunk_grid={}),
        grid([0, 8]),
        grid([64]),
        grid([10**12, 8]),
    ],
    ids=range(7),
)
def test_a_layout_that_differs_from_its_description_is_damage(
    step: Path, edit: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    layout = json.loads((step / LAYOUT).read_text())
    edit(layout)
    (step / LAYOUT).write_text(json.dumps(layout))
    seal(step)

    assert LAYOUT in refused(step, capsys)


def test_a_description_that_differs_from_its_layout_is_damage(
    step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seal(
        step,
        lambda _, body: body["leaves"].update({"model/seed": ["int64", [10**12]]}),
    )
    out = step.parent / "out"

    assert cli.main(["verify", str(step)]) == 3
    assert cli.main(["export", str(step), str(out)]) == 1

    assert "int64[1000000000000]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        lambda files, _: files["files"].update({"../../evil": [0]}),
        lambda files, _: files["files"].update({"/evil": [0]}),
        lambda files, _: files["files"].update({LAYOUT: [10**15, 1]}),
        lambda files, _: files["files"].update({LAYOUT: [-1]}),
        lambda files, _: files.update(block_bytes=0),
    ],
    ids=["above", "absolute", "too few blocks", "negative", "no block"],
)
def test_digests_that_fit_no_file_are_damage(
    step: Path, change: Callable[[Any, Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    seal(step, change)

    assert "digests/0.json" in refused(step, capsys)


def test_what_no_memory_holds_is_not_read(
    step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = json.loads((step / LAYOUT).read_text())
    layout["shape"] = [10**12, 8]
    (step / LAYOUT).write_text(json.dumps(layout))
    # The chunk of the true array is left; all others would be fill values.
    seal(
        step,
        lambda _, body: body["leaves"]["model/weights"].__setitem__(1, [10**12, 8]),
    )
    out = step.parent / "out"

    assert cli.main(["export", str(step), str(out)]) == 1

    assert f"float32[{10**12}, 8]" in capsys.readouterr().err
    assert not out.exists()
