"""What a sweep has found: the table of its runs, laws, the best blend, and a page."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_curriculum.run_log import EVAL_LOSS, LOSS_OF
from roxxel_store import published
from roxxel_store.records import number
from roxxel_store.screen import in_html
from roxxel_train import RunFolderError

from roxxel.config import ConfigError, changed_text, load_config
from roxxel.report._parts import Cloud, Drawn, Scatter, document
from roxxel.report._parts import table as html_table
from roxxel.sweeping._runs import shown_blend
from roxxel.sweeping.laws import LAWS, Fit, best_blend, fit_law, least_blends

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from roxxel_curriculum import Schedule
    from roxxel_train import RunFolder

    from roxxel.config import SweepConfig
    from roxxel.sweeping._runs import SweepRun, SweepRuns

TABLE = "sweep.csv"
PAGE = "sweep.html"
_STARTS = 5


@dataclass(frozen=True)
class Row:
    """The measurements of one finished run.

    Attributes:
        run: The run.
        tokens: Tokens read of each source.
        epochs: Passes over the part of each source that the proxy reads.
        train_losses: The last logged training loss of each source; None if the source
            was not read, or the model's loss returns no `"row_loss"`.
        losses: The held-out losses, in the order of `SweepRuns.leaves`.
    """

    run: SweepRun = field(repr=False)
    tokens: tuple[int, ...]
    epochs: tuple[float, ...]
    train_losses: tuple[float | None, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Table:
    """The finished runs of a sweep.

    Attributes:
        runs: All its runs.
        rows: The measurements of the finished runs.
    """

    runs: SweepRuns = field(repr=False)
    rows: tuple[Row, ...]

    @property
    def target(self) -> npt.NDArray[np.float64]:
        """The loss by which blends are compared, of each row."""
        return self.losses @ np.array(self.runs.target)

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        """The held-out losses: a row for each run."""
        shape = len(self.rows), len(self.runs.leaves)
        return np.array([row.losses for row in self.rows]).reshape(shape)

    def by_set(self, losses: Sequence[float]) -> dict[str, float]:
        """Return the loss of each held-out set, from the losses of its sources."""
        found: dict[str, float] = {}
        for leaf, loss in zip(self.runs.leaves, losses, strict=True):
            found[leaf.of_set] = found.get(leaf.of_set, 0.0) + leaf.share * loss
        return found

    def csv(self) -> str:
        """Return a line for each source of each run; `source` is its fingerprint."""
        runs = self.runs
        phases = len(runs.runs[0].blend)
        # The loss of a set's only source is the loss of the set, and has its label.
        of_sources = [leaf for leaf in runs.leaves if leaf.label != leaf.of_set]
        sets = list(dict.fromkeys(leaf.of_set for leaf in runs.leaves))
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerow(
            [
                *("run", "source", "name"),
                *(f"weight_{phase}" for phase in range(phases)),
                *("tokens", "epochs", "train_loss", "target"),
                *(f"{EVAL_LOSS}/{name}" for name in sets),
                *(f"{EVAL_LOSS}/{leaf.label}" for leaf in of_sources),
            ]
        )
        for row, target in zip(self.rows, self.target.tolist(), strict=True):
            losses = dict(zip(runs.leaves, row.losses, strict=True))
            of_run = [
                target,
                *self.by_set(row.losses).values(),
                *(losses[leaf] for leaf in of_sources),
            ]
            for index, source in enumerate(runs.sources):
                loss = row.train_losses[index]
                out.writerow(
                    [
                        *(row.run.key, source.fingerprint, source.name),
                        *(shares[index] for shares in row.run.blend),
                        *(row.tokens[index], row.epochs[index]),
                        "" if loss is None else loss,
                        *of_run,
                    ]
                )
        return text.getvalue()


@dataclass(frozen=True)
class Recommendation:
    """The blend that a law calls the best.

    Attributes:
        law: Name of the law.
        weights: Share of each source by name, for each phase.
        losses: Predicted loss of each held-out set, at the scale of the proxies.
        target: Predicted target.
        error: Cross-validated error of the law.
        borders: Shares at the border of the tried range, beyond which nothing is known.
    """

    law: str
    weights: tuple[dict[str, float], ...]
    losses: dict[str, float]
    target: float
    error: float
    borders: tuple[str, ...]

    def __str__(self) -> str:
        """Return the blend with its predicted losses."""
        lines: list[str] = []
        for phase, shares in enumerate(self.weights):
            where = f" in phase {phase}" if len(self.weights) > 1 else ""
            shown = ", ".join(f"{name} {share:.4g}" for name, share in shares.items())
            lines.append(f"the {self.law} law recommends{where}: {shown}")
        sets = ", ".join(f"{name} {loss:.4f}" for name, loss in self.losses.items())
        lines.append(f"predicted for a proxy: {sets} (error about {self.error:.4f})")
        lines += [f"note: {border}" for border in self.borders]
        return "\n".join(lines)


@dataclass(frozen=True)
class Sweep:
    """The result of `sweep`; `str(result)` is the report.

    Attributes:
        config: The file.
        table: What the finished runs have measured.
        num_runs: Runs that the file declares.
        fits: The laws, the best one first.
        recommendation: The best blend; None if no law may recommend one.
        notes: What limits the conclusions, and why nothing is recommended.
    """

    config: SweepConfig = field(repr=False)
    table: Table = field(repr=False)
    num_runs: int
    fits: tuple[Fit, ...]
    recommendation: Recommendation | None
    notes: tuple[str, ...]

    @property
    def best(self) -> Row | None:
        """The finished run with the least target; None without a finished run."""
        rows = self.table.rows
        return rows[int(self.table.target.argmin())] if rows else None

    def __str__(self) -> str:
        """Return the laws and the recommendation as text."""
        folder = self.config.folder
        lines = [f"{len(self.table.rows)} of {self.num_runs} runs are finished"]
        if self.best is not None:
            least = self.table.target.min()
            lines.append(f"best run: {self.shown(self.best.run)} (target {least:.4f})")
        lines += map(str, self.fits)
        if self.recommendation is not None:
            lines.append(str(self.recommendation))
        lines += [f"note: {each}" for each in self.notes]
        lines.append(f"table: {folder / TABLE}; page: {folder / PAGE}")
        return "\n".join(lines)

    def write_config(self, path: str | os.PathLike[str]) -> None:
        """Write the config of the big run with the recommended blend.

        The predicted losses are comments.

        Args:
            path: The file. The file must not exist, or must already hold this config.

        Raises:
            ConfigError: Nothing is recommended, or the file holds something else.
        """
        config, best, file = self.config, self.recommendation, Path(path)
        if best is None:
            why = self.notes[-1] if self.notes else "not all runs are finished"
            raise ConfigError(f"{config.file}: {why}; {file} was not written")
        comments = [
            f"The blend is that of {config.file.name}, by the {self.fits[0]}.",
            f"Predicted for a proxy, about {best.error:.4f} off:",
            *(f"  {name}: {loss:.4f}" for name, loss in best.losses.items()),
            *best.borders,
        ]
        changes = [
            f"phases.{phase}.weights={_inline(shares)}"
            for phase, shares in enumerate(best.weights)
        ]
        base = load_config(config.base.file, changes)
        text = changed_text(base, file.absolute().parent, comments)
        if file.exists() and file.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"{file}: exists and holds something else; give another name"
            )
        write(file, text)

    def shown(self, run: SweepRun) -> str:
        """Return the blend of a run as text."""
        names = [source.name for source in self.table.runs.sources]
        return shown_blend(names, run.blend)


def read_table(runs: SweepRuns) -> Table:
    """Read the measurements of a sweep's finished runs.

    Raises:
        RunFolderError: A finished run has no evaluation.
    """
    finished = [run for run in runs.runs if run.is_finished]
    return Table(runs, tuple(_row(run, runs) for run in finished))


def _row(run: SweepRun, runs: SweepRuns) -> Row:
    folder = run.folder
    columns = folder.columns
    evaluated = columns.newest.get("eval", {})
    # Every config lists its sources by fingerprint, whatever their names were then.
    config = load_config(run.config.file)
    plans = {each.name: each for each in run.plan.sources}
    return Row(
        run,
        tuple(plans[source.name].tokens for source in runs.sources),
        tuple(round(plans[source.name].epochs, 6) for source in runs.sources),
        # A row has no loss of a source that was not read since the row before it.
        tuple(columns.train.last(LOSS_OF + name) for name in config.sources),
        tuple(_loss(evaluated, leaf.key, folder) for leaf in runs.leaves),
    )


def _loss(row: Mapping[str, Any], key: str, folder: RunFolder) -> float:
    found = number(row.get(f"{EVAL_LOSS}/{key}"))
    if found is None:
        raise RunFolderError(
            f"{folder}: has no loss of the held-out set {key!r} at its end; remove "
            "this folder, and repeat the sweep to train the run again"
        )
    return found


def forewarnings(config: SweepConfig, runs: SweepRuns) -> Iterator[str]:
    """Yield what these blends cannot show, whatever their runs measure."""
    shares, phases = _shares(runs.runs)
    needed = least_blends(shares)
    if len(runs.runs) < needed:
        yield (
            f"no blend will be recommended: {_too_few(needed, len(runs.runs))}; the "
            "runs of this call will count then too"
        )
    if phases == 1 and not _is_one_blend(config.base.schedule):
        yield (
            f"the phases of {config.base.file} have different weights, and each blend "
            "here replaces all of them; to try a blend for each phase, write [drawn] "
            "with each_phase = true, or [[blends]] with a list of weights"
        )


def _is_one_blend(schedule: Schedule) -> bool:
    alone = {schedule.primary: 1}
    blends = [
        phase.integer_weights if phase.weights else alone for phase in schedule.phases
    ]
    return all(blend == blends[0] for blend in blends)


def _too_few(needed: int, found: int) -> str:
    return (
        f"a law needs {needed} blends here, and there are {found}; give more, such as "
        f"[drawn] with number = {3 * needed}"
    )


def concluded(config: SweepConfig, table: Table) -> Sweep:
    """Fit the laws, and take the best one that may recommend a blend."""
    num_runs = len(table.runs.runs)
    shares, phases = _shares([row.run for row in table.rows])
    notes = [*_ran_out(table), *_without_train_loss(table)]
    needed = least_blends(shares)
    if len(table.rows) < needed:
        why = _too_few(needed, len(table.rows))
        notes.append(f"no blend is recommended: {why}")
        return Sweep(config, table, num_runs, (), None, tuple(notes))
    target = np.array(table.runs.target)
    fits: list[Fit] = []
    for name, law in LAWS.items():
        try:
            fits.append(fit_law(name, law, shares, table.losses, target))
        except ModuleNotFoundError as error:
            notes.append(f"a law is left out: {error}")
    fits.sort(key=lambda fit: (-fit.rank, fit.error))
    best = fits[0]
    if best.rank < config.least_rank:
        notes.append(
            f"no blend is recommended: the best law orders unseen blends with a rank "
            f"correlation of {best.rank:.2f}, and least_rank is {config.least_rank:g} "
            "(at 0.7, three pairs of four are in order, and at 0 every second); try "
            "more blends, a wider range or a larger scale"
        )
        return Sweep(config, table, num_runs, tuple(fits), None, tuple(notes))
    found = _recommended(best, table, shares, phases)
    return Sweep(config, table, num_runs, tuple(fits), found, tuple(notes))


def write(path: Path, text: str) -> None:
    """Write a file of a sweep, whole or not at all."""
    with published(path) as file:
        file.write(text.encode())


def _inline(shares: dict[str, float]) -> str:
    pairs = (f"{json.dumps(name)} = {share:.4g}" for name, share in shares.items())
    return f"{{ {', '.join(pairs)} }}"


def _shares(runs: Sequence[SweepRun]) -> tuple[npt.NDArray[np.float64], int]:
    """Return a row of shares for each run, and the phases whose blends differ.

    If every run has one blend for all phases, this is one phase.
    """
    blends = np.array([run.blend for run in runs])
    if not len(blends):
        return np.empty((0, 0)), 1
    is_same = (blends == blends[:, :1]).all()
    kept = blends[:, :1] if is_same else blends
    return kept.reshape(len(blends), -1), kept.shape[1]


def _recommended(
    fit: Fit, table: Table, shares: npt.NDArray[np.float64], phases: int
) -> Recommendation:
    target = np.array(table.runs.target)
    starts = shares[np.argsort(table.target, kind="stable")[:_STARTS]]
    found = best_blend(lambda x: fit.predict(x) @ target, shares, starts, phases)
    predicted = fit.predict(found[None])[0]
    names = [source.name for source in table.runs.sources]
    blend = found.reshape(phases, -1).tolist()
    of_all = len(table.rows[0].run.blend)
    rows = blend if len(blend) == of_all else blend * of_all
    return Recommendation(
        fit.name,
        tuple(dict(zip(names, row, strict=True)) for row in rows),
        table.by_set(predicted.tolist()),
        float(predicted @ target),
        fit.error,
        tuple(_borders(found, shares, names * phases)),
    )


def _borders(
    found: npt.NDArray[np.float64],
    shares: npt.NDArray[np.float64],
    names: Sequence[str],
) -> Iterable[str]:
    """Yield a sentence for each share at the border of what was tried."""
    near = 0.01
    bounds = zip(names, found, shares.min(0), shares.max(0), strict=True)
    for name, share, low, high in bounds:
        if low == high or low + near < share < high - near:
            continue
        if share <= near or share >= 1 - near:
            continue  # There is nothing beyond.
        change = "less" if share <= low + near else "more"
        yield (
            f"{name} {share:.4g} is at the border of what was tried ({low:.4g} to "
            f"{high:.4g}), so the best may have {change} of it; try blends beyond"
        )


def _ran_out(table: Table) -> Iterable[str]:
    """Yield a sentence for each source that ran out and so had a smaller share."""
    for source in table.runs.sources:
        spent = [
            row.run.key
            for row in table.rows
            for phase in row.run.plan.phases
            for each in phase.sources
            if each.name == source.name and each.exhausted_step is not None
        ]
        if spent:
            yield (
                f"source {source.name!r} runs out in {len(set(spent))} runs, such as "
                f"{spent[0]}, so its share was less than its weight there; give it "
                'policy = "repeat", or read its weight with care'
            )


def _without_train_loss(table: Table) -> Iterable[str]:
    """Yield a sentence if no run has logged a training loss of a source."""
    losses = [loss for row in table.rows for loss in row.train_losses]
    if losses and all(loss is None for loss in losses):
        yield (
            "train_loss is empty in the table, because the loss function of the model "
            'does not return "row_loss", which tells the sources apart; the laws need '
            "only held-out losses"
        )


def page(sweep: Sweep) -> str:
    """Return the page as HTML: one file, which needs no network."""
    title = f"Sweep {sweep.config.file.stem}"
    drawn = Drawn(scatters=[*_scatters(sweep)])
    parts = [
        f"<header><h1>{in_html(title)}</h1></header>",
        *(f"<p>{in_html(line)}</p>" for line in str(sweep).splitlines()),
        drawn.html,
        _sources(sweep),
        _runs(sweep),
    ]
    return document(title, parts, drawn)


def _scatters(sweep: Sweep) -> Iterator[Scatter]:
    """Yield the first charts: which sources lower the loss, and what laws predict."""
    table = sweep.table
    target = table.target.tolist()
    rows = zip(table.rows, target, strict=True)
    texts = [f"{sweep.shown(row.run)}: {loss:.4f}" for row, loss in rows]
    if target:
        yield Scatter(
            "shares",
            "Loss of each run, over the share of each source",
            ("share of the tokens", "target"),
            [
                Cloud(
                    source.name,
                    [row.tokens[index] / sum(row.tokens) for row in table.rows],
                    target,
                    texts,
                    index,
                )
                for index, source in enumerate(table.runs.sources)
            ],
            is_share=True,
        )
    if sweep.fits:
        yield Scatter(
            "laws",
            "Predicted and measured loss of unseen blends",
            ("measured target", "predicted target"),
            [
                Cloud(
                    fit.name,
                    target,
                    fit.unseen,
                    [
                        f"{text}, predicted {loss:.4f}"
                        for text, loss in zip(texts, fit.unseen, strict=True)
                    ],
                    index,
                )
                for index, fit in enumerate(sweep.fits)
            ],
            has_diagonal=True,
        )


def _sources(sweep: Sweep) -> str:
    rows = sweep.table.rows
    head = ("source", "fingerprint", "tokens", "least share", "most", "most epochs")
    cells: list[tuple[str, ...]] = []
    for index, source in enumerate(sweep.table.runs.sources):
        shares = [phase[index] for row in rows for phase in row.run.blend] or [0.0]
        epochs = max((row.epochs[index] for row in rows), default=0.0)
        cells.append(
            (
                source.name,
                source.fingerprint,
                f"{source.num_tokens:,}",
                f"{min(shares):.4g}",
                f"{max(shares):.4g}",
                f"{epochs:.3g}",
            )
        )
    return html_table("Sources", head, cells, left={0, 1})


def _runs(sweep: Sweep) -> str:
    rows = sweep.table
    leaves = rows.runs.leaves
    order = sorted(
        zip(rows.target.tolist(), rows.rows, strict=True), key=lambda each: each[0]
    )
    return html_table(
        "Runs, the best first",
        ("run", "blend", "target", *(leaf.label for leaf in leaves)),
        [
            (
                row.run.key,
                sweep.shown(row.run),
                f"{target:.4f}",
                *(f"{loss:.4f}" for loss in row.losses),
            )
            for target, row in order
        ],
        left={0, 1},
        note="Each is an ordinary run in the folder runs/: "
        "<code>roxxel report</code> draws it.",
        kind="runs",
    )
