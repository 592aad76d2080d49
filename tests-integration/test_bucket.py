"""Corpora in buckets: on `moto`, which follows the rules of S3, and in a whole run."""

from __future__ import annotations

import contextlib
import json
import sys
from http.client import HTTPConnection
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import forked
import numpy as np
import pytest
from roxxel import Curriculum, Phase, Roxxel, Sampler
from roxxel_prepare.cli import main

from .buckets import CREDENTIALS, running_bucket, set_faults
from .conftest import environment
from .runs import rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.first

CONFIG = """\
model = "tiny.model:make"
save_path = "runs/{name}"
sources = {{ self = "{path}" }}
seed = 7

[[phases]]
steps = 12
batch_size = 4
seq_len = 33

[[phases]]
steps = 6
batch_size = 2
seq_len = 65

[trainer]
checkpoint_every = 6
log_every = 1
"""

MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx


def make(vocab_size=90):
    model = nnx.Sequential(
        nnx.Embed(vocab_size, 16, rngs=nnx.Rngs(0)),
        nnx.Linear(16, vocab_size, rngs=nnx.Rngs(1)),
    )
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), loss_fn


def loss_fn(model, batch):
    logits = model(batch[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, batch[:, 1:]
    )
    return {"loss": losses.mean()}
"""


def write_corpus(folder: Path) -> Roxxel:
    chosen = np.random.default_rng(0)
    sizes: list[int] = chosen.integers(1, 200, 300).tolist()
    corpus = Roxxel(folder / "web_*.rox")
    corpus.write(
        [chosen.integers(1, 90, size, dtype=np.uint16) for size in sizes],
        separator=0,
        vocab_size=90,
        max_shard_bytes=20_000,
    )
    return Roxxel(folder / "web_*.rox")


def sampler_of(corpus: Roxxel) -> Sampler:
    phases = [Phase(20, batch_size=4, seq_len=33), Phase(5, batch_size=2, seq_len=129)]
    fields: Any = ("tokens", "segment_ids", "positions")
    return Curriculum(corpus, phases).sampler(3, fields=fields)


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a moto server whose public bucket `data` holds a corpus."""
    server_of: Any = import_module("moto.server").ThreadedMotoServer

    folder = tmp_path_factory.mktemp("moto")
    write_corpus(folder)
    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    put(port, "/data", b"")
    for path in folder.iterdir():
        if path.suffix in {".rox", ".json"}:
            put(port, f"/data/{path.name}", path.read_bytes())
    address = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": address}).items():
            patch.setenv(name, value)
        yield address
    server.stop()


def put(port: int, path: str, data: bytes) -> None:
    with contextlib.closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("PUT", path, data, {"x-amz-acl": "public-read"})
        assert connection.getresponse().status == 200


def test_inputs_in_s3_give_the_corpus_of_local_copies(
    moto: str, tmp_path: Path
) -> None:
    port = int(moto.rpartition(":")[2])
    folder = tmp_path / "raw"
    (folder / "sub").mkdir(parents=True)
    for name in ["2.jsonl", "10.jsonl", "sub/a b#%é?.jsonl", "sub/empty.jsonl"]:
        rows = [f"{name} {number}" for number in range(99 * ("empty" not in name))]
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        put(port, f"/data/raw/{quote(name)}", (folder / name).read_bytes())
    # As some tools mark folders.
    for mark in ["raw/", "raw/sub/", "raw/nothing/"]:
        put(port, f"/data/{mark}", b"")

    found: list[str] = []
    for name, inputs in (("s3", "s3://data/raw"), ("disk", str(folder))):
        target = str(tmp_path / name / "c_*.rox")
        command = ["write", target, inputs, "--unit-bytes", "900", "--workers", "2"]
        assert main(command) == 0
        found.append(Roxxel(target).fingerprint)

    assert Roxxel(tmp_path / "s3" / "c_*.rox").num_documents == 297
    assert found[0] == found[1]


@pytest.mark.parametrize("check", ["headers", "blocks"])
def test_batches_from_s3_equal_those_from_a_disk(
    moto: str, tmp_path: Path, check: Any
) -> None:
    del moto
    local = sampler_of(write_corpus(tmp_path))
    remote = sampler_of(Roxxel("s3://data/web_*.rox", check=check))

    for step in (0, 7, 19, 20, 24):
        batch: Any = remote.batch(step)
        expected: Any = local.batch(step)
        for name in ("tokens", "segment_ids", "positions"):
            assert np.array_equal(batch[name], expected[name]), (step, name)


def test_gcs_reads_by_the_same_client(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GCS store that reads from the server without credentials of Google."""
    import obstore.store
    from roxxel_store import client  # the only place that makes stores

    account = {"gcs_base_url": moto, "disable_oauth": True}
    names = ("client_email", "private_key", "private_key_id")
    key = json.dumps(account | dict.fromkeys(names, ""))
    store = obstore.store.GCSStore(
        "data", service_account_key=key, client_options={"allow_http": True}
    )
    monkeypatch.setattr(client, "_store", lambda *_: store)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", key)
    local = sampler_of(write_corpus(tmp_path))
    remote = sampler_of(Roxxel("gs://data/web_*.rox"))

    batch: Any = remote.batch(3)
    expected: Any = local.batch(3)
    assert np.array_equal(batch["tokens"], expected["tokens"])


def test_a_run_from_a_bucket_equals_one_from_a_disk(
    tmp_path: Path, compilation_cache: Path
) -> None:
    write_corpus(tmp_path / "data")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "model.py").write_text(MODEL)
    paths = {"disk": "data/web_*.rox", "bucket": "s3://data/web_*.rox"}
    for name, path in paths.items():
        text = CONFIG.format(name=name, path=path)
        (tmp_path / f"{name}.toml").write_text(text)

    with running_bucket(tmp_path) as port:
        set_faults(port, latency_s=0.01, rate=0.05, kinds=["503", "cut"])
        for name in paths:
            done = forked.run(
                [sys.executable, "-m", "roxxel", "train", f"{name}.toml"],
                cwd=tmp_path,
                env=environment(1, compilation_cache),
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, done.stderr

    losses = [
        [
            row["loss"]
            for row in rows(tmp_path / "runs" / name)
            if row["kind"] == "train"
        ]
        for name in paths
    ]
    assert len(losses[0]) == 18
    assert losses[0] == losses[1]
