"""The model of a run in EleutherAI's lm-evaluation-harness (extra `eval`)."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store import missing_extra
from roxxel_store.arguments import nearest

from roxxel.sampling import Continuation
from roxxel.scoring import Scorer

try:
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager
except ModuleNotFoundError as error:
    raise missing_extra("roxxel eval", "lm_eval", "roxxel", "eval") from error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flax import nnx
    from roxxel_format.texts import TextCodec

_AT_A_TIME = 16
"""Tokens that are added before the text is searched for where it stops."""

_DRAWS = 1000
"""Resamples for the error of a metric that has no formula for it."""

_MAX_GENERATED = 256
"""Tokens that a task may generate unless it says how many."""


class HarnessModel(TemplateLM):
    """A causal model with its tokenizer, as the harness asks for it.

    Args:
        model: A model from tokens, integers, shape (B, T), to logits, shape (B, T,
            vocabulary).
        codec: Converts text to tokens and back; see `roxxel_format.texts.text_codec`.
        end: The token between documents. It stands before a text without a context, and
            ends a generated one.
        context: Maximum T.
        batch_size: Texts at a time.

    Example:
        >>> issubclass(HarnessModel, TemplateLM)
        True
    """

    def __init__(
        self,
        model: nnx.Module,
        codec: TextCodec,
        *,
        end: int,
        context: int,
        batch_size: int = 8,
    ) -> None:
        super().__init__()
        self._model = model
        self._codec = codec
        self._end = end
        self._context = context
        self._batch_size = batch_size
        self._scorer = Scorer(model, context=context, batch_size=batch_size)

    @property
    def eot_token_id(self) -> int:
        """The token between documents."""
        return self._end

    def tok_encode(self, string: str, *_: Any, **__: Any) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        return self._codec.encode(string).tolist()

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness of each continuation."""
        scores = self._scorer.scores(
            [(context + added, len(added)) for _, context, added in requests]
        )
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def loglikelihood_rolling(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,  # noqa: ARG002 - the harness's
    ) -> list[float]:
        """Return the log-likelihood of whole texts, in windows of the context."""
        windows: list[tuple[list[int], int]] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            for before, predicted in utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._context,
                context_len=1,
            ):
                windows.append(([*before, predicted[-1]], len(predicted)))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, self._scorer.scores(windows), strict=True):
            totals[owner] += score.log_likelihood
        return totals

    def generate_until(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,  # noqa: ARG002 - the harness's
    ) -> list[str]:
        """Return the texts that continue prompts, up to where each task stops them."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(_options_of(request.args[1]), []).append(index)
        found: dict[int, str] = {}
        for (temperature, top_k, most, *until), chosen in groups.items():
            continuation = Continuation(
                self._model, temperature=temperature, top_k=top_k
            )
            for first in range(0, len(chosen), self._batch_size):
                batch = chosen[first : first + self._batch_size]
                prompts = [requests[index].args[0] for index in batch]
                texts = self._continued(continuation, prompts, most, until)
                found.update(zip(batch, texts, strict=True))
        return [found[index] for index in range(len(requests))]

    def _continued(
        self,
        continuation: Continuation,
        prompts: Sequence[str],
        most: int,
        until: Sequence[str],
    ) -> list[str]:
        """Return the texts that continue some prompts, at most a batch."""
        most = min(most, self._context - 1)
        encoded = [
            (self.tok_encode(prompt) or [self._end])[-(self._context - most) :]
            for prompt in prompts
        ]
        encoded += [[self._end]] * (self._batch_size - len(encoded))
        starts = [len(tokens) for tokens in encoded]
        rows = np.zeros((self._batch_size, self._context), np.int32)
        for row, tokens in zip(rows, encoded, strict=True):
            row[: len(tokens)] = tokens
        added: list[list[int]] = [[] for _ in prompts]
        texts = [""] * len(prompts)
        is_done = [False] * len(prompts)
        for done in range(0, most, _AT_A_TIME):
            count = min(_AT_A_TIME, most - done)
            drawn = continuation.added(rows, starts, count)
            for row, tokens, start in zip(rows, drawn, starts, strict=True):
                row[start : start + count] = tokens
            starts = [start + count for start in starts]
            for index, tokens in enumerate(drawn[: len(prompts)]):
                if not is_done[index]:
                    added[index].extend(tokens.tolist())
                    text, is_done[index] = self._stopped(
                        encoded[index], added[index], until
                    )
                    texts[index] = text
            if all(is_done):
                break
        return texts

    def _stopped(
        self, prompt: list[int], added: list[int], until: Sequence[str]
    ) -> tuple[str, bool]:
        """Return the text that was added, up to where it stops, and whether it does."""
        is_done = self._end in added
        whole = added[: added.index(self._end)] if is_done else added
        # Decoded with the prompt, because some tokenizers drop a space at the start.
        before = self._decoded(prompt)
        text = self._decoded([*prompt, *whole])[len(before) :]
        places = [place for stop in until if (place := text.find(stop)) >= 0]
        if places:
            return text[: min(places)], True
        return text, is_done

    def _decoded(self, tokens: Sequence[int]) -> str:
        content = self._codec.decode(np.asarray(tokens, np.int32))
        return content.decode("utf-8", errors="replace")


def evaluate(
    model: HarnessModel,
    tasks: Sequence[str],
    *,
    num_fewshot: int | None = None,
    limit: int | None = None,
    include: str | None = None,
) -> dict[str, Any]:
    """Evaluate a model on tasks of the harness.

    Args:
        model: The model.
        tasks: Names of tasks, groups or tags, or patterns of names.
        num_fewshot: Examples before each question; None as each task says.
        limit: Use only the first questions of each task, for a try.
        include: Folder with YAML files of tasks of your own.

    Returns:
        For each task: `version`, `num_fewshot`, `samples`, and `metrics`: for each
        metric its `value` and `stderr`, which is None where the harness gives none.

    Raises:
        ValueError: A task is unknown.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = _manager(tasks, include)
    names: list[str] = []
    for wanted in tasks:
        matches = manager.match_tasks([wanted])
        if not matches:
            hint = nearest(wanted, manager.all_tasks) or "see its list of tasks"
            raise ValueError(f"the harness has no task {wanted!r}; {hint}")
        names += matches
    # A fork of a process with JAX's threads may stand still, so errors are estimated
    # here, by fewer draws. What the harness prints is progress.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    with contextlib.redirect_stdout(sys.stderr):
        found: Any = simple_evaluate(
            model,
            tasks=list(dict.fromkeys(names)),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            bootstrap_iters=_DRAWS,
            log_samples=False,
        )
    return {
        name: {
            "version": found["versions"].get(name),
            "num_fewshot": found["n-shot"].get(name),
            "samples": found.get("n-samples", {}).get(name, {}).get("effective"),
            "metrics": _metrics(result),
        }
        for name, result in found["results"].items()
    }


def _manager(tasks: Sequence[str], include: str | None) -> TaskManager:
    """Return the tasks of a folder if they are enough, else all tasks."""
    if include is not None:
        # Finding the thousands of tasks of the harness takes seconds.
        own = TaskManager(include_path=include, include_defaults=False)
        if all(own.match_tasks([wanted]) for wanted in tasks):
            return own
    return TaskManager(include_path=include)


def _metrics(result: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return value and standard error by metric; its filter follows if it has one."""
    metrics: dict[str, dict[str, float | None]] = {}
    for key, value in result.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr") or not _is_number(value):
            continue
        error: Any = result.get(f"{metric}_stderr,{chosen}")
        name = metric if chosen == "none" else f"{metric} ({chosen})"
        metrics[name] = {
            "value": float(value),
            "stderr": float(error) if _is_number(error) else None,
        }
    return metrics


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _options_of(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return temperature, top_k, the number of tokens, and the texts that stop.

    Raises:
        ValueError: The task draws in a way that is not built.
    """
    temperature, top_k = 0.0, None
    if options.get("do_sample", False):
        temperature = float(options.get("temperature", 1.0))
        top_k = options.get("top_k")
        if options.get("top_p", 1.0) not in {None, 1}:
            raise ValueError(
                f"the task draws with top_p={options['top_p']}, which roxxel eval "
                "cannot; export the model and evaluate it with transformers"
            )
    until = options.get("until") or ()
    stops = (until,) if isinstance(until, str) else tuple(until)
    most = int(options.get("max_gen_toks", _MAX_GENERATED))
    return (temperature, top_k, most, *stops)
