"""The page's code for Keras reads the steps of a curriculum, on Keras's JAX backend."""

# pyright: basic, reportMissingImports=false
# Keras is in the environment of the session `bridges` alone.

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

# Keras's variables use a protocol of NumPy that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ impl:DeprecationWarning")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "loops.md"
CORPUS = 1  # its block, below the one that installs


def blocks(text: str) -> list[str]:
    return re.findall(r"^```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shown(section: str) -> list[str]:
    """Return the blocks of a section of the page."""
    _, _, text = PAGE.read_text().partition(f"\n## {section}\n")
    return blocks(text)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the corpus and the example of the page; return what they define."""
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    found: dict[str, Any] = {}
    for block in (blocks(PAGE.read_text())[CORPUS], shown("Keras")[0]):
        exec(block, found)  # noqa: S102 - the page's own code
    return found


def weights_by_hand(page: dict[str, Any], steps: int) -> list[Any]:
    """Return the weights of a model after the first steps, trained one by one."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Embedding(256, 16), keras.layers.Dense(256)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for step in range(steps):
        tokens = page["sampler"].batch(step)
        model.train_on_batch(tokens[:, :-1], tokens[:, 1:])
    return model.get_weights()


def assert_same(mine: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_the_backend_is_jax() -> None:
    assert keras.config.backend() == "jax"


def test_shuffled_steps_are_refused(page: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pass shuffle=False to fit"):
        page["model"].fit(page["Steps"](page["sampler"]), epochs=1, verbose=0)


def test_the_page_trains_in_order_and_goes_on_where_it_was_saved(
    page: dict[str, Any],
) -> None:
    assert_same(page["model"].get_weights(), weights_by_hand(page, 5))

    exec(shown("Keras")[1], page)  # noqa: S102 - the page's own code

    assert int(page["model"].optimizer.iterations) == page["sampler"].total_steps == 8
    assert_same(page["model"].get_weights(), weights_by_hand(page, 8))
