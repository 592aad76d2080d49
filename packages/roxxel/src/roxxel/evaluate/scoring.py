"""How likely a model finds tokens, for evaluations by log-likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from roxxel.evaluate._forward import Forward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flax import nnx

_LEAST_WIDTH = 16


class Score(NamedTuple):
    """A model's scores for the last tokens of a sequence.

    Attributes:
        log_likelihood: Natural logarithm of their probability, given the tokens before.
        is_greedy: Whether each of them is the likeliest token at its place.

    Example:
        >>> Score(-1.5, is_greedy=False).log_likelihood
        -1.5
    """

    log_likelihood: float
    is_greedy: bool


class Scorer:
    """Scores sequences in batches; sequences of similar length share a program.

    The model scores in evaluation mode; its own mode stays.

    Args:
        model: A model from tokens, integers, shape (B, T), to logits, shape (B, T,
            vocabulary).
        context: Maximum T.
        batch_size: B. The logits of a batch take B * T * vocabulary * 4 bytes.

    >>> from flax import nnx
    >>> model = nnx.Sequential(nnx.Embed(9, 9, rngs=nnx.Rngs(0)))
    >>> [score] = Scorer(model, context=32).scores([([1, 2, 3], 2)])
    >>> score.log_likelihood < 0
    True
    """

    def __init__(self, model: nnx.Module, *, context: int, batch_size: int = 8) -> None:
        self._context = context
        self._batch_size = batch_size
        forward = Forward(model)
        self._arrays = forward.arrays

        @jax.jit
        def scored(
            arrays: Any,
            tokens: jax.Array,
            targets: jax.Array,
            counts: jax.Array,
        ) -> tuple[jax.Array, jax.Array]:
            logits = forward(arrays, tokens).astype(jnp.float32)
            taken = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
            likelihoods = taken - jax.nn.logsumexp(logits, -1)
            is_likeliest = logits.argmax(-1) == targets
            return (
                jnp.where(counts, likelihoods, 0).sum(-1),
                jnp.where(counts, is_likeliest, True).all(-1),
            )

        self._scored = scored

    def scores(self, sequences: Sequence[tuple[Sequence[int], int]]) -> list[Score]:
        """Return the score of each sequence, in the order given.

        Args:
            sequences: For each sequence, its tokens, and how many of the last to score.
                If a sequence does not fit the context, its first tokens are left out.

        Raises:
            ValueError: More tokens shall be scored than follow the first, or than the
                context has.
        """
        shortened = [self._fitting(tokens, count) for tokens, count in sequences]
        order = sorted(range(len(shortened)), key=lambda i: -len(shortened[i]))
        found: dict[int, Score] = {}
        for first in range(0, len(order), self._batch_size):
            chosen = order[first : first + self._batch_size]
            width = self._width(max(len(shortened[i]) - 1 for i in chosen))
            shape = (self._batch_size, width)
            tokens, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
            counts = np.zeros(shape, np.bool_)
            for row, index in enumerate(chosen):
                sequence = shortened[index]
                end = len(sequence) - 1
                tokens[row, :end] = sequence[:-1]
                targets[row, :end] = sequence[1:]
                counts[row, end - sequences[index][1] : end] = True
            sums, greedy = self._scored(self._arrays, tokens, targets, counts)
            for index, total, is_greedy in zip(
                chosen, np.asarray(sums), np.asarray(greedy), strict=False
            ):
                found[index] = Score(float(total), bool(is_greedy))
        return [found[index] for index in range(len(sequences))]

    def _fitting(self, tokens: Sequence[int], count: int) -> Sequence[int]:
        """Return the last tokens of a sequence, one more than fit the context."""
        last = tokens[-(self._context + 1) :]
        if not 0 <= count < len(last):
            raise ValueError(
                f"{count} of {len(tokens)} tokens are to be scored, but a context of "
                f"{self._context} tokens can predict {max(len(last) - 1, 0)} of them"
            )
        return last

    def _width(self, needed: int) -> int:
        """Return a width for rows: a power of two, or the whole context."""
        return min(self._context, max(_LEAST_WIDTH, 1 << (needed - 1).bit_length()))
