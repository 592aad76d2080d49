"""Every claim of the documents has a test, or a written reason why it differs.

Each module `test_document_*.py` has a table in its docstring: a claim, and the test
that proves the claim. The test is in the module or elsewhere (`path::name`). If the
claim is not true, the table names a heading of `docs/decisions/documents.md`, which
gives the reason.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN = Path(__file__)
MODULES = sorted({*OWN.parent.glob("test_document_*.py")} - {OWN})
ROW = re.compile(r"^\| (?P<claim>.+?) \| (?P<proof>.+) \|$")


def claims(module: Path) -> list[tuple[str, str]]:
    """Return the rows of the table in a module's docstring: claim and proof."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    rows = [ROW.match(line.strip()) for line in text.splitlines()]
    found = [(row["claim"], row["proof"]) for row in rows if row]
    return [row for row in found if row not in {("claim", "test"), ("---", "---")}]


def functions(module: Path) -> set[str]:
    """Return the names of all functions in a module, methods of classes included."""
    nodes = ast.walk(ast.parse(module.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def headings() -> set[str]:
    """Return the headings of the page of differences, as anchors."""
    lines = (ROOT / "docs/decisions/documents.md").read_text().splitlines()
    titles = [line.lstrip("#").strip() for line in lines if line.startswith("##")]
    return {re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") for title in titles}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_every_claim_names_a_test_or_a_reason(module: Path) -> None:
    rows = claims(module)
    assert rows, f"{module.name} has no table of claims"
    for claim, proof in rows:
        if proof.startswith("differs: "):
            anchor = proof.removeprefix("differs: ").strip("`")
            assert anchor in headings(), f"{claim}: no heading {anchor}"
            continue
        for name in proof.split(", "):
            path, _, function = name.strip("`").rpartition("::")
            file = ROOT / path if path else module
            assert file.is_file(), f"{claim}: no file {path}"
            assert function in functions(file), f"{claim}: no test {name}"


def test_every_reason_is_used() -> None:
    proofs = {proof for module in MODULES for _, proof in claims(module)}
    used = {
        proof.removeprefix("differs: ").strip("`")
        for proof in proofs
        if proof.startswith("differs: ")
    }
    assert headings() == used
