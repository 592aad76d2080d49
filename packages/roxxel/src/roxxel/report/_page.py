"""The HTML of the page, with its charts, tables, style and script in one file."""

from __future__ import annotations

import json
from datetime import datetime
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from roxxel.report._chart import Chart, Line, Mark, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roxxel.report._facts import PhaseFacts, RunFacts

_MOST_ALERTS = 40

_MEANINGS = {
    "read_s": "wait for reading tokens since the previous row, in seconds",
    "assemble_s": "wait for assembling batches since the previous row, in seconds",
    "transfer_s": "wait for making arrays since the previous row, in seconds",
    "model_flops_per_s": "work of the model, in FLOP/s",
    "mfu": "share of the peak FLOP/s of all devices",
    "device_bytes": "memory in use on the fullest device, in bytes",
    "device_peak_bytes": "peak memory of the fullest device, in bytes",
    "grad_norm": "norm of the gradient",
    "learning_rate": "step size of the optimizer",
}
"""Chart titles of the trainer's own fields, with units."""


def page(facts: RunFacts) -> str:
    """Return the HTML of a run's page."""
    charts = list(_charts(facts))
    marks = [
        Mark(p.start, (_phase_label(p), f"phase {p.index}", str(p.index)))
        for p in facts.phases
    ]
    numbers = {chart.key: chart.data() for chart in charts}
    body = [
        _head(facts),
        _alerts(facts),
        *(chart.html(facts.step, marks) for chart in charts),
        "" if charts else "<p>The run has not written a training row yet.</p>",
        _phases(facts),
        _checkpoints(facts),
        _plan(facts),
        _text(facts),
        _versions(facts),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(facts.name)}: {escape(facts.headline)}</title>\n"
        f"<style>\n{_file('page.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + '\n</main>\n<div id="tip" hidden></div>\n'
        f'<script type="application/json" id="numbers">{_json(numbers)}</script>\n'
        f"<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _charts(facts: RunFacts) -> Iterable[Chart]:
    """Yield every chart that has numbers."""
    train = facts.train
    names = {"loss": "loss of a step", "loss_mean": "mean loss"}
    if train.get("loss") == train.get("loss_mean"):
        # If every step has a row, the mean equals the loss. Draw only one line.
        del names["loss_mean"]
    losses = [
        Line(words, train[name], is_faint=name == "loss" and len(names) > 1)
        for name, words in names.items()
        if name in train and train[name].finite
    ]
    held_out = {name: s for name, s in facts.evaluations.items() if s.finite}
    losses += [
        Line(f"{name} (held out)", series, has_dots=True)
        for name, series in held_out.items()
        if _is_loss(name)
    ]
    if losses:
        yield Chart(
            "loss", "Loss", losses, from_zero=False, may_be_log=True, height=300
        )
    others = [name for name in held_out if not _is_loss(name) and _is_value(name)]
    for name in others:
        line = Line(name, held_out[name], has_dots=True)
        yield Chart(f"eval-{name}", f"{name} (evaluation)", [line], from_zero=False)
    yield from _charts_by_source(facts)
    if "tokens_per_s" in train:
        line = Line("tokens/s", train["tokens_per_s"])
        yield Chart("throughput", "Throughput in tokens a second", [line], height=180)
    if "wait_share" in train:
        line = Line("waiting", train["wait_share"])
        title = "Share of the time spent waiting for data"
        yield Chart("waiting", title, [line], shown=_percent, height=150)
    by_source = [Line(name, s) for name, s in facts.tokens_by_source.items()]
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
                from_zero=False,
                may_be_log="norm" in name or "loss" in name,
                shown=_percent if name == "mfu" else short,
                height=150,
            )


def _charts_by_source(facts: RunFacts) -> Iterable[Chart]:
    """Yield loss and share by source, in one colour for each source."""
    colors = {name: index for index, name in enumerate(facts.tokens_by_source)}
    losses = [
        Line(name, series, color=colors[name])
        for name, series in facts.losses_by_source.items()
        if series.finite
    ]
    if losses:
        yield Chart(
            "loss-by-source",
            "Mean loss by source",
            losses,
            from_zero=False,
            may_be_log=True,
            height=260,
        )
    if len(colors) < 2:
        return
    shares = [
        Line(name, series, color=colors[name])
        for name, series in facts.shares.items()
        if name in colors
    ]
    shares += [
        Line(f"{name} as planned", series, is_faint=True, color=colors[name])
        for name, series in facts.planned_shares.items()
        if name in colors
    ]
    if shares:
        title = "Share of the tokens since the previous row, by source"
        yield Chart("shares", title, shares, shown=_percent, height=200)


def _is_loss(name: str) -> bool:
    return "loss" in name or name == "value"


def _is_value(name: str) -> bool:
    return not name.endswith("_s")


def _head(facts: RunFacts) -> str:
    total = facts.total_steps
    steps = f"{facts.step:,}" + ("" if total is None else f" of {total:,}")
    if total:
        steps += f" ({facts.step / total:.0%})"
    rate = facts.tokens / facts.seconds if facts.seconds else 0.0
    items = [
        ("Steps", steps),
        ("Tokens", f"{short(facts.tokens)} ({facts.tokens:,})"),
        ("Loss", _losses(facts)),
        ("Training", _duration(facts.seconds)),
        ("Throughput", f"{short(rate)} tokens/s on average" if rate else ""),
        ("Waiting for data", _percent(facts.wait_share) if facts.seconds else ""),
        (
            "Not training",
            ", ".join(f"{name} {_duration(s)}" for name, s in facts.apart.items()),
        ),
        ("Rows from", f"{_when(facts.first_time)} to {_when(facts.last_time)}"),
        ("Started", f"{facts.starts} times" if facts.starts > 1 else "once"),
        ("Seed", "" if facts.seed is None else str(facts.seed)),
    ]
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>"
        for name, text in items
        if text.strip(" to")
    )
    kind = facts.status.split()[0]
    return (
        f'<header><h1>{escape(facts.name)} <span class="status {kind}">'
        f"{escape(facts.status)}</span></h1>\n<dl>{shown}</dl></header>"
    )


def _losses(facts: RunFacts) -> str:
    parts: list[str] = []
    last = facts.train["loss"].last if "loss" in facts.train else None
    if last is not None:
        parts.append(f"{last:.4f} at the last row")
    for name, series in facts.evaluations.items():
        if _is_loss(name) and series.last is not None:
            parts.append(f"{name} {series.last:.4f}")
    return "; ".join(parts)


def _alerts(facts: RunFacts) -> str:
    items = [
        f'<li class="{entry.level.lower()}"><time>{_when(entry.time)}</time> '
        f"<b>{escape(entry.level.lower())}</b> {_entry(entry.text)}</li>"
        for entry in facts.alerts[-_MOST_ALERTS:]
    ]
    left_out = len(facts.alerts) - len(items)
    if left_out:
        items.insert(0, f"<li>{left_out} older entries are in system.log</li>")
    if facts.num_damaged:
        items.append(
            f"<li>{facts.num_damaged} lines of metrics.jsonl cannot be read</li>"
        )
    items += [f"<li>{escape(path)} cannot be read</li>" for path in facts.damaged]
    if not items:
        return ""
    return f"<section><h2>Warnings</h2><ul>{''.join(items)}</ul></section>"


def _entry(text: str) -> str:
    """Return an entry of the log, with a traceback in a closed `<details>`."""
    first, _, rest = text.partition("\n")
    if not rest:
        return escape(first)
    last = rest.rstrip().rpartition("\n")[2]
    return (
        f"{escape(first)}: {escape(last)}<details><summary>traceback</summary>"
        f"<pre>{escape(rest)}</pre></details>"
    )


def _phases(facts: RunFacts) -> str:
    rows: list[tuple[str, ...]] = []
    for phase in facts.phases:
        given = sum(phase.tokens.values())
        label, start = _phase_label(phase), f"{phase.start:,}"
        for name in {**phase.shares, **phase.tokens}:
            tokens, share = phase.tokens.get(name, 0), phase.shares.get(name)
            if not tokens and not share:
                continue
            rows.append(
                (
                    label,
                    start,
                    name,
                    "" if share is None else _percent(share),
                    _percent(tokens / given) if given else "",
                    f"{tokens:,}",
                )
            )
            label, start = "", ""
    head = ("phase", "from step", "source", "share planned", "share read", "tokens")
    return _table("What was read", head, rows, left={0, 2})


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
    return _table("Checkpoints kept", head, rows, left={1, 2})


def _plan(facts: RunFacts) -> str:
    if not facts.plan:
        return ""
    return (
        "<details><summary>Plan of the current config.toml</summary>"
        f"<pre>{escape(facts.plan)}</pre></details>"
    )


def _text(facts: RunFacts) -> str:
    if not facts.last_text:
        return ""
    return (
        "<section><h2>Last text of the evaluation</h2>"
        f"<pre>{escape(facts.last_text)}</pre></section>"
    )


def _versions(facts: RunFacts) -> str:
    shown = ", ".join(f"{name} {text}" for name, text in facts.versions.items())
    return f"<footer>The run began with {escape(shown)}.</footer>" if shown else ""


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], left: set[int]
) -> str:
    if not rows:
        return ""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=left' if index in left else ''}>{escape(text)}</{tag}>"
            for index, text in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<section><h2>{title}</h2><div class="scroll"><table><thead>'
        f"<tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
        "</section>"
    )


def _phase_label(phase: PhaseFacts) -> str:
    return f"phase {phase.index}" + (f": {phase.shape}" if phase.shape else "")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _when(time: str) -> str:
    """Return an ISO 8601 time in UTC as `YYYY-MM-DD HH:MM:SS UTC`.

    A text that cannot be parsed is returned unchanged.
    """
    try:
        return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return time


def _json(value: object) -> str:
    """Return JSON without `<`, so that no string can close the script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (resources.files("roxxel.report") / name).read_text(encoding="utf-8")
