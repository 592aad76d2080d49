"""The page of several runs, drawn together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.screen import in_html, short_duration

from roxxel.config import config_differences
from roxxel.report._page import is_loss
from roxxel.report._parts import Chart, Drawn, Line, document, short, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from roxxel.report._facts import RunFacts
    from roxxel.report._series import Series


def comparison(
    runs: Sequence[RunFacts], configs: Sequence[Mapping[str, str] | None]
) -> str:
    """Return the HTML of a page about several runs, each with its config's values."""
    names = _names(runs)
    drawn = Drawn(list(_charts(runs, names)), [run.clock for run in runs])
    body = [
        f"<header><h1>{in_html(', '.join(names))}</h1></header>",
        _runs(runs, names),
        drawn.html or "<p>The runs have not written a training row yet.</p>",
        _differences(names, configs),
        _versions(runs, names),
    ]
    return document(f"{len(runs)} runs: {', '.join(names)}", body, drawn)


def _names(runs: Sequence[RunFacts]) -> list[str]:
    """Return the names of the runs' folders, or their locations if names repeat."""
    names = [run.name for run in runs]
    is_unique = len(set(names)) == len(names)
    return names if is_unique else [run.location for run in runs]


def _charts(runs: Sequence[RunFacts], names: Sequence[str]) -> Iterator[Chart]:
    """Yield charts of each loss and of the throughput, with a line for each run."""

    def lines(columns: str, field: str, *, has_dots: bool = False) -> list[Line]:
        found = [getattr(run, columns).get(field) for run in runs]
        return [
            Line(name, series, index, has_dots=has_dots, clock=index)
            for index, (name, series) in enumerate(zip(names, found, strict=True))
            if series is not None and series.finite
        ]

    is_mean = all("loss_mean" in run.train for run in runs if "loss" in run.train)
    held_out = _held_out(runs)
    losses = [
        (
            "loss",
            "Mean loss" if is_mean else "Loss",
            lines("train", "loss_mean" if is_mean else "loss"),
        )
    ]
    for name in held_out:
        found = lines("evaluations", name, has_dots=True)
        losses.append((f"eval-{name}", f"{name} (held out)", found))
    for key, title, found in losses:
        is_wide = key == "loss"
        if found:
            yield Chart(
                key, title, found, from_zero=False, may_be_log=True, is_wide=is_wide
            )
    rates = lines("train", "tokens_per_s")
    if rates:
        yield Chart("throughput", "Throughput in tokens a second", rates)


def _runs(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    held_out = _held_out(runs)
    rows = [
        ("status", *(run.status for run in runs)),
        ("steps", *(run.steps_done for run in runs)),
        ("tokens", *(short(run.tokens) for run in runs)),
        ("loss at the last row", *(_last(run.train, "loss") for run in runs)),
        *(
            (f"{name} at the end", *(_last(run.evaluations, name) for run in runs))
            for name in held_out
        ),
        ("training", *(short_duration(run.seconds) for run in runs)),
        ("tokens/s on average", *(short(run.rate) if run.rate else "" for run in runs)),
        ("branch of", *(_parent(run, is_branch=True) for run in runs)),
        ("weights of", *(_parent(run, is_branch=False) for run in runs)),
        ("command", *(run.command for run in runs)),
        ("devices", *(run.devices for run in runs)),
        ("seed", *("" if run.seed is None else str(run.seed) for run in runs)),
    ]
    given = [row for row in rows if any(row[1:])]
    return table("Runs", ("", *names), given, left={0}, kind="runs")


def _held_out(runs: Sequence[RunFacts]) -> dict[str, None]:
    return dict.fromkeys(
        name for run in runs for name in run.evaluations if is_loss(name)
    )


def _last(columns: Mapping[str, Series], name: str) -> str:
    last = columns[name].last if name in columns else None
    return "" if last is None else f"{last:.4f}"


def _parent(run: RunFacts, *, is_branch: bool) -> str:
    parent = run.parent
    return str(parent) if parent and parent.is_branch is is_branch else ""


def _differences(
    names: Sequence[str], configs: Sequence[Mapping[str, str] | None]
) -> str:
    without = [
        name for name, config in zip(names, configs, strict=True) if config is None
    ]
    note = "An empty cell is the default."
    if without:
        note += f" These runs have no readable config: {in_html(', '.join(without))}."
    rows = [(key, *values) for key, values in config_differences(configs)]
    columns = set(range(len(names) + 1))
    return table(
        "Differences of the configs",
        ("key", *names),
        rows,
        left=columns,
        note=note,
        kind="runs",
    )


def _versions(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    packages = dict.fromkeys(name for run in runs for name in run.versions)
    rows = [
        (package, *(str(run.versions.get(package, "")) for run in runs))
        for package in packages
    ]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    head = ("package", *names)
    return table("Differences of the versions", head, differing, left={0}, kind="runs")
