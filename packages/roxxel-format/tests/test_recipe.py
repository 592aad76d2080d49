"""A recipe that a plan has kept commits what the recipe of the call would commit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from roxxel_format.writing import Fields, Recipe, Side

DECIDED: dict[str, Any] = {
    "tokenizer_record": {"name": "t", "hash": "0f", "vocab_size": 9, "special_ids": {}},
    "encoder": "tokenizers 0.23",
    "tokenizer_file": ("t.json", 7),
    "stored": "uint16",
    "kind": "text",
}
GIVEN: list[dict[str, Any]] = [
    {"separator": 0, "dtype": "uint16", "vocab_size": 100, "block_size": 64},
    {"separator": b"\n\n", "max_shard_bytes": 1 << 20, "special_tokens": True},
    {"separator": None, "pack": 129, "lengths": (0, 129)},
    {"separator": 0.5, "dtype": "float32", "stored": "float32", "lengths": (0, None)},
    {"separator": 1, "fields": Fields("", "p", "c", "id", path=True)},
    {"separator": 1, "exist": "append", "without_columns": ["url"], "shuffle": 3},
    {"separator": 1, "side": Side("valid", 0.1, is_held_out=False), "skip_bad": True},
    {"separator": 1, "inputs": {"names": ["a.txt"], "sizes": [3]}},
]


def kept(recipe: Recipe) -> Recipe:
    """Return a recipe after it was in a file."""
    return Recipe.parse(json.loads(json.dumps(recipe.as_json())))


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_a_kept_recipe_is_the_same_for_a_commit(given: dict[str, Any]) -> None:
    recipe = Recipe(**DECIDED | given)

    found = kept(recipe)

    assert found.recorded == recipe.recorded
    assert json.dumps(found.as_json()) == json.dumps(recipe.as_json())
    assert found.fields.columns == recipe.fields.columns
    assert (found.side, found.lengths) == (recipe.side, recipe.lengths)
    assert kept(found) == found


def test_skipping_damage_does_not_change_the_job_and_other_arguments_do() -> None:
    recipe = Recipe(separator=0, **DECIDED)
    job = recipe.digest(None)

    assert replace(recipe, skip_bad=True).digest(None) == job
    others = {
        replace(recipe, shuffle=1).digest(None),
        replace(recipe, separator=1).digest(None),
        replace(recipe, stored="uint32").digest(None),
        recipe.digest("another corpus"),
    }
    assert len(others - {job}) == 4
