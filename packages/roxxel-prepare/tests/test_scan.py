"""A scan finds every planted text of an evaluation set, and nothing else."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError
from roxxel_format.scans import Scan
from roxxel_prepare import PartSummary, scan_corpus
from roxxel_prepare._scan.words import words_of

from .helpers import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LETTERS = "aeioulnrstdéüçøñ"
LONG = "x y z x y z x y z"
"""A text that is long enough, and in no document of letters a, b and c."""

CHUNK = 2**19
"""Tokens that a scan reads at a time."""


def words(number: int, seed: object) -> list[str]:
    """Return random words."""
    chosen = random.Random(str(seed))
    return ["".join(chosen.choices(LETTERS, k=7)) for _ in range(number)]


EVALS = [" ".join(words(20, f"eval {n}")) for n in range(6)]
SHORT = " ".join(words(7, "short"))


def wide(text: str) -> str:
    """Return a text in letters of full width, decomposed, with soft hyphens."""
    letters = (
        chr(ord(each) + 0xFEE0) if "a" <= each <= "z" else each + "\u00ad"
        for each in unicodedata.normalize("NFD", text)
    )
    return "".join(letters)


def spaced(text: str) -> str:
    return re.sub(" ", lambda at: ["\n\n", "\t ", "\u00a0", ", "][at.start() % 4], text)


KINDS: dict[str, Callable[[str], str]] = {
    "whole": str,
    "embedded": lambda text: " ".join(text.split()[2:-3]),
    "white space": spaced,
    "case": str.upper,
    "unicode": wide,
}


def corpus_with(
    folder: Path, planted: dict[int, str], number: int = 40, **options: Any
) -> Roxxel:
    """Write documents of random words, some with a planted text in the middle."""
    documents: list[str] = []
    for n in range(number):
        before, after = words(30, f"{n} a"), words(30, f"{n} b")
        middle = [planted[n]] if n in planted else []
        documents.append(" ".join([*before, *middle, *after]))
    corpus = Roxxel(folder / "web_*.rox")
    corpus.write(documents, tokenizer="bytes", exist="replace", **options)
    return corpus


def evals_at(path: Path) -> Path:
    """Write the evaluation set, whose rows have texts in several fields."""
    rows = [
        {"question": text, "choices": {"text": [SHORT, "yes"], "label": [1]}}
        for text in EVALS
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def texts_at(corpus: Roxxel, scan: Scan) -> list[str]:
    return [
        corpus.tokens[start:stop].astype(np.uint8).tobytes().decode()
        for start, stop in scan.ranges
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_planted_text_is_found_and_nothing_else(
    kind: str, tmp_path: Path
) -> None:
    planted = {3 + 6 * n: KINDS[kind](text) for n, text in enumerate(EVALS)}
    corpus = corpus_with(tmp_path, planted)

    scan = scan_corpus(
        str(tmp_path / "web_*.rox"), evals_at(tmp_path / "e.jsonl"), tmp_path / "s.json"
    )

    assert isinstance(scan, Scan)
    # What follows the last letter of a word, such as a soft hyphen, is not in a word.
    ends = [each.rstrip("\u00ad") for each in texts_at(corpus, scan)]
    assert ends == [each.rstrip("\u00ad") for each in planted.values()]
    assert scan.found[:, 2].tolist() == [*planted]
    assert scan.corpus == corpus.fingerprint
    assert Scan.read(tmp_path / "s.json").found.tolist() == scan.found.tolist()


def test_a_short_text_is_found_as_a_whole_and_a_shorter_one_is_not_searched(
    tmp_path: Path,
) -> None:
    part = " ".join(SHORT.split()[1:])
    corpus = corpus_with(tmp_path, {5: spaced(SHORT), 7: part, 9: "yes"})

    scan = scan_corpus(
        str(tmp_path / "web_*.rox"), evals_at(tmp_path / "e.jsonl"), tmp_path / "s.json"
    )

    assert isinstance(scan, Scan)
    assert texts_at(corpus, scan) == [spaced(SHORT)]
    assert (scan.evals.num_texts, scan.evals.num_short) == (18, 6)


def test_no_ngram_is_found_across_documents(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "web_*.rox")
    pieces = EVALS[0].split()
    corpus.write([" ".join(pieces[:10]), " ".join(pieces[10:])], tokenizer="bytes")
    exam = tmp_path / "exam.txt"
    exam.write_text(EVALS[0])

    scan = scan_corpus(str(tmp_path / "web_*.rox"), exam, tmp_path / "s.json", ngram=11)

    assert isinstance(scan, Scan)
    assert not len(scan.found)
    found = scan_corpus(
        str(tmp_path / "web_*.rox"), exam, tmp_path / "s.json", ngram=10
    )
    assert isinstance(found, Scan)
    assert found.found[:, 2].tolist() == [0, 1]


def test_units_of_any_size_parts_and_processes_find_the_same(tmp_path: Path) -> None:
    planted = {n: EVALS[n % 6] for n in range(0, 40, 3)}
    _ = corpus_with(tmp_path, planted, max_shard_bytes=20_000)
    corpus, evals = str(tmp_path / "web_*.rox"), evals_at(tmp_path / "e.jsonl")
    _ = scan_corpus(corpus, evals, tmp_path / "one.json")

    _ = scan_corpus(corpus, evals, tmp_path / "many.json", unit_bytes=700)
    several = scan_corpus(
        corpus, evals, tmp_path / "several.json", unit_bytes=9000, workers=2
    )
    parts = [
        scan_corpus(
            corpus, evals, tmp_path / "parts.json", unit_bytes=3000, part=(n, 3)
        )
        for n in range(3)
    ]
    assert not (tmp_path / "parts.json").exists()
    _ = scan_corpus(corpus, evals, tmp_path / "parts.json", unit_bytes=3000)

    expected = (tmp_path / "one.json").read_bytes()
    assert isinstance(several, Scan)
    assert all(isinstance(each, PartSummary) for each in parts)
    for name in ("many", "several", "parts"):
        assert (tmp_path / f"{name}.json").read_bytes() == expected
    assert not [*tmp_path.glob(".*.unit")]


@pytest.mark.parametrize("offset", [-90, -40, 0, 2**16 - 300])
def test_a_text_is_found_where_a_long_document_is_read_in_parts(
    offset: int, tmp_path: Path
) -> None:
    filler = " ".join(words(70_000, "filler"))
    at = filler.encode()[: CHUNK + offset].rfind(b" ")
    document = filler.encode()[:at].decode() + f" {EVALS[0]} " + filler[at:]
    corpus = Roxxel(tmp_path / "web_*.rox")
    corpus.write([document, "end"], tokenizer="bytes")
    evals = evals_at(tmp_path / "e.jsonl")

    scan = scan_corpus(str(tmp_path / "web_*.rox"), evals, tmp_path / "s.json")

    assert isinstance(scan, Scan)
    assert texts_at(corpus, scan) == [EVALS[0]]


def test_tokens_are_compared_where_there_is_no_text(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    leak = rng.integers(0, 9000, 40, np.uint16)
    documents = [rng.integers(0, 9000, 300, np.uint16) for _ in range(20)]
    documents[7][100:140] = leak
    documents[9][:20] = leak[5:25]
    documents[11][:12] = leak[5:17]
    documents[15][-20:] = leak[:20]
    documents[16][:20] = leak[20:]
    corpus = Roxxel(tmp_path / "ids_*.rox")
    corpus.write(documents, vocab_size=9000)
    np.save(tmp_path / "exam.npy", leak.astype(np.int64))

    scan = scan_corpus(
        str(tmp_path / "ids_*.rox"), tmp_path / "exam.npy", tmp_path / "s.json"
    )

    assert isinstance(scan, Scan)
    assert scan.compares == "tokens"
    assert scan.found.tolist() == [
        [2200, 2240, 7, 0],
        [2700, 2720, 9, 0],
        [4780, 4800, 15, 0],
        [4800, 4820, 16, 0],
    ]
    (tmp_path / "exam.txt").write_text(EVALS[0])
    with pytest.raises(ValueError, match=r"exam\.txt: is text, .*--tokenizer"):
        scan_corpus(
            str(tmp_path / "ids_*.rox"), tmp_path / "exam.txt", tmp_path / "t.json"
        )


@pytest.mark.parametrize("form", ["csv", "tsv", "json", "txt", "rox"])
def test_every_field_of_every_format_is_searched(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"e.{form}"
    one, two = EVALS[:2]
    if form == "rox":
        Roxxel(path).write([one, two], tokenizer="bytes")
    else:
        contents = {
            "csv": f'id,question,answer\n1,"{one}",{two}\n',
            "tsv": f"id\tquestion\tanswer\n1\t{one}\t{two}\n",
            "json": json.dumps([{"q": [{"a": one}], "n": None}, {"x": two}]),
            "txt": f"{one}\n{two}",
        }
        path.write_text(contents[form])
    planted = {3: one, 9: two}
    corpus = corpus_with(tmp_path, planted)

    scan = scan_corpus(str(tmp_path / "web_*.rox"), path, tmp_path / "s.json")

    assert isinstance(scan, Scan)
    assert texts_at(corpus, scan) == [one, two]


def test_a_receipt_is_kept_until_corpus_or_texts_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _ = corpus_with(tmp_path, {3: EVALS[0]})
    corpus, evals = str(tmp_path / "web_*.rox"), evals_at(tmp_path / "e.jsonl")

    def scanned() -> tuple[Any, bool]:
        scan = scan_corpus(corpus, evals, tmp_path / "s.json")
        return scan, "kept" in capsys.readouterr().err

    first, was_kept = scanned()
    assert not was_kept
    again, was_kept = scanned()
    assert was_kept
    assert again.found.tolist() == first.found.tolist()
    Roxxel(corpus).write([EVALS[1]], tokenizer="bytes", exist="append")
    grown, was_kept = scanned()
    assert not was_kept
    assert [len(first.found), len(grown.found)] == [1, 2]
    evals.write_text(json.dumps({"q": EVALS[1]}))
    fewer, was_kept = scanned()
    assert not was_kept
    assert fewer.found[:, 2].tolist() == [40]


def test_a_scan_of_other_evaluation_sets_says_that_it_replaced_a_receipt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _ = corpus_with(tmp_path, {3: EVALS[0]})
    corpus, receipt = str(tmp_path / "web_*.rox"), tmp_path / "s.json"
    evals, other = evals_at(tmp_path / "e.jsonl"), tmp_path / "other.jsonl"
    other.write_text(json.dumps({"q": EVALS[1]}))
    scan_corpus(corpus, evals, receipt)
    evals.write_text(json.dumps({"q": EVALS[0]}))
    scan_corpus(corpus, evals, receipt)
    assert "replaced" not in capsys.readouterr().err

    scan_corpus(corpus, other, receipt)

    assert f"{receipt}: replaced the receipt of {evals}" in capsys.readouterr().err


def test_the_command_scans_and_write_does_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evals = evals_at(tmp_path / "e.jsonl")
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"text": text}) + "\n"
            for text in ["nothing at all", f"so {spaced(EVALS[2]).upper()} it is"]
        )
    )

    command = ["write", "web_*.rox", "a.jsonl", "--tokenizer", "bytes"]
    assert main([*command, "--against", str(evals)]) == 0

    said = capsys.readouterr().out
    assert "in 1 place of 1 document hold 13-grams of" in said
    assert 'web = "web_scan.json"' in said
    written = (tmp_path / "web_scan.json").read_bytes()
    assert main(["scan", "web_*.rox", "--against", str(evals), "--out", "b.json"]) == 0
    assert (tmp_path / "b.json").read_bytes() == written
    with pytest.raises(SystemExit):
        main([*command, "--against", str(evals), "--part", "0/2"])
    assert "scan the corpus when it is committed" in capsys.readouterr().err


def test_what_cannot_be_scanned_is_one_sentence(tmp_path: Path) -> None:
    _ = corpus_with(tmp_path, {})
    corpus, exam = str(tmp_path / "web_*.rox"), tmp_path / "exam.jsonl"
    exam.write_text('{"a": "yes", "b": "no"}\n')

    with pytest.raises(ValueError, match=r"none of 2 texts has 5 words"):
        scan_corpus(corpus, exam, tmp_path / "s.json")
    with pytest.raises(ShardError, match=r"exam\.jsonl: "):
        scan_corpus(corpus, exam, exam)
    with pytest.raises(FileNotFoundError):
        scan_corpus(corpus, tmp_path / "gone.jsonl", tmp_path / "s.json")
    with pytest.raises(ValueError, match="ngram"):
        scan_corpus(corpus, exam, tmp_path / "s.json", ngram=1)
    assert not [*tmp_path.glob("s.json")]


def marked(document: str, texts: list[str], ngram: int) -> set[int]:
    """Return the bytes of a document to leave out, by comparing every n-gram.

    Its words have one letter each.
    """
    spelled, found = document.split(), set[int]()
    for text in texts:
        size = min(ngram, len(text.split()))
        if size < min(5, ngram):
            continue
        grams = {tuple(text.split()[n:][:size]) for n in range(len(text) + 1)}
        for n in range(len(spelled) - size + 1):
            if tuple(spelled[n : n + size]) in grams:
                found.update(range(2 * n, 2 * (n + size) - 1))
    return found


Spelled = st.lists(st.sampled_from("abc"), max_size=14).map(" ".join)


@settings(max_examples=40)
@given(
    documents=st.lists(Spelled.filter(bool), min_size=1, max_size=6),
    texts=st.lists(Spelled, min_size=1, max_size=4),
    ngram=st.integers(2, 8),
    unit_bytes=st.integers(1, 99),
)
def test_what_is_found_is_every_ngram_and_no_more(
    documents: list[str],
    texts: list[str],
    ngram: int,
    unit_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("law")
    corpus = Roxxel(folder / "c_*.rox")
    corpus.write(documents, tokenizer="bytes")
    exam = folder / "exam.jsonl"
    exam.write_text("".join(json.dumps({"q": text}) + "\n" for text in [*texts, LONG]))

    scan = scan_corpus(
        str(folder / "c_*.rox"),
        exam,
        folder / "s.json",
        ngram=ngram,
        unit_bytes=unit_bytes,
    )

    assert isinstance(scan, Scan)
    found: dict[int, set[int]] = {}
    for start, stop, document, _ in scan.found.tolist():
        first, _, _ = corpus.document_range(document)
        found.setdefault(document, set()).update(range(start - first, stop - first))
    for number, document in enumerate(documents):
        # Hits that touch are one range, and so is the space between them.
        wanted = marked(document, texts, ngram)
        mine = found.get(number, set())
        assert wanted <= mine
        assert all(document[at] == " " for at in mine - wanted)


def plain_words(text: str) -> list[str]:
    """Return the words of a text, one character after another."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    found, word = list[str](), ""
    for each in [*unicodedata.normalize("NFKD", folded), " "]:
        kind = unicodedata.category(each)
        if kind in {"Mn", "Me", "Cf"}:
            continue
        if kind[0] in "LNM" and not "\u3400" <= each <= "\u9fff":
            word += each
            continue
        found += [word] * bool(word)
        word = ""
        found += [each] * ("\u3400" <= each <= "\u9fff")
    return found


ALPHABET = "aB1é\u0301ﬁßΣ…½的- \n\u200b\u00ad\uff21가."


@given(st.text(st.sampled_from(ALPHABET), max_size=40))
def test_words_are_those_of_the_normal_form_and_know_their_places(text: str) -> None:
    found = words_of(text.encode())

    expected = plain_words(text)
    assert found.hashes.size == len(expected)
    for number, word in enumerate(expected):
        (alone,) = words_of(word.encode()).hashes
        assert found.hashes[number] == alone
        at = slice(int(found.starts[number]), int(found.stops[number]))
        assert word in "".join(plain_words(text.encode()[at].decode()))
    assert len({*found.hashes.tolist()}) == len({*expected})


@given(st.text(st.sampled_from(ALPHABET), min_size=1), st.integers(0, 5))
def test_words_of_a_long_text_are_those_of_its_parts(text: str, shift: int) -> None:
    """A text is read in blocks of 65 536 bytes, which no word shows."""
    unit = "x" * shift + text + "\n"
    count = 140_000 // len(unit.encode())

    one, many = words_of(unit.encode()), words_of((unit * count).encode())

    assert many.hashes.tolist() == one.hashes.tolist() * count
    sizes = np.repeat(np.arange(count), one.starts.size) * len(unit.encode())
    assert (many.starts - sizes).tolist() == one.starts.tolist() * count
