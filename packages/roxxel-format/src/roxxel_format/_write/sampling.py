"""Switch off what is random in a tokenizer: equal texts have equal tokens.

A tokenizer may sample how it divides a word: a BPE model by its dropout (Provilkov et
al., *BPE-Dropout*, 2020), and a Unigram model by its alpha (Kudo, *Subword
Regularization*, 2018). Then no write could be repeated, and a prompt would not get the
tokens that documents got. Switching it off does not change the tokenizer's identity: it
counts as if its file never had this.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_format._spec.layout import Tokens

_SETTINGS = ("dropout", "alpha", "nbest_size")
_SAMPLE = (
    "The quick brown fox jumps over the lazy dog, and 0123456789 other animals watch "
    "them from the neighbouring hills without understanding anything.\n"
) * 4
_NUM_REPEATS = 4


def without_sampling(source: Any) -> tuple[Any, str]:
    """Return a tokenizer that does not sample, and what was switched off for it.

    Args:
        source: An object of `tokenizers`, or one of `transformers` that holds one. Any
            other object stays as it is.

    Returns:
        The tokenizer, or a copy if something is switched off; and what was, such as
        `"dropout 0.1"`.

    Example:
        >>> without_sampling("another object")
        ('another object', '')
    """
    model = _model_of(source)
    if type(model).__name__ not in ("BPE", "Unigram"):
        return source, ""
    found = {name: getattr(model, name, None) for name in _SETTINGS}
    if all(value is None for value in found.values()):
        return source, ""
    source = copy.deepcopy(source)
    model = _model_of(source)
    for name in found:
        if hasattr(model, name):
            setattr(model, name, None)
    # A dropout of 0 samples nothing, and a number of paths is for an alpha.
    samples = [name for name in ("dropout", "alpha") if found[name]]
    return source, ", ".join(f"{name} {found[name]:g}" for name in samples)


def check_repeats(name: str, encode: Callable[[str], Tokens]) -> None:
    """Raise ValueError if a user's tokenizer gives a text new ids in each call."""
    found: list[list[int]] = []
    # A tokenizer may refuse a text, such as one of characters that it lacks.
    with contextlib.suppress(Exception):
        found += [encode(_SAMPLE).tolist() for _ in range(_NUM_REPEATS)]
    if any(each != found[0] for each in found):
        raise ValueError(
            f"{name}: gives a text other tokens in each call, so no write could be "
            "repeated; switch off what is random in it, such as a dropout or "
            "enable_sampling"
        )


def _model_of(source: Any) -> Any:
    return getattr(getattr(source, "backend_tokenizer", source), "model", None)
