"""The page of one run: its figures, charts and tables."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from roxxel_store.screen import in_html, short_duration

from roxxel.report._parts import (
    Chart,
    Drawn,
    Line,
    Mark,
    Spot,
    document,
    percent,
    short,
    table,
    when,
)
from roxxel.report._spikes import RULE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roxxel.report._facts import PhaseFacts, RunFacts
    from roxxel.report._spikes import Spike

_MOST_ALERTS = 40
_MOST_SPIKES = 12

_MEANINGS = {
    "read_s": "wait for reading tokens since the previous row, in seconds",
    "assemble_s": "wait for assembling batches since the previous row, in seconds",
    "transfer_s": "wait for making arrays since the previous row, in seconds",
    "model_flops_per_s": "work of the model, in FLOP/s",
    "mfu": "share of the peak FLOP/s of all devices",
    "device_bytes": "memory in use on the fullest device, in bytes",
    "device_peak_bytes": "peak memory of the fullest device, in bytes",
    "grad_norm": "norm of the gradient",
    "perplexity": "e to the power of the mean loss",
    "learning_rate": "step size of the optimizer",
    "loss_weight": "weight of the loss of a step, such as its number of targets",
}
"""Chart titles of the trainer's own fields, with units."""


_FROM_ZERO = {"learning_rate", "loss_weight", "mfu"}
"""Fields whose axis begins at 0, like the axes of all rates and durations."""

_FOLDED = {
    *("read_s", "assemble_s", "transfer_s", "lag_s", "slowest_process"),
    *("device_bytes", "device_peak_bytes", "model_flops_per_s"),
}
"""Fields that matter only to find out why a run is slow or large."""


def page(facts: RunFacts) -> str:
    """Return the HTML of a run's page."""
    drawn = Drawn(
        list(_charts(facts)),
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


def is_loss(name: str) -> bool:
    """Return whether a field of an evaluation is a loss, by its name."""
    return "loss" in name or name == "value"


def _head(facts: RunFacts) -> str:
    steps = facts.steps_done
    if facts.total_steps:
        steps += f" ({100 * facts.step / facts.total_steps:.0f} %)"
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
    if facts.last_loss is not None:
        parts.append(f"{facts.last_loss:.4f} at the last row")
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


def _charts(facts: RunFacts) -> Iterator[Chart]:
    """Yield the charts to draw, in their order on the page."""
    train = facts.train
    losses = _lines_of_losses(facts)
    if losses:
        yield Chart(
            "loss",
            "Loss",
            losses,
            from_zero=False,
            may_be_log=True,
            is_wide=True,
            spots=[_spot(spike) for spike in facts.spikes],
        )
    yield from _charts_of_values(facts)
    yield from _charts_by_source(facts)
    if "tokens_per_s" in train and train["tokens_per_s"].finite:
        line = Line("tokens/s", train["tokens_per_s"])
        yield Chart("throughput", "Throughput in tokens a second", [line])
    if "wait_share" in train and train["wait_share"].finite:
        line = Line("waiting", train["wait_share"])
        title = "Wait share: training time spent waiting for data"
        yield Chart("waiting", title, [line], is_share=True)
    colors = _colors(facts)
    by_source = [
        Line(name, series, color=colors[name])
        for name, series in facts.tokens_by_source.items()
        if any(series.values)
    ]
    if by_source:
        title = "Tokens read so far, by source"
        yield Chart("tokens", title, by_source, is_stack=True)
    for name in facts.other_fields:
        if facts.train[name].finite:
            line = Line(name, facts.train[name])
            yield Chart(
                f"train-{name}",
                f"{name}: {_MEANINGS[name]}" if name in _MEANINGS else name,
                [line],
                from_zero=name in _FROM_ZERO or not _is_value(name),
                may_be_log=_may_be_log(name),
                is_share=name == "mfu",
                is_folded=name in _FOLDED,
            )


def _lines_of_losses(facts: RunFacts) -> list[Line]:
    train = facts.train
    names = {"loss": "loss of a step", "loss_mean": "mean loss"}
    if train.get("loss") == train.get("loss_mean"):
        # If every step has a row, the mean equals the loss. Draw only one line.
        del names["loss_mean"]
    losses = [
        Line(words, train[name], index, is_faint=name == "loss" and len(names) > 1)
        for index, (name, words) in enumerate(names.items())
        if name in train and train[name].finite
    ]
    for name, series in facts.evaluations.items():
        if series.finite and is_loss(name):
            words = f"{name} (held out)"
            losses.append(Line(words, series, len(losses), has_dots=True))
    return losses


def _charts_of_values(facts: RunFacts) -> Iterator[Chart]:
    """Yield a chart of each value of an evaluation that is no loss."""
    for name, series in facts.evaluations.items():
        if series.finite and not is_loss(name) and _is_value(name):
            yield Chart(
                f"eval-{name}",
                f"{name} (evaluation)",
                [Line(name, series, has_dots=True)],
                from_zero=False,
                may_be_log=_may_be_log(name),
            )


def _charts_by_source(facts: RunFacts) -> Iterator[Chart]:
    """Yield loss and share by source, in one colour for each source."""
    colors = _colors(facts)
    losses = [
        Line(name, series, color=colors[name])
        for name, series in facts.losses_by_source.items()
        if series.finite
    ]
    if len(losses) > 1:  # one source: its loss is the loss of the run
        yield Chart(
            "loss-by-source",
            "Mean loss by source",
            losses,
            from_zero=False,
            may_be_log=True,
        )
    if len(colors) < 2:
        return
    shares = [
        Line(name, series, color=colors[name])
        for name, series in facts.shares.items()
        if name in colors and any(series.values)
    ]
    shares += [
        Line(f"{name} as planned", series, colors[name], of=name, is_faint=True)
        for name, series in facts.planned_shares.items()
        if name in colors and any(series.values)
    ]
    if shares:
        title = "Share of the tokens since the previous row, by source"
        yield Chart("shares", title, shares, is_share=True)


def _colors(facts: RunFacts) -> dict[str, int]:
    """Return the colour of each source, the same in all charts."""
    return {name: index for index, name in enumerate(facts.tokens_by_source)}


def _spot(spike: Spike) -> Spot:
    what = "mean loss" if spike.is_mean else "loss"
    words = f"step {spike.row:,}: {what} {spike.loss:.4g}, usually {spike.usual:.4g}"
    return Spot(spike.row, spike.loss, words)


def _may_be_log(name: str) -> bool:
    return name not in _FROM_ZERO and any(
        word in name for word in ("norm", "loss", "perplexity")
    )


def _is_value(name: str) -> bool:
    return not name.endswith("_s")
