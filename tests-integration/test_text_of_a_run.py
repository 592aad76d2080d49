"""`roxxel show --text` and `where --text` on a corpus of a Hugging Face tokenizer."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer, open_run
from roxxel.cli import main

from .runs import END, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

NEEDLE = "le café de l'aiguille, naïve"
WORDS = ["a", "café", "in", "the", "naïve", "old", "town", "sells", "coffee"]


def loss_fn(model: Any, batch: Any) -> Any:
    return jnp.square(model(batch) - 1.0).mean()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return a run on a tokenized corpus, and the tokenizer."""
    folder = tmp_path_factory.mktemp("texts")
    chosen = random.Random(0)
    texts = [" ".join(chosen.choices(WORDS, k=40)) for _ in range(30)]
    texts[11] = f"{texts[11]} {NEEDLE} {texts[12]}"
    texts[20] = f"{texts[20]} spells {END} in its text"
    tokenizer = write_tokenizer(folder / "tokenizer.json", texts)
    corpus = Roxxel(folder / "web_*.rox")
    corpus.write(texts, tokenizer=folder / "tokenizer.json")
    model = nnx.Embed(400, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(corpus, [Phase(60, 2, 33)]),
        loss_fn,
        folder / "run",
        checkpoint_every=100,
    ).run()
    return folder / "run", tokenizer


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """Run a command with `--json`, and return its last line."""
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_show_decodes_the_tokens_of_each_row_with_the_ends_of_documents(
    trained: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run, tokenizer = trained
    sampler = open_run(run).sampler()

    texts: list[str] = []
    for step in range(60):
        found = said(capsys, "show", run, "--step", step, "--text")
        for row, tokens in zip(found["rows"], sampler.batch(step), strict=True):
            assert row["text"] == tokenizer.decode(
                tokens.tolist(), skip_special_tokens=False
            )
            texts.append(row["text"])

    assert any(END in text for text in texts)


def test_where_finds_a_text_that_was_tokenized_in_a_document(
    trained: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run, tokenizer = trained
    # The first and the last word have other tokens inside a document.
    wanted = NEEDLE[len("le") : -len(", naïve")]

    found = said(capsys, "where", run, "--text", wanted)

    assert found["documents"] == [11]
    sampler = open_run(run).sampler()
    assert found["places"]
    for place in found["places"]:
        stop = place["column"] + place["stop"] - place["start"]
        tokens = sampler.batch(place["step"])[place["row"], place["column"] : stop]
        ids = tokenizer.encode(wanted).ids
        offset = place["start"] - found["start"]
        assert tokens.tolist() == ids[offset : offset + len(tokens)]


def test_where_finds_the_spelling_of_a_special_token_and_not_the_token(
    trained: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained

    assert main(["where", str(run), "--text", f" spells {END}", "--json"]) == 0

    count, line = capsys.readouterr().out.splitlines()
    assert json.loads(count) == {"source": "self", "found": 1, "in_documents": 1}
    assert json.loads(line)["documents"] == [20]


def test_a_tokenizer_that_changed_since_is_refused(
    trained: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    other = tmp_path / "other.json"
    write_tokenizer(other, ["quite another text"])

    for command in (["show", "--step", "0", "--text"], ["where", "--text", "a"]):
        name, *options = command
        arguments = [name, str(run), *options, "--tokenizer", str(other)]
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert f"the tokenizer of source 'self' cannot be loaded ({other}: is " in error
