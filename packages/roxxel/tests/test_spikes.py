"""Spikes of the loss: what is marked, and the command that shows the batch."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel.report import RunFacts, page, read_facts

from .pages import checked, drawn_of, facts_and_page, write_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def of_losses(folder: Path, losses: list[float], **more: Any) -> RunFacts:
    rows = [
        {"kind": "train", "step": step, "loss": loss, "loss_mean": loss, **more}
        for step, loss in enumerate(losses, 1)
    ]
    return read_facts(write_run(folder, rows))


def test_spike_is_marked_and_names_the_command_that_shows_its_batch(
    tmp_path: Path,
) -> None:
    losses = [3.0 + 0.01 * (step % 5) for step in range(100)]
    losses[70:73] = [4.0, 5.0, 4.5]

    facts = of_losses(tmp_path / "my run", losses)

    [spike] = facts.spikes
    assert (spike.row, list(spike.steps), spike.loss) == (72, [71], 5.0)
    assert (spike.usual, spike.num_rows, spike.is_mean) == (3.02, 3, False)
    html = page(facts)
    checked(html)
    command = f"roxxel show &#x27;{tmp_path}/my run&#x27; --step 71"
    assert f"<td class=left>{command}</td>" in html
    [spot] = drawn_of(html)["charts"]["loss"]["spots"]
    assert spot == [72, 5.0, "step 72: loss 5, usually 3.02"]
    assert "exceeds the median of the 64 rows before by more than 8 times" in html


@settings(max_examples=30)
@given(st.lists(st.floats(1, 2) | st.floats(1, 9), max_size=150))
def test_rule_of_spikes_is_the_rule_that_the_page_states(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float]
) -> None:
    """Compare with a slow computation of the rule, row by row."""
    facts = of_losses(tmp_path_factory.mktemp("a") / "run", losses)

    marked: set[int] = set()
    for at in range(16, len(losses)):
        before = losses[max(0, at - 64) : at]
        median = statistics.median(before)
        deviation = statistics.median(abs(loss - median) for loss in before)
        if losses[at] > median + 8 * max(deviation, 0.001 * median):
            marked.add(at + 1)
    assert {spike.row for spike in facts.spikes} <= marked
    assert sum(spike.num_rows for spike in facts.spikes) == len(marked)


def test_fall_at_the_start_and_change_of_phase_are_no_spikes(tmp_path: Path) -> None:
    rows = [
        {
            "kind": "train",
            "step": step,
            "phase": step // 100,
            "loss": 9.0 / (1 + step % 100) + step // 100,
        }
        for step in range(1, 300)
    ]

    facts, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert facts.spikes == ()
    assert "Spikes of the loss" not in html


def test_spike_between_two_rows_is_in_the_mean(tmp_path: Path) -> None:
    rows = [
        {
            "kind": "train",
            "step": 10 * row,
            "loss": 3.0,
            "loss_mean": 3.5 if row == 40 else 3.0,
        }
        for row in range(1, 60)
    ]

    facts, html = facts_and_page(write_run(tmp_path / "run", rows))

    [spike] = facts.spikes
    assert (spike.row, spike.steps, spike.is_mean) == (400, range(390, 400), True)
    assert "<td>390 to 399</td>" in html
    assert "--step 390</td>" in html


def test_only_the_highest_spikes_are_listed(tmp_path: Path) -> None:
    losses = [3.0 + 0.01 * (step % 5) for step in range(400)]
    for at in range(20, 400, 20):
        losses[at] = 4.0 + at / 100

    facts = of_losses(tmp_path / "run", losses)

    html = page(facts)
    assert len(facts.spikes) == 19
    assert html.count(">roxxel show") == 12
    assert "7 smaller spikes are not listed" in html
