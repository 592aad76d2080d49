"""Counts how the documentation speaks to its reader.

    python tests-integration/tools/prose.py [PAGE ...]

prints one row for each page and one for all. Per 1 000 words: sentences that advise (an
imperative, or a word such as "should"), those words alone, "you", and "the X of". Then
the share of sentences that begin with The, A, An or Each, and semicolons per sentence.
Only prose counts: code, tables, headings and directives are left out, and so are the
pages that specify (the format, the arithmetic), decisions and change logs.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPECIFICATIONS = {"format.md", "arithmetic.md", "architecture.md"}

_NOT_PROSE = re.compile(
    r"""^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)[^\n]*$  # a block or a directive
      | ^:{3,}[^\n]*$              # the fences of a remark, whose text counts
      | ^[ ]*\|[^\n]*$             # a row of a table
      | ^\#[^\n]*$ | <!--.*?--> | ^\(.*\)=$ | ^\[[^\]]+\]:[^\n]*$ | ^!\[[^\n]*$
      | </?[a-z][^>]*>""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:])[\"')*]*\s+(?=[\"'(*]*[A-Z`])|\n\n+")
_WORD = re.compile(r"[\w'`./-]*\w[\w'`./-]*")
_IMPERATIVES = frozenset(
    """add append ask avoid begin branch bring build call change check choose compare
    compile continue convert copy count create cut declare decide delete divide
    download draw edit encode exclude expect export fetch find fix follow free get
    give go hold import increase install keep know lay leave let link list load look
    lower make mark measure mind mount move name never note open order pass pick
    plan point prefer prepare press print put raise read record remove rename repeat
    replace request restart restore resume return rewrite run save say schedule
    search see send set share shard show size skip split start stop store submit
    supply switch take test treat trust try turn type upload use verify wait warm
    watch weigh withdraw work write wrap""".split()  # noqa: SIM905 - a list is longer
)
_ADVICE = re.compile(
    r"\b(?:should|shouldn't|recommend\w*|avoid|prefer|usually|useful|best|better|worth"
    r"|do not|don't|needn't|too (?:long|short|small|large|many|few))\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"^(?:(?:if|when|to|for|before|after|on|in|with|without|then|so|first|otherwise"
    r"|else|once|unless|until|where|while|and|but|by|as|from|at)\b[^,]*, )?"
    r"(?:(?:then|so|first|always|also|just|please|only) )?[\"(*`]*(\w+)",
    re.IGNORECASE,
)

_PER_THOUSAND = ("advice", "weighed", "you", "the_of")


@dataclass(frozen=True)
class Counts:
    """What is counted in one text; sums with `+`."""

    words: int = 0
    sentences: int = 0
    advice: int = 0
    weighed: int = 0
    you: int = 0
    the_of: int = 0
    articles: int = 0
    semicolons: int = 0

    def __add__(self, other: Counts) -> Counts:
        names = [each.name for each in fields(self)]
        return Counts(*(getattr(self, name) + getattr(other, name) for name in names))

    def row(self) -> list[float]:
        """Return four counts per 1 000 words, the articles in %, and semicolons."""
        thousand, sentences = max(self.words, 1) / 1000, max(self.sentences, 1)
        return [
            *(getattr(self, name) / thousand for name in _PER_THOUSAND),
            100 * self.articles / sentences,
            self.semicolons / sentences,
        ]


def prose(page: str) -> str:
    """Return the prose of a page of Markdown, code in line as one word."""
    text = _LINK.sub(r"\1", _NOT_PROSE.sub("\n\n", page))
    text = re.sub(r"`[^`]+`", "`code`", text)
    return _ITEM.sub("\n\n", text)


def sentences(page: str) -> list[str]:
    """Return the sentences of a page's prose, each on one line."""
    parts = (" ".join(part.split()) for part in _END.split(prose(page)))
    return [part for part in parts if len(_WORD.findall(part)) > 1]


def advises(sentence: str) -> bool:
    """Return whether a sentence tells its reader to do or to avoid something."""
    begins = _CLAUSE.match(sentence)
    imperative = begins is not None and begins[1].lower() in _IMPERATIVES
    return imperative or _ADVICE.search(sentence) is not None


def count(page: str) -> Counts:
    """Count the prose of one page."""
    found = sentences(page)
    text = "\n".join(found)
    return Counts(
        words=len(_WORD.findall(text)),
        sentences=len(found),
        advice=sum(map(advises, found)),
        weighed=len(_ADVICE.findall(text)),
        you=len(re.findall(r"\byou(?:r|rs|'\w+)?\b", text, re.IGNORECASE)),
        the_of=len(re.findall(r"\bthe (?:[\w`'-]+ ){1,2}of\b", text, re.IGNORECASE)),
        articles=sum(
            bool(re.match(r"[\"(*]*(?:The|An?|Each|Every)\b", s)) for s in found
        ),
        semicolons=text.count(";"),
    )


def pages() -> list[Path]:
    """Return the pages that are written to a reader."""
    globs = ("README.md", "docs/**/*.md", "packages/*/README.md")
    found = [page for each in globs for page in sorted(ROOT.glob(each))]
    left_out = {"_build", "api", "decisions", "reference"}
    return [
        page
        for page in found
        if not left_out & set(page.parts) and page.name not in SPECIFICATIONS
    ]


def main(names: list[str]) -> None:
    """Print the table."""
    counted = {
        str(page): count(page.read_text("utf-8"))
        for page in ([Path(name) for name in names] or pages())
    }
    total = sum(counted.values(), Counts())
    print(f"{'page':38}  words advice weighed   you the of The %  ;")
    for name, found in {**counted, "all": total}.items():
        numbers = "{:7.1f}{:8.1f}{:6.1f}{:7.1f}{:6.0f}  {:.2f}".format(*found.row())
        print(f"{name.removeprefix(f'{ROOT}/'):38}{found.words:7}{numbers}")


if __name__ == "__main__":
    main(sys.argv[1:])
