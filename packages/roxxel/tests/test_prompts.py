"""What stands before a model begins as the documents that the model has learned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from roxxel.evaluate.prompts import Prompt, Prompts
from roxxel.evaluate.sampling import sample_tokens
from roxxel_format import Roxxel
from roxxel_format.texts import text_codec

from .tokenizer_kinds import BOS, EOS, WORDS, tokenizer_kinds

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format.texts import TextCodec

KINDS = tokenizer_kinds()
TEXTS = [
    " ".join(WORDS[(start + n) % len(WORDS)] for n in range(length))
    for start in range(len(WORDS))
    for length in (1, 2, 5)
]


def written(path: Path, kind: str, **options: Any) -> tuple[Roxxel, TextCodec]:
    """Return a corpus of the texts, and its codec."""
    corpus, tokenizer = Roxxel(path / "c_*.rox"), KINDS[kind]
    if kind == "words without special tokens":
        options.setdefault("separator", None)
    corpus.write(TEXTS, tokenizer=tokenizer, **options)
    given = tokenizer if hasattr(tokenizer, "to_str") else None
    codec = text_codec(corpus, given)
    assert codec is not None
    return corpus, codec


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_the_beginning_of_the_document_of_its_text(
    kind: str, tmp_path: Path
) -> None:
    corpus, codec = written(tmp_path, kind)
    prompts = Prompts(codec, corpus.separator)

    for text, document in zip(TEXTS, corpus.documents, strict=True):
        prompt = prompts.of(text).tokens
        assert prompt + codec.after == document.tolist()
        # The first words of a text are the beginning of its document too.
        start = prompts.of(text.rpartition(" ")[0] or text).tokens
        assert document[: len(start)].tolist() == start
        assert prompts.text(prompts.of(text), []).decode() == text.strip() or (
            kind.startswith("words")
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_the_beginning_of_what_is_trained_as_a_prompt(
    kind: str, tmp_path: Path
) -> None:
    rows = [{"p": "alpha beta", "c": "gamma"}, {"p": "delta", "c": "alpha"}]
    corpus, tokenizer = Roxxel(tmp_path / "c_*.rox"), KINDS[kind]
    options: dict[str, Any] = {}
    if kind == "words without special tokens":
        options["separator"] = None
    corpus.write(rows, tokenizer=tokenizer, prompt="p", completion="c", **options)

    codec = text_codec(corpus, tokenizer if hasattr(tokenizer, "to_str") else None)

    assert codec is not None
    for row, document in zip(rows, corpus.documents, strict=True):
        prompt = Prompts(codec).of(row["p"]).tokens
        assert document[: len(prompt)].tolist() == prompt


def test_ready_made_tokens_say_themselves_how_documents_begin(tmp_path: Path) -> None:
    tokenizer = KINDS["words with BOS"]
    bos, eos = (int(tokenizer.token_to_id(name)) for name in (BOS, EOS))
    for number, (before, after) in enumerate(
        [([bos], []), ([], []), ([eos], []), ([], [eos])]
    ):
        corpus = Roxxel(tmp_path / f"{number}_*.rox")
        corpus.write([[*before, 3, 4, *after], [*before, 5, *after]], dtype="uint16")

        codec = text_codec(corpus, tokenizer)

        assert codec is not None
        assert codec.before == before


def test_texts_are_encoded_as_the_write_of_the_corpus_did(tmp_path: Path) -> None:
    text = f"alpha {EOS} beta"
    for is_token in (False, True):
        corpus = Roxxel(tmp_path / f"{is_token}_*.rox")
        tokenizer = KINDS["byte-level BPE with BOS"]
        corpus.write([text], tokenizer=tokenizer, special_tokens=is_token)

        codec = text_codec(corpus, tokenizer)

        assert codec is not None
        assert Prompts(codec).of(text).tokens == corpus.documents[0].tolist()


def test_the_tokens_before_documents_may_be_typed_once(tmp_path: Path) -> None:
    corpus, _ = written(tmp_path, "words with BOS")
    codec = text_codec(corpus, KINDS["words with BOS"], special_tokens=True)
    assert codec is not None
    prompts = Prompts(codec)

    for text in ("alpha beta", f"{BOS} alpha beta"):
        assert prompts.typed(text).tokens == corpus.documents[1].tolist()
    assert prompts.typed("").tokens == prompts.typed(BOS).tokens == codec.before


@given(
    start=st.lists(st.integers(0, 9), max_size=4),
    text=st.lists(st.integers(10, 99), max_size=9),
    room=st.integers(1, 14),
)
def test_a_prompt_that_is_too_long_loses_its_oldest_text(
    start: list[int], text: list[int], room: int
) -> None:
    prompt = Prompt(start, text)

    short = prompt.shortened(room)

    assert len(short.tokens) == min(room, len(prompt.tokens))
    assert text[len(text) - len(short.text) :] == short.text
    assert short.start == start[len(start) - len(short.start) :]
    assert short.start == start or not short.text


class Counting(nnx.Module):
    """Says the word after the last one; knows nothing if BOS does not come first.

    Takes at most 8 tokens.
    """

    config = SimpleNamespace(context=8)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        assert tokens.shape[1] <= self.config.context
        sure = 10.0 * (tokens[:, :1] == 0)[..., None]
        after = jnp.maximum(tokens, 1) + 1
        return jax.nn.one_hot(jnp.where(after > 5, 2, after), 6) * sure


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    from roxxel.evaluate.harness import HarnessModel

    _, codec = written(tmp_path, "words with BOS")
    return HarnessModel(Counting(), codec, end=1, context=8, batch_size=2)


def test_an_evaluation_begins_as_documents_do(harness: Any) -> None:
    scores = harness.loglikelihood(
        [
            asked("alpha beta", " gamma"),
            asked("", "alpha beta"),
            asked(" ", "alpha"),
            asked(f"{' '.join(WORDS * 3)} alpha", " beta"),
        ]
    )
    rolling = harness.loglikelihood_rolling([asked("alpha beta gamma delta")])

    assert [is_greedy for _, is_greedy in scores] == [True] * 4
    assert [score for score, _ in scores] == pytest.approx([0] * 4, abs=0.01)
    assert rolling == pytest.approx([0], abs=0.01)


@pytest.mark.parametrize("most", [1, 3, 4, 7, 8, 9, 256])
@pytest.mark.parametrize("num_words", [1, 4, 7, 40])
def test_a_task_that_asks_for_the_whole_context_keeps_its_prompt(
    harness: Any, most: int, num_words: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [WORDS[n % 4] for n in range(num_words)]
    asks = [asked(" ".join(words), {"until": [], "max_gen_toks": most})]

    [text] = harness.generate_until(asks)

    added, said = text.split(), capsys.readouterr().err
    assert added == [WORDS[n % 4] for n in range(num_words, num_words + len(added))]
    assert added
    assert ("answers" in said) == (len(added) < most)
    assert ("prompts" in said) == (num_words + 1 + len(added) > 8)


def test_a_long_sample_goes_on_with_the_newest_tokens() -> None:
    seen = [0, 2, 3, 4]
    for _ in range(20):
        window = jnp.asarray([seen[-8:]])
        seen.append(int(Counting()(window)[0, -1].argmax()))

    added = sample_tokens(Counting(), seen[:4], 20, temperature=0)
    of_long = sample_tokens(Counting(), [0] * 30 + seen[:4], 3, temperature=0)

    assert added.tolist() == seen[4:]
    assert of_long.shape == (3,)
