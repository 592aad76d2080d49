"""The measurements of a sweep's runs, as rows and as a CSV file."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.records import number
from roxxel_train import RunFolder, RunFolderError

from roxxel.runs.trained import is_complete
from roxxel.sweeping._runs import begun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from roxxel.sweeping._runs import SweepRun, SweepRuns


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
                *(f"eval_loss/{name}" for name in sets),
                *(f"eval_loss/{leaf.label}" for leaf in of_sources),
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


def is_finished(run: SweepRun) -> bool:
    """Return whether a run has trained its last step, and measured its losses there."""
    return is_complete(run.config, run.plan.total_steps)


def read_table(runs: SweepRuns) -> Table:
    """Read the measurements of a sweep's finished runs.

    Raises:
        RunFolderError: A finished run has no evaluation.
    """
    finished = [run for run in runs.runs if is_finished(run)]
    return Table(runs, tuple(_row(run, runs) for run in finished))


def _row(run: SweepRun, runs: SweepRuns) -> Row:
    folder = RunFolder(str(run.config.run_folder))
    columns = folder.columns
    evaluated = columns.newest.get("eval", {})
    # Every config lists its sources by fingerprint, whatever their names were then.
    config = begun(run.config)
    plans = {each.name: each for each in run.plan.sources}
    return Row(
        run,
        tuple(plans[source.name].tokens for source in runs.sources),
        tuple(round(plans[source.name].epochs, 6) for source in runs.sources),
        # A row has no loss of a source that was not read since the row before it.
        tuple(columns.train.last(f"loss/{name}") for name in config.sources),
        tuple(_loss(evaluated, leaf.key, folder) for leaf in runs.leaves),
    )


def _loss(row: Mapping[str, Any], key: str, folder: RunFolder) -> float:
    found = number(row.get(f"eval_loss/{key}"))
    if found is None:
        raise RunFolderError(
            f"{folder}: has no loss of the held-out set {key!r} at its end; remove "
            "this folder, and repeat the sweep to train the run again"
        )
    return found
