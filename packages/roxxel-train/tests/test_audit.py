from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_train import data_state
from roxxel_train.audit import Difference, audit

from .helpers import rows, trainer

if TYPE_CHECKING:
    from pathlib import Path

PHASES = [Phase(6, 4, 9), Phase(4, 2, 17)]
HEAD_BYTES = 4096


def flip(folder: Path, token: int) -> None:
    """Change one token of the only shard."""
    [path] = folder.glob("data_*.rox")
    content = bytearray(path.read_bytes())
    content[HEAD_BYTES + token] ^= 1
    path.write_bytes(content)


def sampler_of(folder: Path, check: Any = "headers") -> Any:
    curriculum = Curriculum(Roxxel(folder / "data_*.rox"), PHASES)
    return curriculum.sampler(state=data_state(folder / "run"), check=check)


def test_sound_run_has_no_differences(tmp_path: Path) -> None:
    trainer(tmp_path, PHASES).run()
    seen: list[tuple[int, int]] = []

    found = audit(
        sampler_of(tmp_path),
        rows(tmp_path),
        workers=2,
        progress=lambda done, total: seen.append((done, total)),
    )

    assert found.is_sound
    assert found.num_steps == 10
    assert seen == [(done, 10) for done in range(1, 11)]


def test_token_flipped_after_the_run_is_named_by_its_steps(tmp_path: Path) -> None:
    folder = tmp_path / "web; cleaned"
    folder.mkdir()
    trainer(folder, PHASES).run()
    wanted = sampler_of(folder).windows(4)
    flip(folder, int(wanted.start[2]) + 5)

    [plain] = audit(sampler_of(folder), rows(folder), workers=2).differences
    exact = audit(sampler_of(folder, "blocks"), rows(folder), workers=2)

    assert (plain.start, plain.stop, plain.damage) == (3, 6, {})
    assert str(plain) == "steps 3 to 5 differ"
    named = {
        step: text for one in exact.differences for step, text in one.damage.items()
    }
    assert 4 in named
    assert "block" in named[4]
    assert "write this shard again" not in named[4]  # an audit names its own remedy


def test_steps_and_sample_choose_the_intervals(tmp_path: Path) -> None:
    trainer(tmp_path, PHASES).run()  # rows after 1, 3, 6, 9 and 10 updates

    of_steps = [
        audit(sampler_of(tmp_path), rows(tmp_path), steps=steps).num_steps
        for steps in (range(4, 7), range(6, 7), range(4, 6))
    ]
    sampled = audit(sampler_of(tmp_path), rows(tmp_path), sample=2)

    assert of_steps == [6, 3, 3]
    assert 2 <= sampled.num_steps <= 6


def test_rows_without_a_digest_are_an_error(tmp_path: Path) -> None:
    trainer(tmp_path, PHASES).run()

    for without in ([{"step": 3}], []):
        with pytest.raises(ValueError, match=r"no digest .* first row .* 'tokens'"):
            audit(sampler_of(tmp_path), without)
    message = r"no digest of the steps \[70, 80\); choose steps in \[0, 10\)"
    with pytest.raises(ValueError, match=message):
        audit(sampler_of(tmp_path), rows(tmp_path), steps=range(70, 80))


def test_a_range_of_many_damaged_blocks_is_a_short_line() -> None:
    error = "web_00000.rox: block {} is damaged; " + "advice " * 10
    damage = {step: error.format(step % 7) for step in range(100)}

    line = str(Difference(0, 100, damage))

    assert "steps 0, 7, 14 and 12 more" in line
    assert line.endswith("; 4 more damaged blocks")
    assert len(line) < 500
