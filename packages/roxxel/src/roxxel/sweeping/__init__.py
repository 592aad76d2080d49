"""Which blend? Small runs of many blends, and a law that names the best.

`sweep` trains a proxy for each blend that a file declares, tables what they measured by
the fingerprints of the sources, and fits laws from a blend to its held-out losses. A
law that orders unseen blends well enough recommends the best blend inside the range
that was tried. Any other law recommends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_ckpt.coordination import process_index
from roxxel_store.files import replace_file
from roxxel_store.urls import expanded
from roxxel_train.distributed import barrier

from roxxel.config import (
    ConfigError,
    config_text,
    load_config,
    make_trainer,
    sweep_from,
    sweep_table,
)
from roxxel.sweeping._result import (
    PAGE,
    TABLE,
    Recommendation,
    Row,
    Sweep,
    Table,
    concluded,
    forewarnings,
    page,
    read_table,
    write,
)
from roxxel.sweeping._runs import (
    SweepRun,
    SweepRuns,
    check_unchanged,
    of_earlier_files,
    runs_of,
)
from roxxel.sweeping.laws import Fit, fit_law

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from roxxel.config import SweepConfig

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
    to_train = [run for run in chosen if not run.is_finished]
    say(f"{len(chosen)} runs, of which {len(chosen) - len(to_train)} are finished")
    # One note for each source: its figures differ from blend to blend.
    notes = {note.partition(":")[0]: note for run in chosen for note in run.notes}
    earlier = of_earlier_files(config, runs)
    for note in (*forewarnings(config, runs), *notes.values(), *earlier):
        say(f"note: {note}")
    barrier("sweep: every process has read what was there")
    # A begun run keeps the file with which it began.
    new = [run.config for run in to_train if not run.has_begun]
    if process_index() == 0:
        (config.folder / "runs").mkdir(parents=True, exist_ok=True)
        for each in new:
            replace_file(each.file, config_text(each).encode())
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


def load_sweep(path: str | os.PathLike[str]) -> SweepConfig:
    """Read the file of a sweep.

    For example::

        config = "run.toml"         # the run whose blend you want
        scale = 0.0625              # of each proxy; or tokens = 2_000_000
        save_path = "sweep"         # default: the name of this file without .toml

        [drawn]                     # around the natural shares
        number = 24
        concentration = 10

        [[blends]]                  # given; one table for all phases, or a list
        weights = { web = 0.7, code = 0.3 }

        [target]                    # what counts; default: all held-out sets alike
        code = 1

    Raises:
        ConfigError: The file or its base config is missing or wrong; the message names
            the file and the key.
        OSError: A file cannot be read.
    """
    file = expanded(path)
    try:
        found = sweep_table(file.read_text(encoding="utf-8-sig"))
        base = load_config(file.parent / found.config)
        return sweep_from(found, file, base)
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file; give the file of a sweep") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not text in UTF-8 ({error.reason})") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
