"""`roxxel show` and `roxxel where`: what is in a batch, and which batches hold it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer, open_run
from roxxel.cli import main
from roxxel_store.screen import shown
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    from pathlib import Path

SENTENCE = b"a needle in the haystack"


def loss_fn(model: Any, batch: Any) -> Any:
    return jnp.square(model(batch) - 1.0).mean()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run on corpora of bytes, one of which was appended to since."""
    folder = tmp_path_factory.mktemp("bytes")
    web, code = Roxxel(folder / "web_*.rox"), Roxxel(folder / "code.rox")
    documents = [f"document {n} of the web. ".encode() * 3 for n in range(20)]
    documents[7] = SENTENCE + b" of the web"
    web.write(documents)
    code.write([f"def f{n}(): return {n}\n".encode() * 4 for n in range(20)])
    model = nnx.Embed(256, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(web, [Phase(70, 2, 33, {"self": 2, "code": 1})], {"code": code}),
        loss_fn,
        folder / "run",
        checkpoint_every=100,
    ).run()
    web.write([SENTENCE] * 3, exist="append")
    return folder / "run"


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that succeeds, and return what it printed."""
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 1
    return capsys.readouterr().err


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_show_prints_the_rows_of_a_step(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler = open_run(run).sampler()
    place = sampler.locate(5, 1)

    text = said(capsys, "show", run, "--step", 5, "--row", 1, "--text")

    documents = ", ".join(map(str, place.documents))
    head, row, *shown = text.splitlines()
    assert head == "step 5: 2 x 33 tokens, phase 0, trained"
    assert row == (
        f"row 1: {place.source} tokens [{place.start}, {place.stop}), "
        f"document{'s' * (len(place.documents) > 1)} {documents}"
    )
    batch = sampler.batch(5)[1].astype(np.uint8).tobytes().decode()
    assert "\n".join(line[2:] for line in shown) == batch
    [found] = lines(said(capsys, "show", run, "--step", 5, "--text", "--json"))
    assert found["is_trained"]
    assert [row["row"] for row in found["rows"]] == [0, 1]
    assert found["rows"][1]["text"] == batch
    newest = open_run(run).trained_steps - 1
    last = said(capsys, "show", run, "--step", "last", "--json")
    assert last == said(capsys, "show", run, "--step", newest, "--json")


def test_where_finds_a_document_in_every_epoch(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler = open_run(run).sampler()
    start, stop, _ = open_run(run).corpora()["self"].document_range(7)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    expected = list(sampler.where("self", start, stop))  # pyright: ignore[reportUnknownArgumentType]

    [found] = lines(said(capsys, "where", run, "--document", "self:7", "--json"))

    assert (found["source"], found["documents"]) == ("self", [7])
    assert [(p["step"], p["row"], p["column"]) for p in found["places"]] == [
        (o.step, o.row, o.column) for o in expected
    ]
    assert {p["epoch"] for p in found["places"]} >= {0, 1}
    assert all(p["is_trained"] for p in found["places"])
    first = expected[0]
    until = first.step + 1
    text = said(capsys, "where", run, "--document", "self:7", "--until", until)
    assert f"  epoch 0: step {first.step} row {first.row} columns [" in text
    part, size = first.stop - first.start, stop - start
    assert part < size
    assert f"  {part} of {size} tokens are read before step {until} (" in text
    text = said(capsys, "where", run, "--document", "self:7", "--until", first.step)
    assert f"  no step before step {first.step} reads these tokens" in text
    assert f"  {size} of {size} tokens are read (100.0 %)" in said(
        capsys, "where", run, "--document", "self:7"
    )
    assert found["read_tokens"] == found["trained_tokens"] == size
    tokens = f"self:[{start},{stop})"
    [same] = lines(said(capsys, "where", run, "--tokens", tokens, "--json"))
    assert same == found


def test_where_finds_a_text_in_the_version_that_the_run_reads(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SENTENCE.decode()
    ids = " ".join(map(str, SENTENCE))

    *counts, found = lines(said(capsys, "where", run, "--text", text, "--json"))
    by_ids = lines(said(capsys, "where", run, "--ids", ids, "--json"))

    assert [*counts, found] == by_ids
    assert counts == [
        {"source": "self", "found": 1, "in_documents": 1},
        {"source": "code", "found": 0, "in_documents": 0},
    ]
    assert found["documents"] == [7]
    for place in found["places"]:
        batch = open_run(run).sampler().batch(place["step"])
        stop = place["column"] + place["stop"] - place["start"]
        read = batch[place["row"], place["column"] : stop].astype(np.uint8).tobytes()
        offset = place["start"] - found["start"]
        assert read == SENTENCE[offset : offset + len(read)]
    first = found["places"][0]["step"]
    assert said(capsys, "where", run, "--text", text, "--until", first) == (
        "self: the text stands 1 time in 1 document\n"
        "code: the text stands 0 times in 0 documents\n"
        "not shown: 1 place with these tokens, which no step before step "
        f"{first} reads\n"
    )
    # Neither has JSON a line for a place that is never read.
    until = ["--text", text, "--until", first, "--json"]
    assert lines(said(capsys, "where", run, *until)) == counts


def test_where_says_what_it_searched_if_it_finds_nothing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "where", run, "--text", "a NEEDLE in the haystack")

    assert "no source of the run holds this text" in text
    assert "self, code; exactly" in text
    assert "capitals" in text
    assert main(["where", str(run), "--text", "no such text", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [each["found"] for each in lines(out)] == [0, 0]
    assert "no source of the run holds this text" in err


def test_where_counts_every_place_and_lists_as_many_as_the_limit(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of twenty documents one is the needle; the others have the word three times.
    counted = "self: the text stands 57 times in 19 documents\n"

    ten = said(capsys, "where", run, "--text", "document")
    three = said(capsys, "where", run, "--text", "document", "--limit", 3)
    every = said(capsys, "where", run, "--text", "document", "--limit", 99)

    assert ten.startswith(counted)
    assert [each.count("self tokens [") for each in (ten, three)] == [10, 3]
    assert "not shown: 54 more places; --limit N" in three
    unread = every.count("with these tokens, which no step reads")
    assert every.count("self tokens [") == 57 or unread == 1
    assert "more place" not in every
    listed = lines(said(capsys, "where", run, "--text", "document", "--json"))
    assert sum("places" in each for each in listed) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["where", "--document", "web:3"], "the run has no source 'web'; its sources "),
        (["where", "--document", "self:20"], "source 'self': "),
        (["where", "--tokens", "self:[0,99999)"], "are outside source 'self', which"),
        (["where", "--tokens", "self:0,9", "--until", "999"], "step 999 is outside"),
        (["where", "--text", ""], "--text is empty; give a text to find"),
        (["show", "--step", "70"], "step 70 is outside the run, which has 70 steps"),
        (["show", "--step", "0", "--row", "2"], "row 2 is outside the batch of step"),
        (["show", "--step", "0", "--source", "self=gone.rox"], "source 'self' of the"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    command, *rest = arguments

    error = refused(capsys, command, run, *rest)

    assert error.startswith("roxxel: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--document", "web"],
        ["--tokens", "web:[5"],
        ["--tokens", "web:[5,5)"],
        ["--ids", "5 x"],
        ["--ids", "99999999999999999999"],
        ["--text", "a", "--source", "web"],
        ["--text", "a", "--document", "web:1"],
        [],
    ],
)
def test_a_malformed_argument_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["where", "run", *arguments])

    assert stopped.value.code == 2
    assert "usage: roxxel where" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["0-3", "1,2", "first", "-1"])
def test_a_step_to_show_is_a_number_or_last(
    step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["show", "run", f"--step={step}"])

    assert f"{step!r} is neither a step nor `last`" in capsys.readouterr().err


def test_a_corpus_without_a_tokenizer_shows_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Roxxel(tmp_path / "ids.rox")
    corpus.write([np.arange(200) % 50], vocab_size=50)
    model = nnx.Embed(50, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    curriculum = Curriculum(corpus, [Phase(2, 1, 9)])
    Trainer(model, optimizer, curriculum, loss_fn, tmp_path / "run").run()

    error = refused(capsys, "show", tmp_path / "run", "--step", 0, "--text")

    assert "source 'self' records no tokenizer; pass --tokenizer PATH" in error
    with pytest.raises(RunFolderError):
        open_run(tmp_path / "elsewhere")


@pytest.fixture(scope="module")
def named_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run on a corpus whose documents have ids; two have the same one."""
    folder = tmp_path_factory.mktemp("named")
    web = Roxxel(folder / "web_*.rox")
    rows = [{"text": f"document {n} " * 3, "id": f"a:{n % 19}"} for n in range(20)]
    web.write(rows, document_id="id")
    model = nnx.Embed(256, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(web, [Phase(2, 2, 33)]),
        loss_fn,
        folder / "run",
        checkpoint_every=100,
    ).run()
    return folder / "run"


def test_show_prints_the_ids_of_documents(
    named_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = open_run(named_run).sampler().locate(1, 0).documents

    text = said(capsys, "show", named_run, "--step", 1, "--row", 0)
    [found] = lines(said(capsys, "show", named_run, "--step", 1, "--row", 0, "--json"))

    listed = ", ".join(f"{each} (a:{each % 19})" for each in documents)
    assert text.splitlines()[1].endswith(f" {listed}")
    assert found["rows"][0]["names"] == [f"a:{each % 19}" for each in documents]


def test_where_finds_documents_by_their_id(
    named_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_number = said(capsys, "where", named_run, "--document", "self:3")

    assert said(capsys, "where", named_run, "--document", "self:a:3") == by_number
    assert by_number.startswith("self tokens [")
    assert ", document 3 (a:3)\n" in by_number
    both = lines(said(capsys, "where", named_run, "--document", "self:a:0", "--json"))
    assert [each["documents"] for each in both] == [[0], [19]]
    assert [each["names"] for each in both] == [["a:0"], ["a:0"]]


def test_a_document_that_is_not_there_is_an_error(
    named_run: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        "no document has the name 'a:77'; print the names with `roxxel format cat "
        "--names`"
    ) in refused(capsys, "where", named_run, "--document", "self:a:77")
    assert (
        "documents have no names, so 'x' chooses none; give a number, or write the "
        "corpus with --document-id or --path"
    ) in refused(capsys, "where", run, "--document", "self:x")


def test_show_names_the_tokens_that_a_column_leaves_out_of_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web = Roxxel(tmp_path / "web_*.rox")
    web.write([np.arange(400) % 50], vocab_size=50)
    is_learned = np.arange(400) % 8 > 3  # of eight tokens, four are a prompt
    web.write_column("loss_mask", is_learned, dtype=np.uint8)
    model = nnx.Embed(50, 2, rngs=nnx.Rngs(0))

    def masked_loss(model: Any, batch: Any) -> Any:
        mask = batch["loss_mask"]
        loss = (jnp.square(model(batch["tokens"])).mean(-1) * mask).sum()
        return loss / jnp.maximum(mask.sum(), 1), {"loss_weight": mask.sum()}

    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(web, [Phase(2, 2, 8)]),
        masked_loss,
        tmp_path / "run",
        fields=["tokens", "loss_mask"],
    ).run()

    shown = said(capsys, "show", tmp_path / "run", "--step", 1, "--json")

    for row in json.loads(shown)["rows"]:
        masked = [token for span in row["masked"] for token in range(*span)]
        window = range(row["start"], row["stop"])
        assert masked == [token for token in window if not is_learned[token]]


@pytest.mark.parametrize(
    "command",
    [
        *(["show", "--step", "0"], ["show", "--step", "0", "--text"]),
        *(["where", "--text", "page"], ["where", "--document", "self:1"]),
        ["where", "--document", "self:\x1b[2J"],
    ],
)
def test_what_a_document_and_its_name_hold_controls_no_terminal(
    hostile_run: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command

    main([name, str(hostile_run), *options])

    printed = "".join(capsys.readouterr())
    assert printed == shown(printed)
    assert r"\x1b[2J" in printed


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run on web pages whose texts and ids would control a terminal."""
    folder = tmp_path_factory.mktemp("hostile")
    web = Roxxel(folder / "web_*.rox")
    text = "page \x1b[2J\x1b]52;c;bHM=\x07\x9b2J\u202etxt.exe\u2066\r"
    web.write(
        [{"text": text, "id": f"{n}\x1b[2J\x07\n\u202e"} for n in range(20)],
        document_id="id",
        tokenizer="bytes",
    )
    model = nnx.Embed(257, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(web, [Phase(2, 2, 99)]),
        loss_fn,
        folder / "run",
    ).run()
    return folder / "run"
