"""Checkpoints in a bucket are saved and restored, and survive faults and kills."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import forked
import jax
import numpy as np
import pytest
from flax import nnx
from limits import soon_given_up
from roxxel_ckpt import (
    CheckpointBucketError,
    CheckpointDamagedError,
    Checkpointer,
    CheckpointNotFoundError,
    CheckpointWriteError,
)
from roxxel_ckpt._integrity import digest_files
from roxxel_ckpt._place.description import crc_of, sealed
from roxxel_ckpt.cli import main
from roxxel_store.client import Bucket
from roxxel_store.swap import Writer, writer_of

from .buckets import CREDENTIALS, running_bucket, set_faults, stats
from .conftest import SEVERAL_PROCESSES, simulated
from .runs import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("programs") / "checkpoint_bucket.py"


class Run:
    """A run's folder in a bucket, and the files that a server makes its objects."""

    def __init__(self, port: int, root: Path, name: str) -> None:
        self.port, self.root, self.name = port, root, name
        self.url = f"s3://data/{name}/checkpoints"
        self.folder = root / "data" / name / "checkpoints"

    def checkpointer(self, seed: int = 0, **options: Any) -> Checkpointer:
        options = {"timeout": 600, **options}
        return Checkpointer(self.url, state(seed), **options)

    def names(self) -> set[str]:
        """Return objects and prefixes, without the attempts in their names."""
        found = {path.name for path in self.folder.iterdir() if self.has_files(path)}
        return {re.sub(r"\.\d+-\d+-\w+", "", name) for name in found}

    def has_files(self, path: Path) -> bool:
        return path.is_file() or any(p.is_file() for p in path.rglob("*"))

    def chunk(self, step: int) -> Path:
        """Return the largest file of a step."""
        files = (p for p in self.folder.glob(f"{step}.*/**/*") if p.is_file())
        return max(files, key=lambda path: path.stat().st_size)


def state(seed: int = 0) -> nnx.Dict[Any]:
    numbers = np.random.default_rng(seed).normal(size=(64, 8)).astype(np.float32)
    return nnx.Dict(
        weights=nnx.Param(jax.device_put(numbers)),
        seed=nnx.Variable(np.int64(seed)),
        rngs=nnx.Rngs(seed),
    )


def equal(a: nnx.Dict[Any], b: nnx.Dict[Any]) -> bool:
    keys = [jax.random.key_data(s.rngs.default.key[...]) for s in (a, b)]
    return (
        bool((a.weights[...] == b.weights[...]).all())
        and a.seed[...] == b.seed[...]
        and bool((keys[0] == keys[1]).all())
    )


def save(saving: Checkpointer, *steps: int, **options: Any) -> None:
    for step in steps:
        assert saving.save(step, **options)
        saving.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    root = tmp_path_factory.mktemp("bucket")
    with running_bucket(root) as port:
        yield port, root


@pytest.fixture
def run(server: tuple[int, Path], request: pytest.FixtureRequest) -> Run:
    port, root = server
    set_faults(port)
    return Run(port, root, re.sub(r"\W+", "-", request.node.name).strip("-"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.versions
def test_saves_and_restores_bit_for_bit(run: Run) -> None:
    with run.checkpointer(1) as saving:
        assert saving.restore() == 0
        save(saving, 10, metrics_dict={"loss": 0.5}, extra={"seed": 1})
        assert saving.checkpoint_path == run.url

    fresh = state(2)
    restoring = Checkpointer(f"{run.url}/", fresh)
    assert restoring.peek() == (10, {"seed": 1})
    assert restoring.steps() == [10]
    assert restoring.metrics(10) == {"loss": 0.5}
    assert restoring.restore(strict=True, release=True) == 10
    assert restoring.extra == {"seed": 1}
    assert equal(fresh, state(1))
    assert run.names() == {"10", "manifest.json"}


def test_retention_deletes_old_steps_and_keeps_the_best(run: Run) -> None:
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: 2.4}
    with run.checkpointer(max_to_keep=2) as saving:
        for step, loss in losses.items():
            save(saving, step, metrics_dict={"loss": loss})

        assert saving.steps() == [2, 4, 5]
        assert (saving.best_step, saving.latest_step) == (2, 5)
    steps = {"2", "4", "5"}
    assert run.names() == steps | {"manifest.json"}


def test_a_damaged_step_is_passed_over(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with run.checkpointer() as saving:
        save(saving, 1, 2, 3)
    flip(run.chunk(3))
    run.chunk(2).unlink()

    fresh = state(9)
    restoring = Checkpointer(run.url, fresh)
    with pytest.raises(
        CheckpointDamagedError,
        match=f"^{run.url}/3: cannot be used because state/model/weights/c/0/0 is "
        "damaged between its bytes 0 and",
    ):
        restoring.restore(3)
    with caplog.at_level(logging.WARNING):
        assert restoring.restore() == 1
    assert equal(fresh, state(0))
    assert (
        f"{run.url}/2: cannot be used because state/model/weights/c/0/0 is missing"
        in (caplog.text)
    )


def test_the_command_reads_buckets(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with run.checkpointer() as saving:
        save(saving, 1, metrics_dict={"loss": 2.0})
    with run.checkpointer(1) as saving:
        save(saving, 2, metrics_dict={"loss": 1.0})

    def said(*words: str) -> tuple[int, str]:
        code = main(words)
        output = capsys.readouterr()
        return code, output.out + output.err

    of_run = run.url.removesuffix("/checkpoints")
    code, text = said("ls", of_run)
    assert code == 0
    assert re.search(r"1 +2 .*\n +2 +1 +newest, best ", text)
    code, text = said("ls", f"{run.url}@2")
    assert text.startswith(f"{run.url}/2\n  loss = 1\n")
    code, text = said("diff", "--values", f"{run.url}/1", f"{run.url}/2")
    assert "! model/weights: 512 of 512 values differ, by up to" in text
    code, text = said("verify", of_run)
    assert (code, text) == (0, f"{run.url}/1: sound\n{run.url}/2: sound\n")
    code, text = said("export", f"{run.url}/2", str(tmp_path / "model.safetensors"))
    assert code == 0
    assert (tmp_path / "model.safetensors").stat().st_size > 64 * 8 * 4
    flip(run.chunk(1))
    code, text = said("verify", of_run)
    assert code == 3
    assert f"{run.url}/1: DAMAGED, state/model/weights/c/0/0 is damaged" in text
    run.chunk(1).unlink()
    assert "damaged" in said("ls", run.url)[1]
    nothing = f"{run.url}/nothing"
    problem = "is not a checkpoint and holds none; name a folder of checkpoints or of a"
    assert said("ls", nothing) == (1, f"roxxel-ckpt: {nothing}: {problem} run\n")


@pytest.mark.versions
@pytest.mark.parametrize("kinds", [["503"], ["cut", "reset", "lost"]])
def test_requests_that_fail_for_a_while_are_repeated(run: Run, kinds: Any) -> None:
    set_faults(run.port, rate=0.2, kinds=kinds)
    fresh = state(9)

    with run.checkpointer(max_to_keep=1) as saving:
        save(saving, 1, 2, 3)
    restoring = Checkpointer(run.url, fresh, timeout=600)

    assert restoring.restore() == 3
    assert equal(fresh, state(0))
    set_faults(run.port)
    assert run.names() == {"3", "manifest.json"}


@pytest.mark.versions
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            "hang",
            "no answer within the time limit; check the network, or raise timeout",
        ),
        ("403", "access was refused; check the credentials and the region in the env"),
        # An older obstore gives the status alone.
        ("503", r"the last answer was an error \(503( SlowDown)?\); try again later"),
    ],
)
def test_a_bucket_that_fails_is_one_sentence(run: Run, kind: str, reason: str) -> None:
    with soon_given_up(request_s=5.0 if kind == "hang" else 100.0):
        _fail(run, kind, reason)


def _fail(run: Run, kind: str, reason: str) -> None:
    with run.checkpointer() as saving:
        save(saving, 1)
        set_faults(run.port, kinds=[kind], keys="/c/", methods=["PUT", "POST"])
        assert saving.save(2)
        with pytest.raises(CheckpointWriteError) as failed:
            saving.wait()
        text = str(failed.value)
        assert re.match(
            rf"{run.url}: the save of step 2 failed \({run.url}/2\.1-\d-\w+/state/\S+: "
            rf"{reason}.*\); earlier checkpoints are unchanged$",
            text,
        )
        assert "secret" not in text
        set_faults(run.port)
        assert saving.steps() == [1]
        save(saving, 2)
        assert len([*filter(run.has_files, run.folder.glob("2.*"))]) == 1

    set_faults(run.port, kinds=[kind], keys="/c/", methods=["GET"])
    fresh = state(9)
    with pytest.raises(
        CheckpointBucketError, match=rf"^{run.url}/2\.\S+: (bytes 0 to \d+: )?{reason}"
    ):
        Checkpointer(run.url, fresh).restore()
    assert equal(fresh, state(9))
    set_faults(run.port, kinds=[kind])
    with pytest.raises(
        CheckpointBucketError, match=rf"^{run.url}/manifest.json: {reason}"
    ):
        Checkpointer(run.url, fresh).save(3)


def test_commits_and_deletions_are_repeated_if_a_connection_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore  # whose pooled connections end at no moment that a test can choose

    for name in ("put", "delete"):
        work, ended = getattr(obstore, name), set[str]()

        def once(
            *args: Any, work: Any = work, ended: set[str] = ended, **options: Any
        ) -> Any:
            if str(args[1]) not in ended:
                ended.add(str(args[1]))
                raise obstore.exceptions.GenericError("HttpError { kind: Interrupted }")
            return work(*args, **options)

        monkeypatch.setattr(obstore, name, once)
    with run.checkpointer(max_to_keep=1) as saving:
        save(saving, 1, 2)
    assert run.names() == {"2", "manifest.json"}


def test_a_local_disk_without_room_is_no_damage(run: Run, tmp_path: Path) -> None:
    with run.checkpointer(1) as saving:
        save(saving, 1, 2)
    file = tmp_path / "file"
    file.touch()
    reason = r"Not a directory\); free space there, or give local= \(else TMPDIR\) an"
    with (
        run.checkpointer(2, local=file) as restoring,
        pytest.raises(
            CheckpointWriteError, match=rf"^{file}/\S+: this copy of .*{reason}"
        ),
    ):
        restoring.restore()


def test_a_reader_lists_steps_again_if_a_writer_replaced_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = run.checkpointer(1, max_to_keep=1)
    save(saving, 1)
    read = Bucket.read

    def late(bucket: Bucket, name: str, *span: Any) -> bytes:
        monkeypatch.setattr(Bucket, "read", read)
        save(saving, 2)
        return read(bucket, name, *span)

    monkeypatch.setattr(Bucket, "read", late)
    fresh = state(9)
    assert Checkpointer(run.url, fresh).restore() == 2
    assert equal(fresh, state(1))


def test_a_client_that_is_not_set_up_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    cases = {
        "s3": "the environment variable AWS_ENDPOINT_URL is not the URL of a server; "
        "begin it with http:// or https://",
        "az": "the client cannot begin (GenericError); set AZURE_STORAGE_ACCOUNT_NAME "
        "and AZURE_STORAGE_ACCOUNT_KEY in the environment",
    }
    for scheme, text in cases.items():
        url = f"{scheme}://data/run"
        with pytest.raises(
            CheckpointBucketError, match=re.escape(f"{url}/manifest.json: {text}")
        ):
            Checkpointer(url, state()).steps()


def test_no_credentials_of_google_are_one_sentence_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GOOGLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        with pytest.raises(
            CheckpointBucketError,
            match=r"^gs://data/run/manifest.json: there are no credentials for Google",
        ):
            Checkpointer("gs://data/run", state()).steps()


def test_a_commit_whose_answer_is_lost_is_a_commit(run: Run) -> None:
    with run.checkpointer() as saving:
        save(saving, 1)
        set_faults(run.port, rate=0.8, kinds=["lost"], keys="manifest", methods=["PUT"])
        save(saving, 2)
        assert saving.steps() == [1, 2]


def save_without_an_answer(saving: Checkpointer, step: int) -> list[Callable[[], Any]]:
    """Save a step whose commits have no answer; return what lets them arrive."""
    delayed: list[Callable[[], Any]] = []
    replace = Bucket.replace

    def late(bucket: Bucket, *args: Any) -> Any:
        delayed.append(lambda: replace(bucket, *args))
        raise CheckpointBucketError("no answer")

    with mock.patch.object(Bucket, "replace", late):
        assert saving.save(step)
        with pytest.raises(CheckpointWriteError, match="no answer"):
            saving.wait()
    return delayed


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_commit_that_arrives_late_is_a_whole_step(
    run: Run, is_followed: bool
) -> None:
    with run.checkpointer(1) as saving:
        save(saving, 1)
        (arrive,) = save_without_an_answer(saving, 2)
        assert saving.steps() == [1]
        assert arrive() is not None
        assert saving.steps() == [1, 2]
        if is_followed:
            save(saving, 3)
            assert saving.steps() == [1, 2, 3]
        assert main(["verify", run.url]) == 0
        fresh = state(9)
        assert Checkpointer(run.url, fresh).restore(2) == 2
        assert equal(fresh, state(1))


def test_a_commit_that_arrives_after_the_next_one_is_refused(run: Run) -> None:
    with run.checkpointer(1) as saving:
        save(saving, 1)
        delayed = save_without_an_answer(saving, 2)
        save(saving, 3)
        assert [arrive() for arrive in delayed] == [None]
        assert saving.steps() == [1, 3]
    assert run.names() == {"1", "3", "manifest.json"}


def test_a_save_into_a_directory_that_cannot_be_is_one_sentence(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    with run.checkpointer(local=file) as saving:
        with pytest.raises(
            CheckpointWriteError,
            match=r"save of step 1 cannot begin \(NotADirectoryError.*; give local= "
            r"\(else TMPDIR\) a directory with room that this program can write$",
        ):
            saving.save(1)
        assert saving.steps() == []


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_full_disk_ends_one_save(run: Run, tmp_path: Path, where: str) -> None:
    """The save after it is whole."""
    target = run.url if where == "bucket" else str(tmp_path / "checkpoints")
    done = forked.run(
        [sys.executable, str(PROGRAM), "full", target],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, *steps = done.stdout.splitlines()
    assert re.match(
        rf"{target}: the save of step 2 failed \(.*\); earlier checkpoints are "
        "unchanged",
        told,
    )
    assert steps == ["[1]", "[1, 3]"]
    assert main(["verify", target]) == 0


def test_a_program_that_was_killed_leaves_no_copies_and_no_objects(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of living programs stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with forked.Popen(
        [sys.executable, str(PROGRAM), "train", run.url],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert program.stdout.readline() == "saved 1\n"
        [alive] = tmp_path.iterdir()
        assert Checkpointer(run.url, state()).peek() is not None
        assert list(tmp_path.iterdir()) == [alive]
        program.kill()
        program.stdout.read()
    assert list(tmp_path.iterdir()) == [alive]
    reading = Checkpointer(run.url, state())
    reading.restore()
    assert not alive.exists()
    del reading
    with Checkpointer(run.url, state(), timeout=600, max_to_keep=1) as saving:
        save(saving, 1000)
    del saving
    assert run.names() == {"1000", "manifest.json"}
    assert list(tmp_path.iterdir()) == []


def test_the_later_of_two_programs_wins(run: Run) -> None:
    with forked.Popen(
        [sys.executable, str(PROGRAM), "serve", run.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as earlier:
        assert earlier.stdin is not None
        assert earlier.stdout is not None

        def ask(step: int) -> str:
            assert earlier.stdin is not None
            assert earlier.stdout is not None
            earlier.stdin.write(f"{step}\n")
            earlier.stdin.flush()
            return earlier.stdout.readline().strip()

        assert ask(1) == "saved"
        with run.checkpointer(7) as later:
            assert later.restore() == 1
            save(later, 2)
            before = {
                path: path.read_bytes()
                for path in run.folder.rglob("*")
                if path.is_file()
            }
            text = ask(3)
            assert re.match(
                rf"CheckpointWriteError: {run.url}: another program on \S+ has begun "
                "to save here, so this program can no longer save; give "
                "every run a folder of its own$",
                text,
            )
            assert later.steps() == [1, 2]
            assert all(path.read_bytes() == data for path, data in before.items())
            save(later, 3)
        earlier.stdin.close()
        assert earlier.wait(600) == 0


def test_a_takeover_during_an_upload_ends_the_earlier_program(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = Gate(monkeypatch)
    with run.checkpointer() as saving:
        save(saving, 1)
        uploads.close()
        assert saving.save(2)
        take_over(run)
        uploads.open()
        with pytest.raises(
            CheckpointWriteError, match=r"save of step 2 failed \(.*another program"
        ):
            saving.wait()
    assert Checkpointer(run.url, state()).steps() == [1]


class Gate:
    """Uploads of files wait here while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        write = Bucket.write_file

        def wait_and_write(bucket: Bucket, *args: Any) -> None:
            assert self._is_open.wait(600)
            write(bucket, *args)

        monkeypatch.setattr(Bucket, "write_file", wait_and_write)

    def close(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()


def take_over(run: Run) -> None:
    """Let another program begin."""
    later = Writer(Bucket(run.url, 600))
    with mock.patch("socket.gethostname", return_value="other"):
        later.begin()


def test_a_takeover_at_the_moment_of_a_commit_wins(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Bucket.replace

    def slow(bucket: Bucket, *args: Any) -> Any:
        monkeypatch.setattr(Bucket, "replace", replace)
        take_over(run)
        return replace(bucket, *args)

    with run.checkpointer() as saving:
        save(saving, 1)
        monkeypatch.setattr(Bucket, "replace", slow)
        assert saving.save(2)
        with pytest.raises(CheckpointWriteError, match="another program on other has"):
            saving.wait()
        assert saving.steps() == [1]


def test_a_deletion_that_fails_leaves_the_save(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with soon_given_up(), run.checkpointer(max_to_keep=1) as saving:
        save(saving, 1)
        set_faults(run.port, kinds=["503"], methods=["POST"])
        with caplog.at_level(logging.WARNING):
            save(saving, 2)
        assert saving.steps() == [2]
        assert re.search(rf"{run.url}: .* cannot be deleted \(.*\(503", caplog.text)
        assert run.names() == {"1", "2", "manifest.json"}
        set_faults(run.port)
        save(saving, 3)
    assert run.names() == {"3", "manifest.json"}


def test_a_save_that_fails_after_its_commit_is_a_whole_step(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(writer: Writer) -> None:
        del writer
        raise ValueError("after the commit")

    with run.checkpointer(1) as saving:
        save(saving, 1)
        monkeypatch.setattr(Writer, "collect", fail)
        assert saving.save(2)
        with pytest.raises(CheckpointWriteError, match="after the commit"):
            saving.wait()
    assert saving.steps() == [1, 2]
    assert main(["verify", run.url]) == 0


def test_a_store_that_ignores_conditions_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Bucket.replace

    def ignoring(bucket: Bucket, name: str, data: bytes, version: Any) -> Any:
        path = run.folder / name
        if version is not None and path.exists():
            version = bucket.get(name).version
        return replace(bucket, name, data, version)

    monkeypatch.setattr(Bucket, "replace", ignoring)
    with pytest.raises(
        CheckpointBucketError, match=rf"^{run.url}: the store ignores .* If-Match"
    ):
        run.checkpointer().save(1)


def test_a_program_that_ends_finishes_its_save(run: Run) -> None:
    set_faults(run.port, latency_s=0.05)
    done = forked.run(
        [sys.executable, str(PROGRAM), "leave", run.url],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    set_faults(run.port)
    assert Checkpointer(run.url, state()).steps() == [1]


def test_a_save_before_newer_steps_is_refused_until_they_are_deleted(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.checkpointer(1) as saving:
        save(saving, 10, 20, 30)
    with run.checkpointer(2) as saving:
        assert saving.restore(10) == 10
        for step in (10, 15, 20, 40):
            with pytest.raises(
                CheckpointWriteError, match=f"^{run.url}: holds steps 20, 30.*branch"
            ):
                saving.save(step, force=True)
        assert saving.steps() == [10, 20, 30]
    of_run = run.url.removesuffix("/checkpoints")
    assert main(["delete", f"{of_run}@30", f"{run.url}@20"]) == 0
    assert main(["delete", f"{run.url}@30"]) == 1

    said = capsys.readouterr()
    assert said.out == f"{run.url}/30: is deleted\n{run.url}/20: is deleted\n"
    assert "has no step 30; it holds step 10" in said.err
    assert run.names() == {"10", "manifest.json"}
    with run.checkpointer(3) as saving:
        assert saving.restore() == 10
        save(saving, 15)
        assert saving.steps() == [10, 15]


def test_a_running_program_saves_no_more_after_a_step_was_deleted(run: Run) -> None:
    running = run.checkpointer(1)
    save(running, 10, 20)
    command = [sys.executable, "-m", "roxxel_ckpt.cli", "delete", f"{run.url}@20"]
    forked.run(command, check=True, capture_output=True, timeout=600)

    with pytest.raises(CheckpointWriteError, match="another program"):
        save(running, 30)
    fresh = state(9)
    assert Checkpointer(run.url, fresh).restore() == 10
    assert equal(fresh, state(1))


def test_a_damaged_newest_step_is_kept_and_the_run_goes_on(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with run.checkpointer(1, max_to_keep=2) as saving:
        save(saving, 10, 20)
    [damaged] = run.folder.glob("20.*")
    flip(run.chunk(20))
    held = sorted(path.name for path in damaged.rglob("*"))

    with run.checkpointer(2, max_to_keep=2) as saving:
        assert saving.restore() == 10
        assert equal(saving.model, state(1))
        save(saving, 15, 20, 25)
        assert saving.steps() == [20, 25]
    assert f"step 20 is damaged, so it is now kept as {run.url}/{damaged.name}" in (
        caplog.text
    )
    with run.checkpointer(3) as saving:
        assert saving.restore() == 25
        save(saving, 30)
    assert sorted(path.name for path in damaged.rglob("*")) == held
    assert main(["verify", run.url]) == 0


def test_no_step_is_called_damaged_before_it_is_marked(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with run.checkpointer() as saving:
        save(saving, 10, 20)
    flip(run.chunk(20))
    assert saving.restore() == 10

    save_without_an_answer(saving, 15)

    assert "is now kept as" not in caplog.text
    assert saving.steps() == [10, 20]


def test_verify_compares_layouts_with_the_description_as_restore_does(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.checkpointer() as saving:
        save(saving, 1)
    [step] = run.folder.glob("1.*")
    layout = step / "state/model/weights/zarr.json"
    layout.write_text(layout.read_text().replace("64", "65"))
    seal(step)

    with pytest.raises(CheckpointDamagedError, match=r"zarr\.json declares"):
        run.checkpointer().restore(1)
    assert main(["verify", run.url]) == 3
    assert "zarr.json declares" in capsys.readouterr().out


def seal(step: Path) -> None:
    """Give the changed files of a step right digests, as a hostile program would."""
    commit, digests = step / "checkpoint.json", step / "digests" / "0.json"
    body = json.loads(commit.read_text())["body"]
    commit.unlink()
    digests.unlink()
    files = digest_files(step)
    digests.write_text(sealed(files))
    commit.write_text(sealed({**body, "digests": [crc_of(files)]}))


def test_threads_of_one_program_save_one_after_another(run: Run) -> None:
    large = nnx.Dict(**{f"w{i}": few() for i in range(40)})
    first = Checkpointer(run.url, large, timeout=600)
    second = run.checkpointer(2)
    set_faults(run.port, latency_s=0.1)
    refused: list[int] = []

    def save_one(saving: Checkpointer, step: int) -> None:
        try:
            save(saving, step)
        except CheckpointWriteError:  # step 3 was first
            refused.append(step)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save_one, (first, second), (2, 3)))
    set_faults(run.port)
    assert first.steps() in ([2, 3], [3])
    assert (first.steps() == [2, 3]) == (refused == [])
    assert main(["verify", run.url]) == 0


def test_steps_without_their_manifest_are_named(run: Run) -> None:
    with run.checkpointer(1) as saving:
        save(saving, 1)
    (run.folder / "manifest.json").unlink()
    copy = Run(run.port, run.root, f"{run.name}-copy")
    shutil.copytree(run.folder, copy.folder)

    lost = rf"^{copy.url}: holds 1\.\S+, but manifest.json, which lists .* is gone"
    with pytest.raises(CheckpointDamagedError, match=lost):
        copy.checkpointer().restore()
    with pytest.raises(CheckpointDamagedError, match=lost):
        copy.checkpointer().save(2)
    with pytest.raises(CheckpointWriteError, match=r"manifest\.json: is gone"):
        save(saving, 2)


def test_a_damaged_manifest_is_named(run: Run) -> None:
    with run.checkpointer(1) as saving:
        save(saving, 1)
    flip(run.folder / "manifest.json")
    with pytest.raises(
        CheckpointDamagedError, match=f"^{run.url}/manifest.json: .* damaged"
    ):
        run.checkpointer().restore()


@pytest.mark.parametrize(
    "listed",
    [
        {"steps": [{"name": "1.1-1-00112233445566aa"}]},
        {"steps": [{"name": "../1.1-1-00112233445566aa", "files": {}}]},
        {"steps": [{"name": "1./../../x.1-1-00112233445566aa", "files": {}}]},
        {"steps": [{"name": "one", "files": {}}]},
        {"steps": 3},
        {"files": {"metrics.jsonl": ["files/1-1-00112233445566aa"]}},
    ],
)
def test_a_sealed_manifest_of_another_program_is_named(
    run: Run, listed: dict[str, Any]
) -> None:
    writer = writer_of(Bucket(run.url, 600))
    writer.begin()
    writer.swap(lambda _: listed)
    with pytest.raises(
        CheckpointDamagedError, match=f"^{run.url}/manifest.json: does not list"
    ):
        run.checkpointer().restore()


def test_force_replaces_a_step(run: Run) -> None:
    with run.checkpointer(1) as saving:
        save(saving, 1)
    with run.checkpointer(2) as saving:
        assert saving.save(1) is False
        save(saving, 1, force=True)
    fresh = state(9)
    assert Checkpointer(run.url, fresh).restore() == 1
    assert equal(fresh, state(2))
    assert run.names() == {"1", "manifest.json"}


def test_a_local_folder_keeps_the_newest_step(run: Run, tmp_path: Path) -> None:
    with run.checkpointer(1, local=tmp_path) as saving:
        save(saving, 1, 2)
    kept = [path.name[:2] for path in tmp_path.glob("process-0/*/*")]
    assert kept == ["2."]
    set_faults(run.port)
    fresh = state(9)
    Checkpointer(run.url, fresh).restore()
    whole = stats(run.port)["bytes"]

    set_faults(run.port)
    fresh = state(9)
    assert Checkpointer(run.url, fresh, local=tmp_path).restore() == 2
    assert equal(fresh, state(1))
    assert stats(run.port)["bytes"] < whole - 64 * 8 * 4 / 2

    # A damaged copy is fetched again.
    flip(next(tmp_path.glob("process-0/*/*/state/model/weights/c/0/0")))
    fresh = state(9)
    assert Checkpointer(run.url, fresh, local=tmp_path).restore() == 2
    assert equal(fresh, state(1))


def test_runs_and_readers_may_share_a_local_folder(run: Run, tmp_path: Path) -> None:
    other = Run(run.port, run.root, f"{run.name}-other")
    model = nnx.Dict(**{f"w{i}": few() for i in range(40)})
    fresh = nnx.Dict(**{f"w{i}": few() for i in range(40)})
    with (
        Checkpointer(run.url, model, local=tmp_path, timeout=600) as saving,
        other.checkpointer(1, local=tmp_path) as second,
    ):
        save(saving, 1)
        uploads = f"{run.name}/.*/state/"
        set_faults(run.port, kinds=["503"], keys=uploads, methods=["PUT", "POST"])
        assert saving.save(2)
        save(second, 1)
        assert Checkpointer(run.url, fresh, local=tmp_path).restore() == 1
        set_faults(run.port)
        saving.wait()
        assert saving.steps() == [1, 2]
    assert main(["verify", run.url, other.url]) == 0
    kept = sorted(path.name[:2] for path in tmp_path.glob("process-0/*/*"))
    assert kept == ["1.", "2."]


def test_a_file_that_was_not_uploaded_fails_the_save(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Bucket.write_file

    def lose(bucket: Bucket, name: str, path: Path, parts: int) -> None:
        if not name.endswith("weights/c/0/0"):
            write(bucket, name, path, parts)

    monkeypatch.setattr(Bucket, "write_file", lose)
    with run.checkpointer() as saving:
        assert saving.save(1)
        with pytest.raises(
            CheckpointWriteError, match="weights/c/0/0 is missing after the upload"
        ):
            saving.wait()
        assert saving.steps() == []


def test_no_temporary_file_stays(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with run.checkpointer(1) as saving:
        save(saving, 1, 2)
        saving.restore()
        big = [p for p in tmp_path.rglob("*") if p.is_file() and "state" in p.parts]
        assert big == []
    del saving

    # The thread of the last upload may still hold the folder.
    until_s = time.monotonic() + 600
    while list(tmp_path.iterdir()):
        assert time.monotonic() < until_s
        gc.collect()
        time.sleep(0.01)


def test_save_waits_for_no_upload(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Gate(monkeypatch)
    with run.checkpointer() as saving:
        save(saving, 1)
        uploads.close()
        assert saving.save(2)
        assert saving.steps() == [1]
        uploads.open()
        saving.wait()
        assert saving.steps() == [1, 2]
        record = saving.last_save
        assert record is not None
        assert record.total_s is not None
        assert record.blocking_s < record.total_s


def test_a_url_of_the_run_in_place_of_its_checkpoints_is_named(run: Run) -> None:
    with run.checkpointer() as saving:
        save(saving, 1)
    of_run = run.url.removesuffix("/checkpoints")
    with pytest.raises(
        CheckpointNotFoundError, match=f"{of_run}: holds no step, but {run.url} does"
    ):
        Checkpointer(of_run, state()).restore()


def test_a_forked_process_gets_an_error_and_no_hang(run: Run) -> None:
    done = forked.run(
        [sys.executable, str(PROGRAM), "fork", run.url],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "[1]\n"), done.stderr
    assert "this process was forked from one that has used a bucket" in done.stderr


def test_a_url_of_a_step_in_place_of_its_folder_is_named(run: Run) -> None:
    with run.checkpointer() as saving:
        save(saving, 1)
    with pytest.raises(
        CheckpointNotFoundError,
        match=f"{run.url}/1: is a checkpoint and not a folder .*; give {run.url}$",
    ):
        Checkpointer(f"{run.url}/1", state()).restore()


def test_urls_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    cases = {
        "s3://bucket": "s3://bucket/run/checkpoints",
        "s3://user:pw@bucket/run": "s3://...: the URL has a password",
        "s3://bucket/run?key=hidden": "the URL has a password, a query",
        "s3://bucket/run/../other": '".."',
        "https://host/run": "https://host/run: a web server cannot hold",
        "s3:/bucket/run": "give s3://bucket/run as text",
    }
    for url, text in cases.items():
        with pytest.raises(ValueError, match=re.escape(text)) as refused:
            Checkpointer(url, state())
        assert "pw" not in str(refused.value)
        assert "hidden" not in str(refused.value)
    with pytest.raises(ValueError, match="is for checkpoints in a bucket; omit it"):
        Checkpointer(tmp_path, state(), local=tmp_path)


def test_the_extra_is_named_where_the_client_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs obstore; .*bucket"):
        Checkpointer("s3://bucket/run", state())


@pytest.mark.versions
@SEVERAL_PROCESSES
def test_two_processes_share_no_disk(run: Run, tmp_path: Path) -> None:
    """Each process has its own folder for temporary files."""
    port = free_port()
    set_faults(run.port, rate=0.05, kinds=["503", "cut", "reset"])
    programs: list[subprocess.Popen[str]] = []
    for index in range(2):
        own = tmp_path / f"disk-{index}"
        own.mkdir()
        programs.append(
            forked.Popen(
                [sys.executable, str(PROGRAM), "pair", run.url, str(index), str(port)],
                env={**os.environ, **simulated(2), "TMPDIR": str(own)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [program.communicate(timeout=600) for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert [program.returncode for program in programs] == [0, 0], said
    assert [output for output, _ in said] == ["done\n", "done\n"]
    assert [list((tmp_path / f"disk-{index}").iterdir()) for index in (0, 1)] == [
        [],
        [],
    ]

    set_faults(run.port)
    fresh = nnx.Dict(weights=nnx.Param(jax.numpy.zeros((8, 4))))
    assert Checkpointer(run.url, fresh).restore() == 3
    assert (fresh.weights[...] == np.arange(32.0).reshape(8, 4) + 3).all()
    like = {"params": {"w": jax.numpy.zeros((8, 4))}, "count": 0}
    tree = Checkpointer(run.url.replace("/checkpoints", "/tree")).load(like=like)
    assert (tree["params"]["w"] == np.arange(32.0).reshape(8, 4) + 2).all()
    assert tree["count"] == 2


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a moto server, which has the rules of S3, with a bucket `data`."""
    server_of: Any = import_module("moto.server").ThreadedMotoServer

    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with contextlib.closing(HTTPConnection(host, port)) as connection:
        connection.request("PUT", "/data")
        assert connection.getresponse().status == 200
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    yield f"http://{host}:{port}"
    server.stop()


def test_the_rules_of_s3_are_kept(moto: str) -> None:
    """With a file that is uploaded in parts, and with more than 16 MiB to verify."""
    del moto
    url = "s3://data/run/checkpoints"
    numbers = np.random.default_rng(0).normal(size=(5, 1 << 20)).astype(np.float32)
    model = nnx.Dict(big=nnx.Param(jax.device_put(numbers)), **{"a/b %": few()})
    with Checkpointer(url, model, max_to_keep=2) as saving:
        save(saving, 1, 2, 3)
        assert saving.steps() == [2, 3]
    model.big.set_value(jax.numpy.zeros_like(model.big[...]))
    with Checkpointer(url, model) as restoring:
        assert restoring.restore(3, strict=True) == 3
        assert (np.asarray(model.big[...]) == numbers).all()
        save(restoring, 3, force=True)
        assert restoring.steps() == [2, 3]
    assert main(["verify", url]) == 0


def few() -> nnx.Param[Any]:
    return nnx.Param(jax.numpy.arange(3.0))


def test_a_missing_bucket_is_named(moto: str) -> None:
    del moto
    saving = Checkpointer("s3://none/run", state())
    with pytest.raises(
        CheckpointBucketError,
        match=r"^s3://none/run/manifest.json: there is no such bucket; check the URL",
    ):
        saving.save(1)
