"""Which blend? Small runs of many blends, and a law that names the best.

`sweep` trains a proxy for each blend that a file declares, tables what they measured by
the fingerprints of the sources, and fits laws from a blend to its held-out losses. A
law that orders unseen blends well enough recommends the best blend inside the range
that was tried. Any other law recommends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_ckpt.coordination import process_index
from roxxel_train.distributed import barrier

from roxxel.config import load_config, make_trainer
from roxxel.runs.trained import write_configs
from roxxel.sweeping._file import load_sweep
from roxxel.sweeping._result import (
    PAGE,
    TABLE,
    Recommendation,
    Sweep,
    concluded,
    forewarnings,
    page,
    write,
)
from roxxel.sweeping._runs import (
    SweepRun,
    SweepRuns,
    begun,
    check_unchanged,
    of_earlier_files,
    runs_of,
)
from roxxel.sweeping._table import Row, Table, is_finished, read_table
from roxxel.sweeping.laws import Fit, fit_law

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
    say: Callable[[str], object] = lambda _: None,
) -> Sweep:
    """Train the proxies that a file declares, and find the best blend.

    Finished runs are not trained again, and a killed call continues when it is
    repeated. With several processes, all of them make the same call.

    Args:
        path: The file; `load_sweep` reads it.
        part: `(i, n)`: train only every n-th run, from run i (from 0). A later call
            without `part` makes the table. Parts may run at once, on machines that
            share the folder.
        say: Called with a line before each run.

    Raises:
        ConfigError: The file or its base config is wrong, a blend cannot be trained, or
            data or the model's code changed during the sweep.
        OSError, ShardError: A corpus cannot be opened.
        RunFolderError: Another process trains one of the runs.
        Preempted: A signal stopped a run, whose state is saved.

    Example:
        >>> from roxxel.config import ConfigError
        >>> try:
        ...     sweep("nowhere.toml")
        ... except ConfigError as error:
        ...     print(error)
        nowhere.toml: no such file; give the file of a sweep
    """
    config = load_sweep(path)
    runs = runs_of(config)
    chosen = runs.runs if part is None else runs.runs[part[0] :: part[1]]
    to_train = [run for run in chosen if not is_finished(run)]
    say(f"{len(chosen)} runs, of which {len(chosen) - len(to_train)} are finished")
    # One note for each source: its figures differ from blend to blend.
    notes = {note.partition(":")[0]: note for run in chosen for note in run.notes}
    earlier = of_earlier_files(config, runs)
    for note in (*forewarnings(config, runs), *notes.values(), *earlier):
        say(f"note: {note}")
    barrier("sweep: every process has read what was there")
    # A begun run keeps the file with which it began.
    new = [run.config for run in to_train if begun(run.config) is run.config]
    if process_index() == 0:
        (config.folder / "runs").mkdir(parents=True, exist_ok=True)
        write_configs(new)
    barrier("sweep: the runs can begin")
    for number, run in enumerate(to_train, 1):
        say(f"run {number} of {len(to_train)}: {run.key}")
        trainer = make_trainer(load_config(run.config.file))
        check_unchanged(config, runs)
        trainer.run()
    table = read_table(runs)
    if part is not None:
        return Sweep(config, table, len(runs.runs), (), None, ())
    result = concluded(config, table)
    if process_index() == 0:
        write(config.folder / TABLE, table.csv())
        write(config.folder / PAGE, page(result))
    barrier("sweep: the table is written")
    return result
