"""Runs that are stopped in any way end with the result of a run that never was.

The cases cover every pair of circumstances; `ROXXEL_DRILL=60` makes 60 cases. Starting
a program takes much longer than a run, so one program makes many runs in turn: runs
that are not stopped, runs whose data fails, and at last a run that ends the program.
Other programs then resume the stopped runs.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, cycle, product
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
from roxxel_curriculum.digest import add_step, batch_digest, digest_text

from .conftest import PROGRAMS, REAL_DEVICES, environment
from .drill_cases import FACTORS, PLACES, Case, cases, cover
from .programs import drill
from .runs import all_said, free_port, rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

WANTED = int(os.environ.get("ROXXEL_DRILL", "0"))

CASES = cases(WANTED, drill.STEPS)

# Of the rows of a step of training, what the order of the data alone decides.
DATA_FIELDS = (
    *("step", "phase", "data_low", "data_high", "digest"),
    *("tokens", "tokens_by_source", "rows_by_source"),
)

_EXACT = (
    *("tokens_by_source", "planned_tokens_by_source", "rows_by_source"),
    "digest",
)

TIMEOUT_S = 600.0

# Small batches that a stream makes ahead of the step that is due.
AHEAD = 16


@dataclass(frozen=True)
class Ended:
    """A program that ran: how each of its processes ended and what it said."""

    codes: tuple[int, ...]
    said: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run's folder."""

    folder: Path

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What was logged, but the times."""
        return rows(self.folder)

    def rows_until(self, step: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["step"] <= step]

    @property
    def data(self) -> list[dict[str, Any]]:
        trained = [row for row in self.rows if row["kind"] == "train"]
        return [{name: row[name] for name in DATA_FIELDS} for row in trained]

    @property
    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Parameters, optimizer and random numbers at the end."""
        with np.load(self.folder / "final.npz") as final:
            return [final[name] for name in final.files]

    @property
    def resumed(self) -> list[int]:
        """Steps from which it went on."""
        log = (self.folder / "system.log").read_text()
        return [int(step) for step in re.findall(r"resumed from step (\d+)", log)]


class Drill:
    """All programs of the drill and the folders of their runs."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.began: dict[Case, Ended] = {}
        self.went_on: dict[str, Ended] = {}
        self._environments = {
            place: environment(devices, cache) for place, (_, devices) in PLACES.items()
        }

    def run(self) -> None:
        """Make all runs, two programs at a time where they share no real device."""
        drill.write(self.data)
        with ThreadPoolExecutor(1 if REAL_DEVICES else 2) as pool:
            began = [
                (of_cases, pool.submit(self._program, where, arguments))
                for where in PLACES
                for of_cases, arguments in self._beginnings(where)
            ]
            for of_cases, program in began:
                self.began |= dict.fromkeys(of_cases, program.result())
            went_on = {
                then: pool.submit(self._program, then, arguments)
                for then in PLACES
                if (arguments := [self._argument(c) for c in CASES if c.then == then])
            }
            for then, program in went_on.items():
                self.went_on[then] = program.result()

    def of(self, case: Case) -> Run:
        """Return the run of a case."""
        return Run(self.folder / f"case-{CASES.index(case)}")

    def unbroken(self, where: str, parts: tuple[str, ...]) -> Run:
        """Return the run that nobody stopped."""
        return Run(self.folder / "-".join((where.replace(" ", "-"), *parts)))

    def _beginnings(self, where: str) -> list[tuple[list[Case], list[str]]]:
        """Return cases and arguments of programs, each with one last run at most."""
        here = [case for case in CASES if case.where == where]
        last = [case for case in here if case.ends_the_program]
        programs: list[tuple[list[Case], list[str]]] = [
            ([case], [self._argument(case, accident=True)]) for case in last
        ]
        others: list[tuple[list[Case], str]] = [
            ([], f"{self.unbroken(where, parts).folder}={','.join(parts)}")
            for parts in dict.fromkeys(case.parts for case in here)
        ]
        others += [
            ([case], self._argument(case, accident=True))
            for case in here
            if not case.ends_the_program
        ]
        programs = programs or [([], [])]
        for (of_case, argument), program in zip(others, cycle(programs), strict=False):
            program[0].extend(of_case)
            program[1].insert(0, argument)
        return programs

    def _argument(self, case: Case, *, accident: bool = False) -> str:
        what = f"{case.accident}@{case.step}.{case.row}"
        parts = (*case.parts, what) if accident else case.parts
        return f"{self.of(case).folder}={','.join(parts)}"

    def _program(self, place: str, arguments: list[str]) -> Ended:
        num_processes, _ = PLACES[place]
        command = [sys.executable, "-W", "error", str(PROGRAMS / "drill.py")]
        command += [str(self.data), *arguments]
        port = free_port()
        processes = [
            forked.Popen(
                command
                if num_processes == 1
                else [*command, "--process", str(index), str(num_processes), str(port)],
                env=self._environments[place],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(num_processes)
        ]
        said = [err for _, err in all_said(processes, TIMEOUT_S)]
        return Ended(tuple(process.returncode for process in processes), tuple(said))


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory, compilation_cache: Path) -> Drill:
    made = Drill(tmp_path_factory.mktemp("drill"), compilation_cache)
    made.run()
    return made


def expected_data(data: Path, parts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the data fields of all rows, worked out without JAX."""
    sampler = drill.curriculum_of(data, set(parts)).sampler(drill.SEED)
    cuts = 2 if "accumulation" in parts else 1
    found: list[dict[str, Any]] = []
    digest = 0
    counted: Counter[str] = Counter(dict.fromkeys(sampler.source_names, 0))
    for step in range(sampler.total_steps):
        batch = sampler.batch(step)
        digest = add_step(digest, step, batch_digest(batch))
        sources = sampler.windows(step).source.tolist()
        counted.update(sampler.source_names[source] for source in sources)
        # The trainer gives the mean over parts, whatever rows a part holds.
        sums = drill.checksum(batch, np)
        by_source = sampler.delivered_tokens(step + 1)
        found.append(
            {
                "step": step + 1,
                "phase": sampler.phase(step),
                **{name: float(half) / cuts for name, half in sums.items()},
                "tokens": sum(by_source.values()),
                "tokens_by_source": by_source,
                "rows_by_source": dict(counted),
                "digest": digest_text(digest),
            }
        )
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_program_ends_as_it_should(drilled: Drill, case: Case) -> None:
    ended = drilled.began[case]

    num_processes = PLACES[case.where][0]
    if case.accident == "SIGKILL":
        # Processes that are left are ended by JAX, when it misses the one that died.
        assert -signal.SIGKILL in ended.codes, ended.said
        assert 0 not in ended.codes
    elif case.accident == "SIGTERM":
        assert ended.codes == (75,) * num_processes, ended.said
    else:
        assert any("the disk cannot read token" in said for said in ended.said)
        assert num_processes == 1 or 0 not in ended.codes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_data_is_the_same_whatever_happens(drilled: Drill, case: Case) -> None:
    ended = drilled.went_on[case.then]
    assert set(ended.codes) == {0}, ended.said

    assert drilled.of(case).data == expected_data(drilled.data, case.parts)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_lost_that_could_be_saved(drilled: Drill, case: Case) -> None:
    resumed = sum(drilled.of(case).resumed)  # at most once

    alone = PLACES[case.where][0] == 1
    if case.accident == "SIGTERM":
        # The batch that was being read may be sixteen ahead of the one that is due;
        # several processes agree to train on for a while.
        assert resumed >= case.step - AHEAD
        assert resumed <= case.step + 1 or not alone
    elif case.accident == "OSError" and alone:
        assert resumed == case.step
    else:
        # A checkpoint every 5 steps; each settles the one before.
        assert case.step - AHEAD - 9 <= resumed <= case.step
        assert resumed % 5 == 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_before_the_accident_stay(drilled: Drill, case: Case) -> None:
    run, unbroken = drilled.of(case), drilled.unbroken(case.where, case.parts)
    resumed = sum(run.resumed)

    assert run.rows_until(resumed) == unbroken.rows_until(resumed)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.then == case.where], ids=str
)
def test_goes_on_bit_identically_in_the_same_place(drilled: Drill, case: Case) -> None:
    run, unbroken = drilled.of(case), drilled.unbroken(case.where, case.parts)

    assert run.rows == unbroken.rows
    for one, two in zip(run.arrays, unbroken.arrays, strict=True):
        assert one.dtype == two.dtype
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.then != case.where], ids=str
)
def test_goes_on_alike_elsewhere(drilled: Drill, case: Case) -> None:
    run, unbroken = drilled.of(case), drilled.unbroken(case.where, case.parts)

    for row, other in zip(run.rows, unbroken.rows, strict=True):
        assert row.pop("kind") == other["kind"]
        for name in _EXACT:
            assert row.pop(name, None) == other.get(name)
        # Sums over devices may be made in another order.
        assert row == pytest.approx({name: other[name] for name in row}, rel=1e-3)


def test_checksum_sees_one_token_and_its_place() -> None:
    tokens = np.random.default_rng(5).integers(0, 97, (16, 33))
    changed, swapped, moved = tokens.copy(), tokens.copy(), tokens.copy()
    changed[3, 4] += 1
    swapped[0, [1, 2]] = swapped[0, [2, 1]]
    moved[[0, 1], 5] = moved[[1, 0], 5]

    arrays = (tokens, changed, swapped, moved)
    sums = [tuple(drill.checksum(x, np).values()) for x in arrays]

    assert len(set(sums)) == 4


@pytest.mark.parametrize("seed", range(5))
def test_any_two_circumstances_meet(seed: int) -> None:
    choices = cover(FACTORS, random.Random(seed))

    for (one, ones), (two, twos) in combinations(FACTORS.items(), 2):
        met = {(choice[one], choice[two]) for choice in choices}
        assert met == set(product(ones, twos))
    assert len(choices) <= 13


@pytest.mark.parametrize("seed", range(5))
def test_every_case_has_a_name_of_its_own(seed: int) -> None:
    names = [str(case) for case in cases(300, drill.STEPS, seed)]

    assert len(set(names)) == len(names) >= 300
