"""Ray Data pipelines that end in a corpus, on two raylets of this machine."""

from __future__ import annotations

import doctest
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel_format import ShardError
from roxxel_format.scans import Scan
from roxxel_prepare import scan_corpus, write_files

from .buckets import running_bucket
from .ray_cluster import NODE, raylet_of, running_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray warns of itself
    pytest.mark.long,
]

TEXTS = [f"document {number} " * (number % 5 + 1) for number in range(200)]
LINE = re.compile(r"[^\n]+")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a bucket `data`; raylets that start later find its server."""
    root = tmp_path_factory.mktemp("b")
    with running_bucket(root):
        yield root / "data"


@pytest.fixture(scope="module")
def cluster(bucket: Path) -> Iterator[Any]:
    """A cluster of two raylets with a core each."""
    del bucket
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray(cluster: Any) -> Iterator[Any]:
    """Ray, connected to the cluster."""
    ray: Any = import_module("ray")
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    context = import_module("ray.data").DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    # The default starts an actor for each partition, a process of its own.
    strategies = import_module("ray.data.context").ShuffleStrategy
    context.shuffle_strategy = strategies.SORT_SHUFFLE_PULL_BASED
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    yield ray
    ray.shutdown()


def sink_class() -> Any:
    return import_module("roxxel_prepare.ray").RoxxelDatasink


def of_texts(ray: Any, texts: Sequence[object], num_blocks: int = 4) -> Any:
    items = [{"text": text} for text in texts]
    return ray.data.from_items(items, override_num_blocks=num_blocks)


def texts_of(corpus: Roxxel) -> list[str]:
    return [bytes(document).decode() for document in corpus.documents]


def shards_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.rox")}


def test_pipeline_writes_its_rows_in_order(ray: Any, tmp_path: Path) -> None:
    sink = sink_class()(
        tmp_path / "web_*.rox", separator=b"\n", min_bytes_per_write=None
    )
    of_texts(ray, TEXTS).write_datasink(sink)

    corpus = Roxxel(tmp_path / "web_*.rox")
    assert texts_of(corpus) == TEXTS
    assert corpus.verify().ok
    assert sink.summary.num_documents == len(TEXTS)
    assert sink.summary.num_shards == 4
    assert corpus.versions == [sink.summary.fingerprint]
    assert {Path(each).name for each in corpus.paths} == shards_in(tmp_path)


def test_example_of_the_datasink_gives_what_it_shows(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = import_module("roxxel_prepare.ray")
    found = doctest.testmod(module, extraglobs={"ray": ray})

    assert (found.failed, found.attempted) == (0, 4)


def test_prompts_completions_and_ids_make_the_columns_of_a_plain_write(
    ray: Any, tmp_path: Path
) -> None:
    rows = [
        {"question": f"{n}?", "answer": "yes" * (n % 3 + 1), "number": n}
        for n in range(200)
    ]
    names: dict[str, Any] = {
        "prompt": "question",
        "completion": "answer",
        "document_id": "number",
    }
    plain = Roxxel(tmp_path / "plain_*.rox")
    plain.write(rows, separator=0, **names)
    sink = sink_class()(
        tmp_path / "c_*.rox", separator=0, min_bytes_per_write=None, **names
    )

    ray.data.from_items(rows, override_num_blocks=4).write_datasink(sink)

    corpus = Roxxel(tmp_path / "c_*.rox")
    assert corpus.num_shards == 4
    assert corpus.tokens[:].tolist() == plain.tokens[:].tolist()
    assert sorted(corpus.columns) == ["id", "loss_mask"]
    for name in corpus.columns:
        assert list(corpus.column(name)[:]) == list(plain.column(name)[:])
    assert corpus.verify().ok


def test_chats_have_the_tokens_and_the_mask_of_a_plain_write(
    ray: Any, tmp_path: Path
) -> None:
    library: Any = import_module("tokenizers")
    roles = "user", "assistant"
    words = {word: number for number, word in enumerate(["?", *roles, "a", "b"])}
    made = library.Tokenizer(library.models.WordLevel(words, "?"))
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "words.json"))
    (tmp_path / "template").write_text(
        "{% for each in messages %}{{ each.role }} {{ each.content }}\n{% endfor %}"
    )
    said = zip(roles * 2, ("a " * 3, "b a", "?", "b"), strict=True)
    chat = [{"role": role, "content": text} for role, text in said]
    rows = [{"messages": chat[: 2 + n % 3]} for n in range(40)]
    options: dict[str, Any] = {
        "tokenizer": str(tmp_path / "words.json"),
        "chat": str(tmp_path / "template"),
        "separator": None,
    }
    plain = Roxxel(tmp_path / "plain_*.rox")
    plain.write(rows, **options)

    sink = sink_class()(tmp_path / "c_*.rox", min_bytes_per_write=None, **options)
    ray.data.from_items(rows, override_num_blocks=4).write_datasink(sink)

    corpus = Roxxel(tmp_path / "c_*.rox")
    assert corpus.num_shards == 4
    for one, other in (
        (corpus.tokens, plain.tokens),
        (corpus.column("loss_mask"), plain.column("loss_mask")),
    ):
        assert one[:].tolist() == other[:].tolist()
    assert plain.column("loss_mask")[:7].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_each_task_of_a_pipeline_packs_its_documents(ray: Any, tmp_path: Path) -> None:
    sink = sink_class()(
        tmp_path / "c_*.rox", separator=0, pack=33, min_bytes_per_write=None
    )

    of_texts(ray, TEXTS[::5]).write_datasink(sink)

    corpus = Roxxel(tmp_path / "c_*.rox")
    assert (corpus.unit, corpus.num_shards, corpus.num_cut) == (33, 4, 0)
    found = (bytes(document).rstrip(b"\0").decode() for document in corpus.documents)
    assert sorted(filter(None, found)) == sorted(TEXTS[::5])


def test_a_row_without_an_id_is_named_and_leaves_no_files(
    ray: Any, tmp_path: Path
) -> None:
    rows = [{"text": "a" * n, "id": None if n == 17 else n} for n in range(20)]

    # The null is in the second of two write tasks, or in the only one.
    for num_tasks, place in ((2, "task 1: row 7"), (1, "task 0: row 17")):
        sink = sink_class()(
            tmp_path / f"{num_tasks}" / "c_*.rox",
            separator=0,
            document_id="id",
            min_bytes_per_write=None,
        )
        message = rf"column 'text' in write {place}: id None is neither a text nor an"
        with pytest.raises(Exception, match=message):
            ray.data.from_items(rows, override_num_blocks=num_tasks).write_datasink(
                sink
            )

    # The other one of two tasks may still be at it.
    left = {path.suffix for path in (tmp_path / "1").iterdir()}
    assert left <= {".writers"}


def test_pairs_of_tokens_need_no_tokenizer(ray: Any, tmp_path: Path) -> None:
    rows = [{"p": [1, n], "c": np.array([7] * (n + 1))} for n in range(9)]
    sink = sink_class()(
        tmp_path / "c_*.rox", separator=0, prompt="p", completion="c", vocab_size=99
    )

    ray.data.from_items(rows, override_num_blocks=2).write_datasink(sink)

    corpus = Roxxel(tmp_path / "c_*.rox")
    assert [x.tolist() for x in corpus.documents] == [
        [1, n, *[7] * (n + 1)] for n in range(9)
    ]
    assert int(np.asarray(corpus.column("loss_mask")[:]).sum()) == 45 + 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "text"}, "prompt='text' is given without completion; pass the"),
        (
            {"column": "text", "prompt": "a", "completion": "b"},
            "field 'text' and prompt='a': a document has one field, or a prompt and",
        ),
        ({"document_id": "id"}, r"the data set has no columns 'id'; pass one of its"),
    ],
)
def test_columns_that_do_not_fit_are_one_sentence(
    ray: Any, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        of_texts(ray, TEXTS[:3]).write_datasink(
            sink_class()(tmp_path / "c_*.rox", separator=0, **options)
        )


def test_small_blocks_are_joined_into_one_shard(ray: Any, tmp_path: Path) -> None:
    sink = sink_class()(tmp_path / "web_*.rox")
    of_texts(ray, TEXTS).write_datasink(sink)

    assert sink.summary.num_shards == 1


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda n: [1, 2, n], "uint32"),
        (lambda n: np.arange(n + 1, dtype=np.uint16), "uint16"),
        (lambda n: np.full(3, n, np.uint8), "uint8"),
    ],
    ids=["lists", "arrays", "arrays of one length"],
)
def test_tokens_are_stored_unchanged(
    ray: Any, tmp_path: Path, make: Any, dtype: str
) -> None:
    made = [make(number) for number in range(20)]
    rows = ray.data.from_items([{"ids": each} for each in made])
    rows.write_datasink(sink_class()(tmp_path / "ids_*.rox", "ids"))

    corpus = Roxxel(tmp_path / "ids_*.rox")
    assert corpus.dtype == dtype
    assert [each.tolist() for each in corpus.documents] == [list(each) for each in made]


def test_append_makes_a_version_and_replace_deletes_the_old_shards(
    ray: Any, tmp_path: Path
) -> None:
    path = tmp_path / "web_*.rox"
    for exist in ("error", "append"):
        of_texts(ray, TEXTS, 2).write_datasink(sink_class()(path, exist=exist))
    assert texts_of(Roxxel(path)) == TEXTS * 2
    assert len(Roxxel(path).versions) == 2

    of_texts(ray, TEXTS[:3], 2).write_datasink(sink_class()(path, exist="replace"))
    assert texts_of(Roxxel(path)) == TEXTS[:3]
    assert len(shards_in(tmp_path)) == 1


def test_dead_tasks_leave_no_duplicate(ray: Any, tmp_path: Path) -> None:
    """Two tasks die: one within its rows, one after its shards are complete."""

    class Dying(sink_class()):
        def write(self, blocks: Any, ctx: Any) -> Any:
            mark = tmp_path / f"died.{ctx.task_idx}"
            if ctx.task_idx not in {1, 2} or mark.exists():
                return super().write(blocks, ctx)
            mark.touch()
            if ctx.task_idx == 1:
                super().write(blocks, ctx)
            else:
                super().write(rows_before_death(blocks), ctx)
            os._exit(1)

    def rows_before_death(blocks: Any) -> Any:
        yield from blocks
        os._exit(1)

    folder = tmp_path / "corpus"
    sink = Dying(folder / "web_*.rox", min_bytes_per_write=None)
    of_texts(ray, TEXTS).write_datasink(sink)

    assert (tmp_path / "died.1").exists()
    assert (tmp_path / "died.2").exists()
    corpus = Roxxel(folder / "web_*.rox")
    assert texts_of(corpus) == TEXTS
    assert {Path(each).name for each in corpus.paths} == shards_in(folder)
    assert not corpus.leftovers()


def test_driver_ignores_a_second_result_of_a_task(tmp_path: Path) -> None:
    """Results of one task that ran twice are equal but for the names of shards."""
    path = tmp_path / "web_*.rox"
    sink = sink_class()(path)
    arrow = import_module("pyarrow")
    block = arrow.table({"text": TEXTS})
    sink.on_write_start(block.schema)
    results = [sink.write([block], FakeContext(task)) for task in (1, 0, 1, 0)]
    assert len(shards_in(tmp_path)) == 4

    sink.on_write_complete(FakeResult(results))

    assert texts_of(Roxxel(path)) == TEXTS * 2
    assert len(shards_in(tmp_path)) == 2


def test_a_task_that_outlives_a_failed_pipeline_leaves_nothing(tmp_path: Path) -> None:
    sink = sink_class()(tmp_path / "web_*.rox")
    block = import_module("pyarrow").table({"text": TEXTS})
    sink.on_write_start(block.schema)

    def blocks() -> Iterator[Any]:
        yield block
        sink.on_write_failed(RuntimeError("another task failed"))
        raise KeyboardInterrupt  # As Ray tells a task to end.

    with pytest.raises(KeyboardInterrupt):
        sink.write(blocks(), FakeContext(0))

    assert {path.suffix for path in tmp_path.iterdir()} <= {".writers"}


class FakeContext:
    def __init__(self, task: int) -> None:
        self.task_idx = task


class FakeResult:
    def __init__(self, write_returns: list[Any]) -> None:
        self.write_returns = write_returns


def when_idle(act: Callable[[], object]) -> None:
    """Act once the tasks that Ray has told to end have ended."""
    deadline = time.monotonic() + 600
    while True:
        try:
            act()
        except BlockingIOError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_failed_pipeline_commits_nothing(ray: Any, tmp_path: Path) -> None:
    def fail_at_the_end(row: dict[str, Any]) -> dict[str, Any]:
        if row["text"] == "the last":
            raise RuntimeError("this row is bad")
        return row

    path = tmp_path / "web_*.rox"
    rows = of_texts(ray, [*TEXTS, "the last"]).map(fail_at_the_end)
    sink = sink_class()(path, min_bytes_per_write=None)
    with pytest.raises(Exception, match="this row is bad"):
        rows.write_datasink(sink)
    # Tasks that Ray has told to end may still be at it.
    with pytest.raises((FileNotFoundError, ShardError)):
        _ = Roxxel(path).num_tokens

    when_idle(
        lambda: Roxxel(path).write(["an earlier corpus"], max_shard_bytes=1 << 20)
    )
    for exist in ("append", "replace"):
        with pytest.raises(Exception, match="this row is bad"):
            rows.write_datasink(
                sink_class()(path, exist=exist, min_bytes_per_write=None)
            )
    assert texts_of(Roxxel(path)) == ["an earlier corpus"]
    when_idle(lambda: Roxxel(path).remove_leftovers())
    assert len(shards_in(tmp_path)) == 1


def test_write_to_a_bucket(ray: Any, bucket: Path) -> None:
    sink = sink_class()("s3://data/ray/web_*.rox", min_bytes_per_write=None)
    of_texts(ray, TEXTS).write_datasink(sink)

    assert texts_of(Roxxel("s3://data/ray/web_*.rox")) == TEXTS
    assert len(shards_in(bucket / "ray")) == 4


def test_wrong_data_is_named_in_one_sentence(ray: Any, tmp_path: Path) -> None:
    path = tmp_path / "web_*.rox"
    texts = of_texts(ray, TEXTS)

    def error_of(rows: Any, column: str = "text", **arguments: Any) -> str:
        with pytest.raises((ValueError, TypeError, FileExistsError)) as raised:
            rows.write_datasink(sink_class()(path, column, **arguments))
        error = getattr(raised.value, "cause", raised.value)
        [line] = LINE.findall(str(error))[:1]
        return line

    assert error_of(texts, "body") == (
        "the data set has no columns 'body'; pass one of its columns (text)"
    )
    numbers = ray.data.from_items([{"n": 1}])
    assert error_of(numbers, "n") == (
        "column 'n' holds int64; a document is a text or a list of tokens"
    )
    assert "there are no documents to write" in error_of(texts.filter(lambda _: False))
    assert error_of(texts, exist="keep") == (
        'exist must be "error", "replace" or "append", got \'keep\'; to keep a corpus, '
        "do not run the pipeline if the corpus exists"
    )
    large = ray.data.from_items([{"ids": [5, 70_000]}])
    assert error_of(large, "ids", vocab_size=100) == (
        "column 'ids' in write task 0: document 0: value 70000 is outside [0, 99] of "
        "uint16; raise vocab_size, or correct the document"
    )
    mixed = of_texts(ray, TEXTS, 1).union(ray.data.from_items([{"text": [1, 2]}]))
    assert "write text and ready-made tokens into different corpora" in error_of(
        mixed, min_bytes_per_write=None
    )
    texts.write_datasink(sink_class()(path))
    assert error_of(texts) == (
        f'{path}: the corpus exists already; use exist="replace" or exist="append", or '
        "write elsewhere"
    )


def loss_fn(model: Any, batch: Any) -> Any:
    logits = model(batch[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
    return jnp.mean(losses)


def test_filtered_and_deduplicated_text_trains_a_model(
    ray: Any, tmp_path: Path
) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    packages = Path(sysconfig.get_path("purelib"))
    files = sorted(map(str, [*library.glob("*.py"), *packages.glob("*/METADATA")]))
    assert len(files) > 100

    def read(row: dict[str, Any]) -> dict[str, Any]:
        text = Path(row["item"]).read_text("utf-8", errors="replace")
        return {"text": text, "key": hashlib.sha256(text.encode()).hexdigest()}

    def first(group: dict[str, Any]) -> dict[str, Any]:
        return {"text": group["text"][:1]}

    rows = ray.data.from_items([*files, *files[:50]], override_num_blocks=4)
    rows = rows.map(read).filter(lambda row: len(row["text"]) > 2000)
    rows = rows.groupby("key", num_partitions=2).map_groups(first)
    rows.write_datasink(sink_class()(tmp_path / "code_*.rox", separator=b"\0"))

    corpus = Roxxel(tmp_path / "code_*.rox")
    distinct = {read({"item": each})["text"] for each in files}
    assert sorted(texts_of(corpus)) == sorted(
        each for each in distinct if len(each) > 2000
    )
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Embed(256, 16, rngs=rngs), nnx.Linear(16, 256, rngs=rngs)
    )
    result = Trainer(
        model,
        nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param),
        Curriculum(corpus, [Phase(20, batch_size=4, seq_len=65)]),
        loss_fn,
        tmp_path / "run",
    ).run()
    assert result.step == 20


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a corpus, and check that no plan or record is left."""
    assert not [*folder.glob(".*.plan"), *folder.glob(".*.unit")]
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


def has_record(folder: Path) -> bool:
    return any(folder.glob(".*.unit"))


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[list[str], dict[str, bytes]]:
    """Return a command without its output, and the bytes that it has to give."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    chosen = random.Random(0)
    for number in range(24):
        rows = [json.dumps("ab" * chosen.randrange(900)) for _ in range(400)]
        (inputs / f"{number}.jsonl").write_text("\n".join(rows), "utf-8")
    options = ["inputs", "--unit-bytes", "100K", "--separator", "0"]
    command = [sys.executable, "-m", "roxxel_prepare", "write"]
    done = [*command, "one/c_*.rox", *options]
    subprocess.run(done, cwd=tmp_path, check=True, capture_output=True)
    expected = content(tmp_path / "one")
    assert len(expected) > 24
    return [*command, "by_ray/c_*.rox", *options], expected


def test_ray_writes_the_bytes_of_one_process_though_a_raylet_is_killed(
    cluster: Any, prepared: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    command, expected = prepared
    victim = cluster.add_node(**NODE)
    with subprocess.Popen(
        [*command, "--ray", cluster.address],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as driver:
        while driver.poll() is None and not has_record(tmp_path / "by_ray"):
            time.sleep(0.01)
        os.kill(raylet_of(victim), signal.SIGKILL)
        output, _ = driver.communicate()
    cluster.remove_node(victim, allow_graceful=False)
    # Ray counts a killed raylet for seconds more, and another test would find it.
    cluster.wait_for_nodes(timeout=120)

    assert driver.returncode == 0, output
    assert content(tmp_path / "by_ray") == expected


def test_write_continues_after_its_driver_was_killed(
    cluster: Any, prepared: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    command, expected = prepared
    command += ["--ray", cluster.address]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as driver:
        while driver.poll() is None and not has_record(tmp_path / "by_ray"):
            time.sleep(0.01)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL

    again = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "units are done already" in again.stderr
    assert content(tmp_path / "by_ray") == expected


def test_a_connected_program_writes_files_by_its_own_cluster(
    ray: Any, prepared: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    _, expected = prepared

    write_files(
        tmp_path / "by_ray/c_*.rox",
        tmp_path / "inputs",
        separator=0,
        unit_bytes=100 << 10,
        ray="",
    )

    assert ray.is_initialized()
    assert content(tmp_path / "by_ray") == expected


def test_ray_finds_what_one_process_finds(ray: Any, tmp_path: Path) -> None:
    del ray
    exam = " ".join(f"word{number}" for number in range(15))
    texts = [f"{text} {exam}" if n % 50 == 7 else text for n, text in enumerate(TEXTS)]
    corpus = str(tmp_path / "c_*.rox")
    Roxxel(corpus).write(texts, tokenizer="bytes")
    (tmp_path / "exam.txt").write_text(exam.upper())

    found = scan_corpus(corpus, tmp_path / "exam.txt", tmp_path / "one.json")
    by_ray = scan_corpus(
        corpus,
        tmp_path / "exam.txt",
        tmp_path / "ray.json",
        ray="",
        unit_bytes=4000,
    )

    assert isinstance(by_ray, Scan)
    assert by_ray.found[:, 2].tolist() == [7, 57, 107, 157]
    assert isinstance(found, Scan)
    assert (tmp_path / "ray.json").read_bytes() == (tmp_path / "one.json").read_bytes()


def test_ray_packs_the_bins_of_one_process(ray: Any, tmp_path: Path) -> None:
    del ray
    lines = "".join(json.dumps(text) + "\n" for text in TEXTS)
    (tmp_path / "inputs.jsonl").write_text(lines)
    options: dict[str, Any] = {"separator": 0, "unit_bytes": 3000, "pack": 129}

    for folder, where in (("by_ray", {"ray": ""}), ("here", {})):
        corpus = tmp_path / folder / "c_*.rox"
        write_files(corpus, tmp_path / "inputs.jsonl", **where, **options)

    assert content(tmp_path / "by_ray") == content(tmp_path / "here")
    assert Roxxel(tmp_path / "by_ray/c_*.rox").unit == 129


def test_units_of_workers_that_died_are_counted_as_retries(
    ray: Any, tmp_path: Path
) -> None:
    del ray

    class Writer:
        """Dies at the first attempt of unit 2, and at every attempt of unit 3."""

        def write_unit(self, number: int) -> int:
            mark = tmp_path / str(number)
            if number == 3 or (number == 2 and not mark.exists()):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return number

    runner = import_module("roxxel_prepare._run.ray_runner").RayRunner()
    outcomes = [*runner.run(Writer(), range(5))]

    assert sorted(each.record for each in outcomes if each.record is not None) == [
        *(0, 1, 2, 4)
    ]
    retries = [each.number for each in outcomes if each.record is each.error is None]
    assert sorted(retries) == [2, 3, 3, 3]
    [error] = [each.error for each in outcomes if each.error]
    assert str(error).startswith("the task of unit 3 ended early 4 times (")


def test_an_address_without_a_cluster_is_one_sentence(
    prepared: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    command, _ = prepared
    for address in ("nowhere", "127.0.0.1:9"):
        done = subprocess.run(
            [*command, "--ray", address],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert f"--ray {address}: no cluster of Ray answers" in done.stderr
        assert len(done.stderr.splitlines()) == 1
