"""A run whose folder is in a bucket: logs, kills, other machines and the report."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import forked
import numpy as np
import pytest
from roxxel import Roxxel, data_state, diff, open_run
from roxxel_ckpt import Checkpointer
from roxxel_store.client import Bucket
from roxxel_store.swap import Writer
from roxxel_train import RunFolder, RunFolderError, RunMismatchError

from .buckets import running_bucket, set_faults
from .conftest import SEVERAL_PROCESSES, environment
from .runs import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.long

CONFIG = """\
model = "tiny:make"
save_path = "{save_path}"
sources = {{ self = "web.rox" }}
seed = 7

[[phases]]
steps = 40
batch_size = 4
seq_len = 33

[trainer]
checkpoint_every = 5
log_every = 1
"""

# With `gate`, a program stands after eight steps until this file exists.
MODEL = """
import itertools
import time
from pathlib import Path

import jax
import optax
from flax import nnx


def make(vocab_size=90, gate=""):
    model = nnx.Sequential(
        nnx.Embed(vocab_size, 16, rngs=nnx.Rngs(0)),
        nnx.Linear(16, vocab_size, rngs=nnx.Rngs(1)),
    )

    steps = itertools.count(1)

    def stand():
        stands = gate and next(steps) > 8
        while stands and not Path(gate).exists():
            time.sleep(0.01)

    def loss_fn(model, batch):
        logits = model(batch[:, :-1])
        jax.debug.callback(stand)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, batch[:, 1:]
        )
        return {"loss": losses.mean()}

    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), loss_fn
"""


PAIR = """
import sys

from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel_train.distributed import initialize
from tiny import make

if __name__ == "__main__":
    initialize()
    curriculum = Curriculum(Roxxel("web.rox"), [Phase(int(sys.argv[2]), 4, 33)])
    model, optimizer, loss_fn = make()
    Trainer(
        model, optimizer, curriculum, loss_fn, sys.argv[1],
        checkpoint_every=5, log_every=1, seed=7, timeout=600,
    ).run()
"""


class Runs:
    """Runs of one config, on machines that share nothing but a bucket."""

    def __init__(self, port: int, folder: Path, cache: Path) -> None:
        self.port, self.folder = port, folder
        self._environment = environment(1, cache)
        chosen = np.random.default_rng(0)
        corpus = Roxxel(folder / "web.rox")
        documents = [chosen.integers(1, 90, 200, dtype=np.uint16) for _ in range(40)]
        corpus.write(documents, separator=0, vocab_size=90)
        (folder / "tiny.py").write_text(MODEL)

    def on(self, machine: str) -> Mapping[str, str]:
        """Return the environment of a machine, with a cache of its own."""
        own = {"XDG_CACHE_HOME": str(self.folder / machine)}
        return {**self._environment, **own, "NO_COLOR": "1"}

    def config(self, name: str, save_path: str, extra: str = "") -> str:
        text = CONFIG.format(save_path=save_path) + extra
        (self.folder / f"{name}.toml").write_text(text)
        return f"{name}.toml"

    @contextlib.contextmanager
    def start(self, config: str, machine: str) -> Generator[subprocess.Popen[str]]:
        """Start a run, which ends with the block."""
        with forked.Popen(
            [sys.executable, "-m", "roxxel", "train", config],
            cwd=self.folder,
            env=self.on(machine),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            try:
                yield program
            finally:
                program.kill()

    def train(self, config: str, machine: str) -> str:
        with self.start(config, machine) as program:
            output, errors = program.communicate(timeout=600)
        assert program.returncode == 0, errors
        return output

    def local(self, machine: str, name: str) -> Path:
        return self.folder / machine / "roxxel/runs/s3" / f"data%2F{name}"


def losses(folder: Path) -> list[tuple[int, float]]:
    rows, _ = RunFolder(folder).rows()
    return [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, compilation_cache: Path
) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    with running_bucket(folder / "bucket") as port:
        yield Runs(port, folder, compilation_cache)


@pytest.fixture
def fetched(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a machine of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(runs.folder / "reader"))


@pytest.mark.usefixtures("fetched")
def test_a_run_in_a_bucket_equals_one_on_a_disk(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_faults(runs.port, rate=0.05, kinds=["503", "cut", "reset"])
    url = "s3://data/whole"
    said = runs.train(runs.config("bucket", url), "a")
    runs.train(runs.config("disk", "runs/whole"), "a")
    set_faults(runs.port)

    assert f"In {url}:" in said
    folder = RunFolder(url).path
    assert losses(folder) == losses(runs.folder / "runs/whole")
    found = diff(url, runs.folder / "runs/whole")
    assert found.is_equal
    assert (found.differences, found.aside, found.not_compared) == ((), (), ())
    log = (folder / "system.log").read_text()
    assert f"writes to {runs.local('a', 'whole')} and uploads to {url}" in log
    assert "complete" in log.splitlines()[-1]
    assert (folder / "config.toml").is_file()
    assert data_state(url)["step"] == 40
    assert "already complete" in runs.train("bucket.toml", "b")

    from roxxel.cli import main

    monkeypatch.chdir(runs.folder)
    assert main(["report", url]) == 0
    assert f"{url}: complete, 40 of 40 steps, loss" in capsys.readouterr().out
    assert (runs.folder / "report.html").stat().st_size > 1000
    assert main(["report", "s3://data/nothing"]) == 1
    assert "holds no run" in capsys.readouterr().err
    listed = manifest(runs, "whole")
    lists = [entry["files"] for entry in listed["steps"]] + [listed["files"]]
    pieces = {
        piece for files in lists for several in files.values() for piece, *_ in several
    }
    there = runs.folder / "bucket/data/whole/checkpoints/files"
    assert {f"files/{path.name}" for path in there.iterdir()} == pieces


@pytest.mark.usefixtures("fetched")
def test_a_run_and_its_corpus_are_read_from_a_bucket(runs: Runs) -> None:
    url = "s3://data/opened"
    Roxxel("s3://data/corpus_*.rox").write(
        Roxxel(runs.folder / "web.rox").documents, separator=0, vocab_size=90
    )
    config = runs.folder / runs.config("opened", url)
    config.write_text(config.read_text().replace("web.rox", "s3://data/corpus_*.rox"))
    runs.train(config.name, "a")
    runs.train(runs.config("beside", "runs/beside"), "a")
    beside = open_run(runs.folder / "runs/beside")

    run = open_run(url)

    assert str(run.path) == url
    assert run.trained_steps == 40
    losses_here = [row["loss"] for row in run.metrics if row["kind"] == "train"]
    assert losses_here == [loss for _, loss in losses(runs.folder / "runs/beside")]
    assert [each.step for each in run.checkpoints][-1] == 40
    assert run.config is not None
    assert run.config.save_path == url
    assert run.corpora()["self"].num_tokens == beside.corpora()["self"].num_tokens
    for step in (0, 17, 39):
        assert np.array_equal(run.sampler().batch(step), beside.sampler().batch(step))
    assert list(run.sampler().where("self", 0, 9)) == list(
        beside.sampler().where("self", 0, 9)
    )
    found = diff(run, beside)
    assert found.is_equal
    assert [each.what for each in found.aside] == ["sources.self"]
    embedding = run.model().layers[0].embedding[...]
    assert np.array_equal(embedding, beside.model().layers[0].embedding[...])
    with pytest.raises(RunFolderError, match="holds no run"):
        open_run("s3://data/nothing")


def test_a_damaged_file_of_a_run_is_named(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(runs.folder / "damaged"))
    url = "s3://data/damaged"
    runs.train(runs.config("damaged", url), "a")
    for path in (runs.folder / "bucket/data/damaged/checkpoints/files").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    with pytest.raises(RunMismatchError, match=f"{url}/.*: is damaged, so .* cannot"):
        RunFolder(url)


@pytest.mark.usefixtures("fetched")
def test_a_run_branches_from_a_run_in_a_bucket(runs: Runs) -> None:
    url = "s3://data/parent"
    runs.train(runs.config("parent", url), "a")
    before = objects(runs, "parent")
    expected = [row for row in losses(runs.local("a", "parent")) if row[0] > 35]

    for name, given, to in (
        ("first", f"{url}@35", "s3://data/first"),
        ("second", f"{url}/checkpoints@35", "runs/second"),
        ("third", f"{url}/checkpoints/35", "runs/third"),
    ):
        extra = f'branch_from = "{given}"\n'
        runs.train(runs.config(name, to, extra), "b")
        run = open_run(to if "://" in to else runs.folder / to)
        assert losses(run.files.path) == expected
        assert str(run.parent) == f"step 35 of {url}"
        assert run.parent is not None
        assert run.parent.run_id is not None
    assert objects(runs, "parent") == before


@SEVERAL_PROCESSES
@pytest.mark.usefixtures("fetched")
def test_processes_of_a_run_share_nothing_but_the_bucket(runs: Runs) -> None:
    (runs.folder / "pair.py").write_text(PAIR)
    url = "s3://data/pair"
    for machines, steps in (("pq", 10), ("rp", 20)):
        address = f"127.0.0.1:{free_port()}"
        programs = [
            forked.Popen(
                [sys.executable, "pair.py", url, str(steps)],
                cwd=runs.folder,
                env={
                    **runs.on(machine),
                    "JAX_NUM_PROCESSES": "2",
                    "JAX_COORDINATOR_ADDRESS": address,
                    "JAX_PROCESS_ID": str(index),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index, machine in enumerate(machines)
        ]
        try:
            said = [program.communicate(timeout=600) for program in programs]
        finally:
            for program in programs:
                program.kill()
        assert [program.returncode for program in programs] == [0, 0], said

    folder = RunFolder(url).path
    assert [step for step, _ in losses(folder)] == list(range(1, 21))
    assert "resumed from step 10 of 20" in (folder / "system.log").read_text()
    runs.train(runs.config("alone", "runs/alone"), "a")
    alone = losses(runs.folder / "runs/alone")[:20]
    assert np.allclose([b for _, b in losses(folder)], [b for _, b in alone], rtol=1e-5)


def manifest(runs: Runs, name: str) -> dict[str, Any]:
    """Return what the manifest of a run lists."""
    path = runs.folder / "bucket/data" / name / "checkpoints/manifest.json"
    nothing: dict[str, Any] = {"steps": [], "files": {}}
    if not path.exists():
        return nothing
    return nothing | json.loads(path.read_bytes())["listed"]


def newest_step(runs: Runs, name: str) -> int:
    names = [entry["name"] for entry in manifest(runs, name)["steps"]]
    return max((int(each.partition(".")[0]) for each in names), default=0)


def objects(runs: Runs, name: str) -> dict[Path, bytes]:
    """Return all objects of a run."""
    folder = runs.folder / "bucket/data" / name
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_for(is_so: Any) -> None:
    deadline = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Moment:
    """Calls a function before an object of a matching name is written, once."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        act: Callable[[], object],
        method: str = "create",
    ) -> None:
        self.has_come = False
        write = getattr(Bucket, method)

        def watched(bucket: Bucket, given: str, *args: Any) -> Any:
            if not self.has_come and re.fullmatch(name, bucket.url_of(given)):
                self.has_come = True
                act()
            return write(bucket, given, *args)

        monkeypatch.setattr(Bucket, method, watched)


def take_over(url: str) -> None:
    """Let another program begin in a run."""
    with mock.patch("socket.gethostname", return_value="other"):
        Writer(Bucket(f"{url}/checkpoints", 60)).begin()


def train_here(runs: Runs, config: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Train in this process, and return the exit status."""
    from roxxel.cli import main

    monkeypatch.chdir(runs.folder)
    monkeypatch.syspath_prepend(runs.folder)
    return main(["train", config])


@pytest.mark.usefixtures("fetched")
def test_every_checkpoint_lists_the_rows_of_its_steps(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://data/listed"
    assert train_here(runs, runs.config("listed", url), monkeypatch) == 0

    entries = manifest(runs, "listed")["steps"]
    assert len(entries) > 2
    for entry in entries:
        there = runs.folder / "bucket/data/listed/checkpoints"
        pieces = entry["files"]["metrics.jsonl"]
        text = b"".join((there / name).read_bytes() for name, *_ in pieces)
        rows = [json.loads(line) for line in text.splitlines()]
        trained = [row["step"] for row in rows if row["kind"] == "train"]
        step = int(entry["name"].partition(".")[0])
        # The run went on during the upload, so later rows may be there, too.
        assert trained[:step] == list(range(1, step + 1))


@pytest.mark.usefixtures("fetched")
def test_a_takeover_during_the_upload_of_a_log_ends_the_earlier_run(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "s3://data/refused"
    before: dict[Path, bytes] = {}

    def begin() -> None:
        take_over(url)
        before.update(objects(runs, "refused"))

    # Another program begins while the log of step 10 is uploaded. If the log of step 5
    # had all its rows, this is when step 10 is described.
    log_or_step = rf"{url}/checkpoints/(files/.*|10\.[^/]*json)"
    Moment(
        monkeypatch,
        rf"{url}/checkpoints/5\..*json",
        lambda: Moment(monkeypatch, log_or_step, begin),
    )

    assert train_here(runs, runs.config("refused", url), monkeypatch) == 1

    told = capsys.readouterr().err
    assert f"{url}/checkpoints: another program on other has begun to save here" in told
    assert newest_step(runs, "refused") == 5
    after = objects(runs, "refused")
    assert {path: after.get(path) for path in before} == before


@pytest.mark.usefixtures("fetched")
def test_a_log_that_is_uploaded_while_the_next_program_begins_is_kept(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://data/moment"
    folder = runs.folder / "bucket/data/moment"
    states: list[dict[Path, bytes]] = []
    for steps in (5, 10):
        config = runs.folder / runs.config("moment", url)
        text = config.read_text().replace("steps = 40", f"steps = {steps}")
        config.write_text(text)
        runs.train(config.name, "a")
        states.append(objects(runs, "moment"))
    before, after = states

    def replace(content: dict[Path, bytes]) -> None:
        shutil.rmtree(folder)
        for path, data in content.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    # The second program has begun, and commits step 10 when this one begins.
    replace(before)
    Moment(monkeypatch, ".*/manifest.json", lambda: replace(after), "replace")

    assert train_here(runs, runs.config("moment", url), monkeypatch) == 0

    rows = losses(RunFolder(url).path)
    assert [step for step, _ in rows] == list(range(1, 41))


@pytest.mark.usefixtures("fetched")
def test_a_program_that_was_overtaken_at_its_start_saves_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "s3://data/overtaken"
    Moment(monkeypatch, rf"{url}/checkpoints/files/.*", lambda: take_over(url))

    assert train_here(runs, runs.config("overtaken", url), monkeypatch) == 1

    told = capsys.readouterr().err
    assert f"{url}/checkpoints: another program on other has begun to save here" in told
    assert manifest(runs, "overtaken") == {"steps": [], "files": {}}


@pytest.mark.usefixtures("fetched")
def test_a_program_that_was_overtaken_before_its_restore_keeps_the_log_of_the_other(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has fetched the log, and then stands, perhaps because another process does."""
    url, check = "s3://data/stood", Checkpointer.check_shared
    config = runs.config("stood", url)

    def train_elsewhere(checkpointer: Checkpointer, **options: Any) -> None:
        monkeypatch.setattr(Checkpointer, "check_shared", check)
        runs.train(config, "other")
        check(checkpointer, **options)

    monkeypatch.setattr(Checkpointer, "check_shared", train_elsewhere)

    assert train_here(runs, config, monkeypatch) == 1

    told = capsys.readouterr().err
    assert "has begun to save here" in told
    rows = losses(RunFolder(url).path)
    assert [step for step, _ in rows] == list(range(1, 41))


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("deleted", ["", "metrics.jsonl"])
def test_files_deleted_on_this_machine_stay_in_the_bucket(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    deleted: str,
) -> None:
    name = f"deleted-{len(deleted)}"
    url = f"s3://data/{name}"
    local = runs.local("reader", name)

    def remove() -> None:
        if deleted:
            (local / deleted).unlink()
        else:
            shutil.rmtree(local)

    Moment(monkeypatch, rf"{url}/checkpoints/5\..*json", remove)
    config = runs.config(name, url)

    assert train_here(runs, config, monkeypatch) == 1

    told = capsys.readouterr().err
    missing = local / (deleted or "run.json")
    assert f"{missing}: was deleted while the run wrote to it" in told
    assert newest_step(runs, name) == 5
    runs.train(config, "b")
    assert [step for step, _ in losses(runs.local("b", name))] == list(range(1, 41))


@pytest.mark.usefixtures("fetched")
def test_runs_below_one_another_do_not_touch_each_other(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "outer" + "/inner" * 40  # No file may have a name of this length.
    for number, name in enumerate((long, "outer/inner", "outer")):
        config = runs.config(f"outer-{number}", f"s3://data/{name}")
        assert train_here(runs, config, monkeypatch) == 0

    for name in ("outer%2Finner", f"outer{'%2Finner' * 27}*"):
        (record,) = runs.folder.glob(f"reader/roxxel/runs/s3/data%2F{name}/run.json")
        assert record.is_file()
    names = manifest(runs, "outer")["files"]
    assert "metrics.jsonl" in names
    assert not [name for name in names if "inner" in name]


def test_a_run_that_was_deleted_and_made_again_has_its_own_rows(runs: Runs) -> None:
    url = "s3://data/again"
    config = runs.folder / runs.config("again", url)
    text = config.read_text().replace("steps = 40", "steps = 10")
    config.write_text(text)
    runs.train(config.name, "a")
    shutil.rmtree(runs.folder / "bucket/data/again")
    config.write_text(text.replace("seed = 7", "seed = 8"))
    runs.train(config.name, "b")
    config.write_text(config.read_text().replace("steps = 10", "steps = 15"))

    runs.train(config.name, "a")

    expected = losses(runs.local("b", "again"))
    assert losses(runs.local("a", "again"))[:10] == expected


@pytest.mark.usefixtures("fetched")
def test_the_later_of_two_runs_wins(runs: Runs) -> None:
    gate = runs.folder / "both-gate"
    stands = f'\n[model_args]\ngate = "{gate}"\n'
    with runs.start(runs.config("first", "s3://data/both", stands), "a") as earlier:
        wait_for(lambda: newest_step(runs, "both") >= 5)
        with runs.start(runs.config("second", "s3://data/both"), "b") as later:
            _, errors = later.communicate(timeout=600)
            assert later.returncode == 0, errors
            whole = objects(runs, "both")
        gate.touch()
        _, errors = earlier.communicate(timeout=600)
    assert earlier.returncode == 1
    reason = (
        r"s3://data/both/checkpoints: another program on \S+ has begun to save here, "
        "so this program can no longer save; give every run a folder of its own"
    )
    told = [line for line in errors.splitlines() if "another program" in line]
    assert told, errors
    assert re.search(reason, told[-1]), errors
    assert "Traceback" not in errors
    # The earlier program has neither changed nor added an object.
    assert objects(runs, "both") == whole

    folder = RunFolder("s3://data/both").path
    assert [step for step, _ in losses(folder)] == list(range(1, 41))
    assert "complete" in (folder / "system.log").read_text().splitlines()[-1]


@pytest.mark.usefixtures("fetched")
def test_a_stopped_run_uploads_its_last_lines(runs: Runs) -> None:
    gate = runs.folder / "stop-gate"
    stands = f'\n[model_args]\ngate = "{gate}"\n'
    with runs.start(runs.config("stop", "s3://data/stop", stands), "a") as program:
        wait_for(lambda: newest_step(runs, "stop") >= 5)
        program.send_signal(signal.SIGTERM)
        gate.touch()
        program.communicate(timeout=600)
    assert program.returncode == 75
    folder = RunFolder("s3://data/stop").path
    last = (folder / "system.log").read_text().splitlines()[-1]
    assert "SIGTERM ended the run after step" in last
    gate.unlink()
    with runs.start("stop.toml", "a") as program:
        log = runs.local("a", "stop") / "system.log"
        wait_for(lambda: "resumed from step" in log.read_text())
        with runs.start("stop.toml", "a") as second:
            _, errors = second.communicate(timeout=600)
        assert second.returncode == 1
        assert "another process" in errors
