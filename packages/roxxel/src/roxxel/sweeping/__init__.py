"""Which blend? Small runs of many blends, and a law that names the best.

`sweep` trains a proxy for each blend that a file declares, tables what they measured
by the fingerprints of the sources, and fits laws from a blend to its held-out losses.
A law that orders unseen blends well enough recommends the best one, inside the range
that was tried. A law that does not recommends nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_ckpt.coordination import process_index
from roxxel_store import published
from roxxel_train.distributed import barrier

from roxxel.config import ConfigError, changed_text, load_config
from roxxel.sweeping._file import load_sweep
from roxxel.sweeping._result import PAGE, TABLE, Recommendation, Sweep, concluded, page
from roxxel.sweeping._runs import SweepRun, SweepRuns, begun, runs_of
from roxxel.sweeping._table import Row, Table, is_finished, read_table
from roxxel.sweeping.laws import Fit, fit_law
from roxxel.trained import train, write_configs

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = [
    "Fit",
    "Recommendation",
    "Row",
    "Sweep",
    "SweepRun",
    "SweepRuns",
    "Table",
    "fit_law",
    "load_sweep",
    "runs_of",
    "sweep",
]


def sweep(
    path: str | os.PathLike[str],
    *,
    part: tuple[int, int] | None = None,
    write: str | os.PathLike[str] | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Sweep:
    """Train the proxies that a file declares, and say which blend is the best.

    Finished runs are not trained again, and a killed call continues when it is
    repeated. With several processes, all of them make the same call.

    Args:
        path: The file; `load_sweep` reads it.
        part: Part i of n, from 0, trains every n-th run alone, and leaves the table to
            a later call without `part`. Parts may run at once, on machines that share
            the folder.
        write: File for the config of the big run with the recommended blend, and with
            the predicted losses as comments. It must not exist, or hold just this.
        say: Called with a line before each run.

    Raises:
        ConfigError: The file or its base config is wrong, or a blend cannot be trained.
        OSError, ShardError: A corpus cannot be opened.
        RunFolderError: Another process trains one of the runs.
        Preempted: A signal stopped a run, whose state is saved.

    Example:
        >>> try:
        ...     sweep("nowhere.toml")
        ... except ConfigError as error:
        ...     print(error)
        nowhere.toml: no such file; give the file of a sweep
    """
    config = load_sweep(path)
    if write is not None and part is not None:
        raise ConfigError(
            f"{config.file}: part {part[0]} of {part[1]} does not see all runs; write "
            "the config when all parts are trained"
        )
    runs = runs_of(config)
    chosen = runs.runs if part is None else runs.runs[part[0] :: part[1]]
    to_train = [run for run in chosen if not is_finished(run)]
    say(f"{len(chosen)} runs, of which {len(chosen) - len(to_train)} are finished")
    # Of a source that cannot match, the figures differ from blend to blend.
    notes = {note.partition(":")[0]: note for run in chosen for note in run.notes}
    for note in notes.values():
        say(f"note: {note}")
    barrier("sweep: every process has read what was there")
    new = [run.config for run in to_train if begun(run.config) is run.config]
    if process_index() == 0:
        (config.folder / "runs").mkdir(parents=True, exist_ok=True)
        write_configs(new)
    barrier("sweep: the runs can begin")
    for number, run in enumerate(to_train, 1):
        say(f"run {number} of {len(to_train)}: {run.key}")
        train(load_config(run.config.file))
    table = read_table(runs)
    if part is not None:
        return Sweep(config, table, len(runs.runs), (), None, ())
    result = concluded(config, table)
    if process_index() == 0:
        _write(config.folder / TABLE, table.csv())
        _write(config.folder / PAGE, page(result))
        if write is not None:
            _write_config(result, Path(write))
    barrier("sweep: the table is written")
    return result


def _write_config(found: Sweep, file: Path) -> None:
    """Write the config of the big run with the recommended blend.

    Raises:
        ConfigError: Nothing is recommended, or the file holds something else.
    """
    config, best = found.config, found.recommendation
    if best is None:
        raise ConfigError(f"{config.file}: {found.notes[-1]}; {file} was not written")
    fit = found.fits[0]
    comments = [
        f"The blend is that of {config.file.name}, by the {fit}.",
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
        raise ConfigError(f"{file}: exists and holds something else; give another name")
    _write(file, text)


def _inline(shares: dict[str, float]) -> str:
    pairs = (f"{json.dumps(name)} = {share:.4g}" for name, share in shares.items())
    return f"{{ {', '.join(pairs)} }}"


def _write(path: Path, text: str) -> None:
    with published(path) as file:
        file.write(text.encode())
