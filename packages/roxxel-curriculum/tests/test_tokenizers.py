"""Sources whose ids mean other text are refused, or noted if nothing is certain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, CurriculumError, Phase, Schedule
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from pathlib import Path

PHASES = [Phase(2, 2, 9, {"self": 1, "code": 1})]
BPE = "gpt2@0123"


class Recorded(Roxxel):
    """A corpus with a recorded tokenizer, without the need for its library."""

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of a tokenizer."""
        return BPE

    def with_version(self, fingerprint: str) -> Recorded:
        """Return this corpus, which has one version."""
        del fingerprint
        return self


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Roxxel]:
    folder = tmp_path_factory.mktemp("corpora")
    ids = np.arange(3000) % 900
    bpe, wide = Roxxel(folder / "ids.rox"), Roxxel(folder / "wide.rox")
    bpe.write([ids], vocab_size=50_000)
    wide.write([ids + 100], vocab_size=200_000)
    text, bytes_ = Roxxel(folder / "text.rox"), Roxxel(folder / "bytes.rox")
    text.write(["some text " * 300])
    bytes_.write(["other text " * 300], tokenizer="bytes")
    recorded = Recorded(folder / "ids.rox")
    names = ("ids", "wide", "text", "bytes", "recorded")
    return dict(zip(names, (bpe, wide, text, bytes_, recorded), strict=True))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("text", "ids"),
        ("text", "recorded"),
        ("bytes", "ids"),
        ("recorded", "bytes"),
        ("ids", "text"),
    ],
)
def test_bytes_beside_larger_ids_are_an_error(
    corpora: dict[str, Roxxel], first: str, second: str
) -> None:
    with pytest.raises(CurriculumError) as caught:
        Curriculum(corpora[first], PHASES, {"code": corpora[second]})

    for words in ("'self'", "'code'", "different text"):
        assert words in str(caught.value)


def test_ids_that_mean_the_same_are_accepted_if_declared(
    corpora: dict[str, Roxxel],
) -> None:
    text, ids = corpora["text"], corpora["ids"]
    with pytest.raises(CurriculumError, match=r"declare .* tokenizers=\{'self': 'NAME"):
        Curriculum(text, PHASES, {"code": ids})

    declared = {"self": "mine", "code": "mine"}
    plan = Curriculum(text, PHASES, {"code": ids}, tokenizers=declared).plan()

    assert plan.notes_on_sources == ()


@pytest.mark.parametrize(
    ("first", "second"), [("text", "bytes"), ("bytes", "text"), ("ids", "ids")]
)
def test_sources_that_agree_have_no_note(
    corpora: dict[str, Roxxel], first: str, second: str
) -> None:
    plan = Curriculum(corpora[first], PHASES, {"code": corpora[second]}).plan()

    assert plan.notes_on_sources == ()


@pytest.mark.parametrize(
    ("first", "second"), [("recorded", "ids"), ("ids", "recorded"), ("ids", "wide")]
)
def test_a_source_that_records_no_tokenizer_is_noted_in_the_plan(
    corpora: dict[str, Roxxel], first: str, second: str
) -> None:
    plan = Curriculum(corpora[first], PHASES, {"code": corpora[second]}).plan()

    (note,) = plan.notes_on_sources
    assert note in " ".join(str(plan).split())
    for words in ("no tokenizer recorded", "'self'", "'code'", "declare "):
        assert words in note


@pytest.mark.parametrize(
    ("tokenizers", "error", "words"),
    [
        ({"kode": "a"}, CurriculumError, "name unknown source 'kode'"),
        ({"code": 3}, TypeError, "tokenizers.code must be a non-empty string"),
        (["a"], TypeError, "tokenizers must be a table"),
        ({"code": "other"}, CurriculumError, "tokenizer 'other'"),
    ],
)
def test_declared_tokenizers_are_checked(
    corpora: dict[str, Roxxel], tokenizers: Any, error: type[Exception], words: str
) -> None:
    sources = corpora["recorded"], PHASES, {"code": corpora["ids"]}
    with pytest.raises(error, match=words):
        Curriculum(*sources, tokenizers=tokenizers)


def test_a_schedule_declares_tokenizers(corpora: dict[str, Roxxel]) -> None:
    phase = Phase(2, 2, 9, {"self": 1, "code": 1})
    schedule = Schedule((phase,), tokenizers={"code": BPE})

    plan = schedule.curriculum(corpora["recorded"], {"code": corpora["ids"]}).plan()

    assert plan.notes_on_sources == ()


def test_held_out_data_is_compared_with_the_training_data(
    corpora: dict[str, Roxxel], tmp_path: Path
) -> None:
    def held_out(corpus: Roxxel, steps: int = 2) -> Curriculum:
        return Curriculum(corpus, [Phase(steps, 2, 9)])

    training = held_out(corpora["ids"])
    other = Roxxel(tmp_path / "other.rox")
    other.write([np.arange(500)], vocab_size=50_000)

    assert training.compare_held_out(held_out(other)) == ()
    with pytest.raises(CurriculumError, match="held-out set 'web', source 'self'"):
        training.compare_held_out(held_out(corpora["text"]), "web")
    (note,) = training.compare_held_out(held_out(corpora["ids"]))
    assert "is the training corpus of source 'self'" in note
    (note,) = training.compare_held_out(held_out(other, steps=40))
    assert "500 tokens" in note
    assert "1.50 times" in note
    assert "smaller batches" in note  # one step cannot be made fewer
    assert "hold out more documents" in note


def test_an_earlier_version_of_the_training_corpus_is_the_training_corpus(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "web_*.rox")
    corpus.write([np.arange(500)], vocab_size=900)
    early = Curriculum(Roxxel(tmp_path / "web_*.rox"), [Phase(2, 2, 9)])
    corpus.write([np.arange(600)], vocab_size=900, exist="append")
    late = Curriculum(Roxxel(tmp_path / "web_*.rox"), [Phase(2, 2, 9)])

    (note,) = late.compare_held_out(early)
    assert "is the training corpus" in note


def test_a_held_out_corpus_that_shares_a_shard_with_the_training_corpus_is_named(
    tmp_path: Path,
) -> None:
    web = Roxxel(tmp_path / "web_*.rox")
    held_out = Roxxel(tmp_path / "held_*.rox")
    for corpus, first in ((web, 0), (held_out, 300)):
        corpus.write([np.arange(first, first + 300)], vocab_size=900)
        corpus.write([np.arange(500)], vocab_size=900, exist="append")
    one_file = Roxxel(web.paths[1])
    training = Curriculum(web, [Phase(2, 2, 9)])

    (note,) = training.compare_held_out(Curriculum(held_out, [Phase(2, 2, 9)]))
    assert "shares 1 of its 2 shards with the training corpus of source 'self'" in note
    (note,) = training.compare_held_out(Curriculum(one_file, [Phase(2, 2, 9)]))
    assert "1 of its 1 shard" in note
