"""The page of one run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from roxxel_store.screen import in_html, short_duration

from roxxel.report._chart import Drawn, Mark, percent, short
from roxxel.report._html import document, table, when
from roxxel.report._run_charts import charts_of, is_loss
from roxxel.report._spikes import RULE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel.report._facts import RunFacts
    from roxxel.report._phases import PhaseFacts
    from roxxel.report._spikes import Spike

_MOST_ALERTS = 40
_MOST_SPIKES = 12


def page(facts: RunFacts) -> str:
    """Return the HTML of a run's page."""
    drawn = Drawn(
        list(charts_of(facts)),
        [facts.clock],
        phases=[Mark(p.start, _phase_labels(p)) for p in facts.phases],
        evaluations=facts.evaluated_steps,
    )
    body = [
        _head(facts),
        _alerts(facts),
        drawn.html or "<p>The run has not written a training row yet.</p>",
        _spikes(facts),
        _phases(facts),
        _checkpoints(facts),
        _benchmarks(facts),
        _text(facts),
        _folded("Plan of the config", facts.plan),
        _folded("Config", facts.config),
    ]
    return document(f"{facts.name}: {facts.headline}", body, drawn)


def _head(facts: RunFacts) -> str:
    total = facts.total_steps
    steps = f"{facts.step:,}" + ("" if total is None else f" of {total:,}")
    if total:
        steps += f" ({100 * facts.step / total:.0f} %)"
    parent, rate = facts.parent, facts.rate
    wall = str(facts.goodput) if facts.goodput.seconds else ""
    items = [
        ("Steps", steps),
        ("Tokens", _tokens(facts)),
        ("Loss", _losses(facts)),
        ("Training", short_duration(facts.seconds)),
        ("Throughput", f"{short(rate)} tokens/s on average" if rate else ""),
        # The wall time says this too, unless the share is too small to matter.
        ("Wait share", "" if "waiting for data" in wall else _wait_share(facts)),
        ("Wall time", wall),
        ("Model", facts.model),
        ("Devices", facts.devices),
        ("Command", facts.command),
        ("Versions", ", ".join(f"{name} {x}" for name, x in facts.versions.items())),
        ("Logged", _logged(facts)),
        ("Started", f"{facts.starts} times" if facts.starts > 1 else "once"),
        ("Seed", "" if facts.seed is None else str(facts.seed)),
        (
            "Branch of" if parent and parent.is_branch else "Weights of",
            "" if parent is None else str(parent),
        ),
    ]
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{in_html(text)}</dd></div>"
        for name, text in items
        if text
    )
    kind = facts.status.split()[0]
    return (
        f'<header><h1>{in_html(facts.name)} <span class="status {kind}">'
        f"{in_html(facts.status)}</span></h1>\n<dl>{shown}</dl></header>"
    )


def _wait_share(facts: RunFacts) -> str:
    share = percent(facts.wait_share)
    return f"{share} of the training time, for data" if facts.seconds else ""


def _tokens(facts: RunFacts) -> str:
    text = f"{short(facts.tokens)} ({facts.tokens:,})"
    new = facts.tokens - facts.first_tokens
    return f"{text}, {short(new)} of them in this branch" if facts.first_step else text


def _logged(facts: RunFacts) -> str:
    first, last = when(facts.first_time), when(facts.last_time)
    return last if first == last else f"{first} to {last}"


def _losses(facts: RunFacts) -> str:
    parts: list[str] = []
    last = facts.train["loss"].last if "loss" in facts.train else None
    if last is not None:
        parts.append(f"{last:.4f} at the last row")
    for name, series in facts.evaluations.items():
        if is_loss(name) and series.last is not None:
            parts.append(f"{name} {series.last:.4f}")
    return "; ".join(parts)


def _alerts(facts: RunFacts) -> str:
    items = [
        f'<li class="{entry.level.lower()}"><time>{when(entry.time)}</time> '
        f"<b>{in_html(entry.level.lower())}</b> {_entry(entry.text)}</li>"
        for entry in facts.alerts[-_MOST_ALERTS:]
    ]
    left_out = len(facts.alerts) - len(items)
    if left_out:
        items.insert(0, f"<li>{left_out} older entries are in system.log</li>")
    if facts.num_damaged:
        items.append(
            f"<li>{facts.num_damaged} lines of metrics.jsonl cannot be read</li>"
        )
    items += [f"<li>{in_html(path)} cannot be read</li>" for path in facts.damaged]
    if not items:
        return ""
    return f"<section><h2>Warnings and errors</h2><ul>{''.join(items)}</ul></section>"


def _entry(text: str) -> str:
    """Return an entry of the log, with a traceback in a closed `<details>`."""
    first, _, rest = text.partition("\n")
    if not rest:
        return in_html(first)
    last = rest.rstrip().rpartition("\n")[2]
    return (
        f"{in_html(first)}: {in_html(last)}<details><summary>traceback</summary>"
        f"<pre>{in_html(rest)}</pre></details>"
    )


def _spikes(facts: RunFacts) -> str:
    """Return the table of the spikes, each with the command that shows its batch."""
    highest = sorted(facts.spikes, key=lambda spike: spike.usual - spike.loss)
    shown = sorted(highest[:_MOST_SPIKES], key=lambda spike: spike.row)
    left_out = len(facts.spikes) - len(shown)
    note = (
        f"{RULE} Batches count from 0: the row of step k is about batch k - 1. Add "
        "<code>--row R</code> for one row of the batch and <code>--text</code> for its "
        "text; <code>roxxel where</code> finds the other steps of a document."
    )
    if left_out:
        note += f" {left_out:,} smaller spikes are not listed."
    rows = [
        (
            f"{spike.row:,}",
            f"{spike.loss:.4g}",
            f"{spike.usual:.4g}",
            _batches(spike),
            shlex.join(
                ["roxxel", "show", facts.location, "--step", str(spike.steps.start)]
            ),
        )
        for spike in shown
    ]
    head = ("step", "loss", "usual", "batch", "command")
    return table("Spikes of the loss", head, rows, left={4}, note=note, kind="spikes")


def _batches(spike: Spike) -> str:
    first, last = spike.steps.start, spike.steps[-1]
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _phases(facts: RunFacts) -> str:
    rows: list[tuple[str, ...]] = []
    for phase in facts.phases:
        given = sum(phase.tokens.values())
        label = f"{phase.index}: {phase.shape}" if phase.shape else str(phase.index)
        start = f"{phase.start:,}"
        for name in {**phase.tokens, **phase.shares}:
            tokens, share = phase.tokens.get(name, 0), phase.shares.get(name)
            if not tokens and not share:
                continue
            rows.append(
                (
                    label,
                    start,
                    name,
                    "" if share is None else percent(share),
                    percent(tokens / given) if given else "",
                    f"{tokens:,}",
                )
            )
            label, start = "", ""
    head = ("phase", "from step", "source", "share planned", "share read", "tokens")
    return table("What was read", head, rows, left={0, 2})


def _checkpoints(facts: RunFacts) -> str:
    kept = facts.checkpoints
    rows: list[tuple[str, ...]] = []
    for checkpoint in kept:
        marks: list[str] = []
        if checkpoint is kept[-1]:
            marks.append("newest")
        if checkpoint.step == facts.best_step:
            marks.append(f"best {facts.best_metric}")
        metrics = ", ".join(f"{n} {v:.4g}" for n, v in checkpoint.metrics.items())
        rows.append((f"{checkpoint.step:,}", ", ".join(marks), metrics))
    head = ("step", "", "metrics")
    return table("Checkpoints kept", head, rows, left={1, 2}, kind="checkpoints")


def _benchmarks(facts: RunFacts) -> str:
    """Return the results of `roxxel eval`: a row per metric, a column per step."""
    steps = tuple(facts.benchmarks)
    found = {
        (task, name, step): number
        for step, tasks in facts.benchmarks.items()
        for task, result in tasks.items()
        for name, number in result["metrics"].items()
    }
    names = dict.fromkeys((task, name) for task, name, _ in found)
    rows = [
        (task, name, *(_measured(found.get((task, name, step))) for step in steps))
        for task, name in names
    ]
    head = ("task", "metric", *(f"step {step:,}" for step in steps))
    return table("Benchmarks", head, rows, left={0, 1}, kind="runs")


def _measured(number: Mapping[str, float | None] | None) -> str:
    """Return a value with its standard error."""
    if number is None:
        return ""
    error = number["stderr"]
    return f"{number['value']:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _text(facts: RunFacts) -> str:
    if not facts.last_text:
        return ""
    return (
        "<section><h2>Last text of the evaluation</h2>"
        f"<pre>{in_html(facts.last_text)}</pre></section>"
    )


def _folded(title: str, text: str) -> str:
    if not text:
        return ""
    return (
        f"<details><summary>{title} that the run used last</summary>"
        f"<pre>{in_html(text)}</pre></details>"
    )


def _phase_labels(phase: PhaseFacts) -> tuple[str, ...]:
    """Return labels of a phase for the charts, the longest first."""
    name = f"phase {phase.index}"
    long = (f"{name}: {phase.shape} tokens", f"{name}: {phase.shape}")
    return (*(long if phase.shape else ()), name, str(phase.index))
