"""The charts of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel.report._chart import Chart, Line, Spot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel.report._facts import RunFacts
    from roxxel.report._spikes import Spike

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


def is_loss(name: str) -> bool:
    """Return whether a field of an evaluation is a loss, by its name."""
    return "loss" in name or name == "value"


def charts_of(facts: RunFacts) -> Iterator[Chart]:
    """Yield the charts to draw, in their order on the page."""
    train = facts.train
    losses = _losses(facts)
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
    yield from _measured(facts)
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


def _losses(facts: RunFacts) -> list[Line]:
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


def _measured(facts: RunFacts) -> Iterator[Chart]:
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
