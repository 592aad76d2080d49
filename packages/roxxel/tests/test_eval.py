"""The model of a run is evaluated as a person would by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from lm_eval.tasks import TaskManager
from roxxel.cli import main
from roxxel.cli._arguments import model_of
from roxxel.evaluate.results import evaluations_of
from roxxel.evaluate.scoring import Scorer
from roxxel.models import Llama, LlamaConfig
from roxxel_format import Roxxel
from roxxel_format.texts import text_codec

from .runs import said
from .test_sample import TEXT_RUN

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format.texts import TextCodec

CONTEXT = 32
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {path}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
metadata: {{version: 3}}
"""


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    corpus = Roxxel(tmp_path_factory.mktemp("codec") / "bytes.rox")
    corpus.write([b"to be"], separator=0)
    codec = text_codec(corpus)
    assert codec is not None
    return codec


@pytest.fixture(scope="module")
def model() -> Llama:
    config = LlamaConfig.tiny(
        vocab_size=256,
        width=16,
        hidden=24,
        num_layers=1,
        num_heads=2,
        context=CONTEXT,
        init_std=0.5,  # large, so that the model is sure of something
    )
    return Llama(config, rngs=nnx.Rngs(0))


def likelihoods(model: Llama, tokens: list[int]) -> np.ndarray[Any, Any]:
    """Return the log-probability of each token but the first, one row at a time."""
    row = np.zeros((1, CONTEXT), np.int32)  # one shape; no token depends on a later one
    row[0, : len(tokens) - 1] = tokens[:-1]
    rows = np.asarray(logarithms(model, row))[0]
    return rows[np.arange(len(tokens) - 1), tokens[1:]]


@nnx.jit
def logarithms(model: Llama, rows: Any) -> jax.Array:
    return jax.nn.log_softmax(model(rows))


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


def harness(model: nnx.Module, codec: TextCodec) -> Any:
    from roxxel.evaluate.harness import HarnessModel

    return HarnessModel(model, codec, end=0, context=CONTEXT, batch_size=3)


def test_a_continuation_is_scored_as_by_hand(model: Llama, codec: TextCodec) -> None:
    texts = [("to be", " or"), ("", "not"), ("ab" * 40, "b"), ("x", "y" * 7)]

    found = harness(model, codec).loglikelihood([asked(*text) for text in texts])

    for (context, added), (score, _) in zip(texts, found, strict=True):
        tokens = [*(context.encode() or b"\0"), *added.encode()][-CONTEXT - 1 :]
        by_hand = likelihoods(model, tokens)[-len(added) :].sum()
        assert score == pytest.approx(by_hand, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_a_whole_text_is_scored_once_in_windows(
    model: Llama, codec: TextCodec, length: int
) -> None:
    text = bytes(np.random.default_rng(0).integers(97, 123, length).tolist())
    tokens = [0, *text]

    [found] = harness(model, codec).loglikelihood_rolling([asked(text.decode())])

    # The first window predicts all its tokens, each later one those that are left, with
    # as much context as fits.
    by_hand = likelihoods(model, tokens[: CONTEXT + 1]).sum()
    for end in range(2 * CONTEXT + 1, length + CONTEXT + 1, CONTEXT):
        last = min(end, length + 1)
        new = last - (end - CONTEXT)
        by_hand += likelihoods(model, tokens[last - CONTEXT - 1 : last])[-new:].sum()
    assert found == pytest.approx(by_hand, rel=1e-4, abs=1e-3)


class Alphabet(nnx.Module):
    """Says the letter after the last one, and after z the end of the document."""

    def __call__(self, tokens: jax.Array) -> jax.Array:
        after = jnp.where(tokens == ord("z"), 0, tokens + 1)
        return 9.0 * jax.nn.one_hot(after, 256)


def test_texts_are_generated_up_to_where_each_stops(codec: TextCodec) -> None:
    asks = [
        asked("ab", {"until": ["f"]}),
        asked("ab", {"until": ["gh"], "max_gen_toks": 3}),
        asked("x", {"until": "never"}),
        asked("q" * 90 + "a", {"until": ["e"], "max_gen_toks": 9}),
        asked("", {"until": ["\x03"]}),
    ]

    found = harness(Alphabet(), codec).generate_until(asks)

    assert found == ["cde", "cde", "yz", "bcd", "\x01\x02"]


def test_a_greedy_continuation_is_told(codec: TextCodec) -> None:
    found = harness(Alphabet(), codec).loglikelihood(
        [asked("ab", "cd"), asked("ab", "ce")]
    )

    assert [is_greedy for _, is_greedy in found] == [True, False]


def test_what_does_not_fit_is_named(codec: TextCodec) -> None:
    with pytest.raises(ValueError, match=r"40 of 41 tokens .* 32"):
        harness(Alphabet(), codec).loglikelihood([asked("a", "b" * 40)])
    drawn = {"do_sample": True, "top_p": 0.5}
    with pytest.raises(ValueError, match=r"top_p=0\.5"):
        harness(Alphabet(), codec).generate_until([asked("a", drawn)])


def test_scores_do_not_depend_on_the_batch(model: Llama) -> None:
    sequences = [([1, 2, 3, 4], 2), ([5] * 30, 7), ([9, 8], 1)]

    one = Scorer(model, context=CONTEXT, batch_size=1).scores(sequences)
    many = Scorer(model, context=CONTEXT, batch_size=8).scores(sequences)

    for a, b in zip(one, many, strict=True):
        assert a.log_likelihood == pytest.approx(b.log_likelihood, abs=1e-5)
        assert a.is_greedy == b.is_greedy


def test_a_run_is_evaluated_on_a_task_of_its_own(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    Roxxel(tmp_path / "text.rox").write([b"to be or not to be"] * 9, separator=0)
    (tmp_path / "run.toml").write_text(TEXT_RUN)
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    rows = [{"text": "to be", "answer": " or"}, {"text": "or not", "answer": " to"}]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "own.yaml").write_text(
        TASK.format(name="hamlet", path=questions, kind="loglikelihood", more="")
    )
    capsys.readouterr()
    run = str(tmp_path / "run")
    wanted = ("--tasks", "hamlet", "--include", str(tasks))

    (tmp_path / "exam.txt").write_text("To be, or not to be?")
    receipt = str(tmp_path / "scan.json")
    exam = ("--against", str(tmp_path / "exam.txt"), "--out", receipt)
    said(capsys, "scan", str(tmp_path / "text.rox"), *exam)

    read: list[int | None] = []
    monkeypatch.setattr(
        "roxxel.cli._eval.model_of",
        lambda of_run, step, model: read.append(step) or model_of(of_run, step, model),
    )

    shown = json.loads(said(capsys, "eval", run, *wanted, "--scan", receipt, "--json"))

    assert read == [2]  # the step that is named, whatever the run saves meanwhile
    [(step, results)] = evaluations_of(tmp_path / "run").items()
    assert step == 2
    assert results["hamlet"]["samples"] == 2
    assert results["hamlet"]["version"] == 3
    assert results["hamlet"]["metrics"]["perplexity"]["value"] > 1
    [reads] = shown.pop("scans")
    assert (reads["source"], reads["until"], reads["steps"]) == ("self", 2, [0, 1])
    assert shown == {"step": 2, "tasks": results}

    page = tmp_path / "page.html"
    said(capsys, "report", run, "--out", str(page))
    shown_value = f"{results['hamlet']['metrics']['acc']['value']:.4f}"
    assert "Benchmarks" in page.read_text()
    assert shown_value in page.read_text()
    (tmp_path / "run" / "evals" / "9.json").write_text("{")
    assert list(evaluations_of(tmp_path / "run")) == [2]

    # To find all tasks of the harness would take 15 s.
    monkeypatch.setattr(
        "roxxel.evaluate.harness.TaskManager",
        lambda include_path, **_: TaskManager(
            include_path=include_path, include_defaults=False
        ),
    )
    assert main(["eval", run, "--tasks", "hamlett", "--include", str(tasks)]) == 1
    error = capsys.readouterr().err
    assert "'hamlett'" in error
    assert "did you mean 'hamlet'?" in error
