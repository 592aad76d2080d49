"""Lets every call on the files of a job fail once, and checks what the job left.

    LD_PRELOAD=disk_faults.so disk_faults.py FOLDER SHARE [JOB ...]

A job is a save, a load, a corpus or a run. It is done once to see its calls, then once
for every call and every error that this call can give; a call of a run gives only one
of its errors, in turn. SHARE is `all`, or how many of these cases are tried. Each line
describes a case that lost something. The last line has the number of cases, and of
those whose call came again.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel_ckpt import Checkpointer
from roxxel_format import ShardError
from roxxel_prepare.cli import main
from roxxel_train import TIMING_FIELDS, Preempted, RunFolder

REFUSED = ("EACCES", "EIO", "ESTALE")
FULL = ("ENOSPC", "EDQUOT", "EROFS")
# What Linux and its network file systems can answer to each call.
ERRORS = {
    "open": (*REFUSED, "EMFILE", "EINTR"),
    "create": (*REFUSED, *FULL, "EMFILE", "EINTR"),
    "read": ("EIO", "ESTALE", "EINTR"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT"),
    "close": ("EIO", "ENOSPC", "EDQUOT"),
    "truncate": ("EIO", "ENOSPC", "EINTR"),
    "mmap": ("ENODEV", "ENOMEM"),
    "flock": ("ENOLCK", "EINTR"),
    "mkdir": (*REFUSED, *FULL),
    "link": (*REFUSED, *FULL),
    "rename": (*REFUSED, *FULL),
    "unlink": (*REFUSED, "EROFS"),
    "rmdir": (*REFUSED, "EROFS"),
    "stat": REFUSED,
    "opendir": (*REFUSED, "EMFILE"),
    "readdir": ("EIO", "ESTALE"),
}
# A disk without locks.
OTHER_REASONS = ("no working flock",)
LIBRARY = ctypes.CDLL(os.environ["LD_PRELOAD"])
LIBRARY.end_watch.restype = ctypes.c_char_p


class Disk:
    """The calls below a folder while a block runs; one may fail."""

    def __init__(self, folder, call="", nth=0, number=0, forever=False):
        self.arguments = (os.fsencode(folder), call.encode(), nth, int(forever), number)
        self.lines = []

    def __enter__(self):
        LIBRARY.watch(*self.arguments)
        return self

    def __exit__(self, *_):
        self.lines = LIBRARY.end_watch().decode().splitlines()

    @property
    def failed(self):
        return [line[2:] for line in self.lines if line[0] == "!"]


class Job:
    """Something done to the files of a folder, which `begin` makes.

    `act` returns what was read or None. `check` gets it, or else the error, and raises
    an AssertionError if something is lost, moved or changed.
    """

    def __init__(self, folder):
        self.folder, self.template = folder / "work", folder / "template"
        self.folder.mkdir(parents=True)
        self.begin()
        shutil.copytree(self.folder, self.template)

    def again(self):
        shutil.rmtree(self.folder)
        shutil.copytree(self.template, self.folder)

    def calls(self):
        self.again()
        with Disk(self.folder) as disk:
            self.act()
        counts = Counter()
        for line in disk.lines:
            call = re.sub(r"(\d+-\d+-)?[0-9a-f]{8,}", "*", line[2:])
            counts[call] += 1
            yield call, counts[call]

    def names(self):
        return sorted(str(path) for path in self.folder.rglob("*"))


def tree(number):
    return {"weights": jnp.full((3, 2), number / 4), "step": number}


def same(one, other):
    found = jax.tree.map(lambda x, y: bool(np.all(x == y)), one, other)
    return all(jax.tree.leaves(found))


class Save(Job):
    """A save that deletes the older step, and then replaces the newer one."""

    def begin(self):
        with self.checkpointer() as one:
            one.save(1, state=tree(1))

    def checkpointer(self):
        return Checkpointer(self.folder / "c", max_to_keep=1)

    def act(self):
        with self.checkpointer() as one:
            one.save(2, state=tree(2))
            one.save(2, state=tree(3), force=True)

    def check(self, error, _):
        with self.checkpointer() as one:
            found = one.load(like=tree(0))
            steps = one.steps()
            assert any(same(found, tree(number)) for number in (1, 2, 3)), found
            assert error or same(found, tree(3)), found
            assert max(steps) == min(found["step"], 2), (steps, found)
            one.save(2, state=tree(4), force=True)
            one.wait()
            assert same(one.load(like=tree(0)), tree(4))
        names = {path.name for path in (self.folder / "c").iterdir()}
        assert names == {"2", "manifest.json"}, names


class Load(Job):
    """A look at the steps and a load of the newest of two."""

    def begin(self):
        with Checkpointer(self.folder / "c") as one:
            one.save(1, state=tree(1))
            one.save(2, {"loss": 1}, state=tree(2), extra={"a": 1})

    def act(self):
        with Checkpointer(self.folder / "c") as one:
            looked = one.peek(), one.steps(), one.best_step, one.metrics(2)
            return looked, one.load(like=tree(0))

    def check(self, error, found):
        names = self.names()
        again = self.act()
        if error is None:
            assert found[0] == again[0], found
            assert same(found[1], tree(2)), found
        assert same(again[1], tree(2)), again
        assert names == self.names()
        assert not [name for name in names if "damaged" in name]


def texts(first, count):
    """Return documents that need a shard for every two of them."""
    return [np.arange(first, first + 4000 + number) % 250 for number in range(count)]


def named(document):
    """Return the number of tokens of a document, and a checksum."""
    return f"{len(document)}-{zlib.crc32(np.asarray(document, np.uint16).tobytes())}"


OLD, NEW = texts(0, 4), texts(100, 3)


class Write(Job):
    """A new corpus of two shards."""

    exist = "error"
    wanted = NEW
    before = ()

    def begin(self):
        if self.before:
            self.write(self.before, "error")

    def corpus(self):
        return Roxxel(self.folder / "c_*.rox")

    def write(self, documents, exist):
        self.corpus().write(
            documents,
            vocab_size=300,
            separator=None,
            max_shard_bytes=24_000,
            exist=exist,
        )

    def act(self):
        self.write(NEW, self.exist)

    def documents(self):
        with contextlib.suppress(FileNotFoundError, ShardError):
            corpus = self.corpus()
            corpus.verify()
            return [named(document) for document in corpus.documents]
        return []

    def check(self, error, _):
        found = self.documents()
        wanted, before = map(named, self.wanted), map(named, self.before)
        wanted, before = list(wanted), list(before)
        assert found in (wanted, before), found
        assert error or found == wanted, found
        if found == before:
            self.act()
        assert self.documents() == wanted, self.documents()
        self.corpus().remove_leftovers()
        assert self.corpus().leftovers() == []


class Append(Write):
    exist = "append"
    before = OLD
    wanted = (*OLD, *NEW)


class Replace(Write):
    exist = "replace"
    before = OLD


class Compact(Write):
    """A merge of the shards of seven appends."""

    before = wanted = (*OLD, *NEW)

    def begin(self):
        for document in self.before:
            self.write([document], "append")

    def act(self):
        self.corpus().compact()


class Column(Write):
    """New values of a column."""

    before = wanted = OLD

    def begin(self):
        super().begin()
        self.number([1] * len(OLD))

    def number(self, values):
        self.corpus().write_column("n", values, "document", "uint8", exist="replace")

    def act(self):
        self.number([*range(len(OLD))])

    def check(self, error, _):
        names, found = [1] * len(OLD), self.corpus().column("n")[:].tolist()
        assert found in (names, [*range(len(OLD))]), found
        super().check(error, _)
        assert self.corpus().column("n")[:].tolist() == [*range(len(OLD))]


class Clean(Write):
    """The removal of what two killed writes left."""

    before = wanted = OLD

    def begin(self):
        super().begin()
        for number in range(2):
            name = f"c_{'a' * 12}_00000_00{number}.rox"
            (self.folder / name).write_bytes(b"left")

    def act(self):
        self.corpus().remove_leftovers()

    def check(self, error, _):
        assert error or self.corpus().leftovers() == []
        super().check(error, _)


class Copy(Write):
    """A copy to another name."""

    wanted = OLD

    def begin(self):
        self.write(OLD, "error")
        self.corpus().copy_to(self.folder / "s_*.rox")
        for path in self.folder.iterdir():
            if "c_" in path.name:
                path.unlink()

    def act(self):
        Roxxel(self.folder / "s_*.rox").copy_to(self.folder / "c_*.rox")


class Adopt(Write):
    """Shards without a manifest that become a corpus again."""

    wanted = OLD

    def begin(self):
        self.write(OLD, "error")
        for path in self.folder.iterdir():
            if path.suffix != ".rox":
                path.unlink()

    def act(self):
        self.corpus().adopt()


class Read(Write):
    """Every token of a corpus."""

    before = wanted = OLD

    def act(self):
        with self.corpus() as corpus:
            windows = corpus.read([0, 7], 9).tolist()
            return self.documents(), windows, corpus.fingerprint

    def check(self, error, found):
        names, again = self.names(), self.act()
        assert again[0] == [named(document) for document in OLD], again
        assert error or found == again, found
        assert names == self.names()


class Prepare(Job):
    """A preparation of three inputs as three units, and its commit."""

    def begin(self):
        (self.folder / "in").mkdir()
        for number in range(3):
            rows = [
                {"text": f"{number} {row}", "id": f"{number}/{row}"} for row in "ab"
            ]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (self.folder / "in" / f"{number}.jsonl").write_text(text)

    def act(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = main(
                [
                    "write",
                    str(self.folder / "out" / "c_*.rox"),
                    str(self.folder / "in"),
                    "--document-id",
                    "id",
                    "--separator",
                    "text:|",
                    "--unit-bytes",
                    "60",
                ]
            )
        if code:
            raise OSError(said.getvalue().strip())

    def check(self, error, _):
        # An interrupted preparation goes on by the same command.
        corpus = Roxxel(self.folder / "out" / "c_*.rox")
        if error is not None:
            self.act()
        corpus.verify()
        wanted = [f"{number} {row}" for number in range(3) for row in "ab"]
        assert [bytes(each).decode() for each in corpus.documents] == wanted
        assert corpus.document_name(3) == "1/b"
        assert corpus.leftovers() == [], corpus.leftovers()


class Model(nnx.Module):
    def __init__(self):
        self.embed = nnx.Embed(300, 3, rngs=nnx.Rngs(0))

    def __call__(self, tokens):
        return self.embed.attend(self.embed(tokens))


def loss_fn(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()


def rows(run):
    """Return the metrics rows of a run, without the fields that measure time."""
    rows = RunFolder(run).rows()[0]
    return [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in rows]


class Run(Job):
    """A run that goes on from a checkpoint, evaluates, logs every step, and saves."""

    def begin(self):
        Roxxel(self.folder / "c.rox").write(
            (np.arange(40) + number for number in range(9)), vocab_size=300
        )
        with contextlib.suppress(Preempted):
            self.trainer(stops_at=3).run()

    def trainer(self, stops_at=0):
        model = Model()

        def evaluate(state):
            step = int(state.step[...])
            if step == stops_at:
                one.save()
                raise Preempted(step, "SIGTERM")
            return {"held_out": step / 2}

        one = Trainer(
            model,
            nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
            Curriculum(Roxxel(self.folder / "c.rox"), [Phase(4, 2, 9)]),
            loss_fn,
            self.folder / "run",
            log_every=1,
            checkpoint_every=2,
            eval_fn=evaluate,
            eval_every=3,
            max_to_keep=1,
            mesh=Mesh(np.asarray(jax.devices()[:1]), ("data",)),
        )
        return one

    def act(self):
        one = self.trainer()
        one.run()
        return rows(self.folder / "run"), np.asarray(one.model.embed.embedding).tolist()

    def steps(self):
        folder = self.folder / "run" / "checkpoints"
        names = [path.name for path in folder.iterdir()]
        assert not [name for name in names if "damaged" in name]
        return sorted(int(name) for name in names if name.isdecimal())

    def calls(self):
        self.again()
        self.end = self.act()
        return super().calls()

    def check(self, error, found):
        assert self.steps()[-1] >= 2, self.steps()
        if error is not None:
            found = self.act()
        assert found == self.end
        assert self.steps()[-1] == 4, self.steps()


JOBS = {
    kind.__name__.lower(): kind
    for kind in (
        *(Save, Load, Write, Append, Replace, Compact, Column, Clean, Copy, Adopt),
        *(Read, Prepare, Run),
    )
}


def told(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def attempt(job, call, nth, name):
    """Return what is wrong after a call failed, or None; and whether it was reached."""
    job.again()
    disk = Disk(job.folder, call, nth, getattr(errno, name))
    error = found = None
    try:
        with disk:
            found = job.act()
    except Exception as raised:  # noqa: BLE001 - any error may tell the reason
        error = raised
    if not disk.failed:
        return (f"{type(error).__name__}: {told(error)}" if error else None), False
    try:
        if error is not None:
            number = getattr(errno, name)
            reasons = os.strerror(number), f"[Errno {number}]", *OTHER_REASONS
            assert any(each in told(error) for each in reasons), "reason not named"
            # TensorStore, which uses the files of arrays, does not try again.
            assert name != "EINTR" or "/state/" in call, "was interrupted"
        job.check(error, found)
    except Exception as problem:  # noqa: BLE001 - all of them are shown
        said = f"; said {type(error).__name__}: {told(error)}" if error else ""
        return f"{type(problem).__name__}: {problem}{said}"[:1500], True
    return None, True


def campaign(folder, share, names):
    cases = []
    for name in names:
        job = JOBS[name](folder / name)
        for number, (call, nth) in enumerate(job.calls()):
            errors = ERRORS[call.split()[0]]
            if name == "run":
                errors = errors[number % len(errors) :][:1]
            cases += [(job, call, nth, error) for error in errors]
    if share != "all":
        # A step that shares no factor with the number of errors meets all of them.
        every = max(1, len(cases) // int(share)) | 1
        cases = cases[every // 2 :: every]
    num_reached = 0
    for job, call, nth, error in cases:
        wrong, reached = attempt(job, call, nth, error)
        num_reached += reached
        if wrong:
            print(type(job).__name__, call, nth, error, "|", wrong, flush=True)
    print(len(cases), num_reached)


if __name__ == "__main__":
    campaign(Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:] or list(JOBS))
