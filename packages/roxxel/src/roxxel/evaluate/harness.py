"""The model of a run in EleutherAI's lm-evaluation-harness (extra `eval`)."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store import missing_extra
from roxxel_store.arguments import nearest
from roxxel_store.screen import note

from roxxel.evaluate.prompts import Prompt, Prompts
from roxxel.evaluate.sampling import Continuation
from roxxel.evaluate.scoring import Scorer

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager
except ModuleNotFoundError as error:
    raise missing_extra("roxxel eval", "lm_eval", "roxxel", "eval") from error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from flax import nnx
    from roxxel_format.texts import TextCodec

_AT_A_TIME = 16
"""Number of tokens to add before the text is searched for its stop."""

_DRAWS = 1000
"""Number of resamples for a metric's error, if no formula gives the error."""

_MAX_GENERATED = 256
"""Number of tokens that a task may generate, unless it says another."""


@dataclass
class _Answer:
    """A text in generation: its prompt, its tokens so far, and its stops.

    `room` is the maximum number of its tokens. `is_cut` is whether the prompt lost its
    beginning, `is_shortened` whether the task allows more tokens than `room`.
    """

    prompt: Prompt
    room: int
    is_cut: bool
    is_shortened: bool
    added: list[int] = field(default_factory=list[int])
    text: str = ""
    is_done: bool = False


class HarnessModel(TemplateLM):
    """A causal model with its tokenizer, in the form that the harness needs.

    Args:
        model: A model from tokens, integers, shape (B, T), to logits, shape (B, T,
            vocabulary).
        codec: Converts text to tokens and back; see `roxxel_format.texts.text_codec`.
        end: The token that ends documents, or several. Each of them ends a generated
            text. A text without a context begins after this token, unless documents of
            the corpus begin with another token.
        context: Maximum T.
        batch_size: Number of texts at a time.

    Example:
        >>> issubclass(HarnessModel, TemplateLM)
        True
    """

    def __init__(
        self,
        model: nnx.Module,
        codec: TextCodec,
        *,
        end: int | Collection[int],
        context: int,
        batch_size: int = 8,
    ) -> None:
        super().__init__()
        self._model = model
        self._codec = codec
        self._ends = {end} if isinstance(end, int) else {*end}
        self._prompts = Prompts(codec, self._ends)
        self._context = context
        self._batch_size = batch_size
        self._scorer = Scorer(model, context=context, batch_size=batch_size)

    @property
    def eot_token_id(self) -> int:
        """The last token before a text."""
        return self._prompts.first[-1]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text, like the beginning of such a document."""
        if add_special_tokens is False:
            return self._codec.encode(string).tolist()
        return self._codec.before + self._codec.encode(string).tolist()

    def loglikelihood(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness of each continuation of a context."""
        pairs: list[tuple[Any, list[int], list[int]]] = []
        for request in requests:
            context, added = request.args
            if context.strip():
                before, after = self._encode_pair(context, added)
            else:
                before, after = [], self._codec.encode(context + added).tolist()
            pairs.append((request.args, before or self._prompts.first, after))
        return self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness of each continuation."""
        sequences: list[tuple[list[int], int]] = []
        num_cut = 0
        for _, tokens, added in requests:
            # The last token is predicted, and not read.
            room = max(1, self._context + 1 - len(added))
            num_cut += len(tokens) > room
            size = len(self._codec.before)
            prompt = Prompt(tokens[:size], tokens[size:]).shortened(room)
            sequences.append((prompt.tokens + added, len(added)))
        self._say_cut(num_cut, len(requests))
        return [*self._scorer.scores(sequences)]

    def loglikelihood_rolling(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,  # noqa: ARG002 - the harness's
    ) -> list[float]:
        """Return the log-likelihood of whole texts, in windows of the context."""
        windows: list[tuple[list[int], int]] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            for window in self._windows(request.args[0]):
                windows.append(window)
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, self._scorer.scores(windows), strict=True):
            totals[owner] += score.log_likelihood
        return totals

    def _windows(self, text: str) -> Iterator[tuple[list[int], int]]:
        """Yield the tokens of windows, and how many last tokens of each to score.

        Each token of a text is scored once, in a window with as many tokens before it
        as fit.
        """
        first = self._prompts.first
        tokens = first + self._codec.encode(text).tolist()
        begin, done = max(0, len(first) - self._context), len(first)
        while done < len(tokens):
            # The last token of a window is predicted, and not read.
            stop = min(len(tokens), begin + self._context + 1)
            yield tokens[max(0, stop - self._context - 1) : stop], stop - done
            begin, done = stop - 1, stop

    def generate_until(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,  # noqa: ARG002 - the harness's
    ) -> list[str]:
        """Return the texts that continue prompts, up to where each task stops them.

        Half of the context belongs to the prompt, if the prompt is as long. New tokens
        get the rest, even if the task asks for more.
        """
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(_options_of(request.args[1]), []).append(index)
        found: dict[int, _Answer] = {}
        for (temperature, top_k, most, *until), chosen in groups.items():
            continuation = Continuation(
                self._model,
                temperature=temperature,
                top_k=top_k,
                context=self._context,
            )
            for first in range(0, len(chosen), self._batch_size):
                batch = chosen[first : first + self._batch_size]
                answers = [
                    self._answer(requests[index].args[0], most) for index in batch
                ]
                self._continue(continuation, answers, until)
                found.update(zip(batch, answers, strict=True))
        self._say_cut(sum(each.is_cut for each in found.values()), len(found))
        num_ended = sum(
            each.is_shortened and not each.is_done for each in found.values()
        )
        if num_ended:
            note(
                f"{num_ended} of {len(found)} answers ended before the number of "
                f"tokens that their task allows, because the context of "
                f"{self._context} tokens was full"
            )
        return [found[index].text for index in range(len(requests))]

    def _answer(self, text: str, most: int) -> _Answer:
        prompt = self._prompts.of(text)
        num_tokens = len(prompt.tokens)
        least = min(num_tokens, max(1, self._context // 2))
        room = min(most, max(1, self._context - least))
        kept = prompt.shortened(max(1, self._context - room))
        return _Answer(kept, room, len(kept.tokens) < num_tokens, room < most)

    def _continue(
        self,
        continuation: Continuation,
        answers: Sequence[_Answer],
        until: Sequence[str],
    ) -> None:
        """Add the new tokens to some answers, at most a batch."""
        rows = np.zeros((self._batch_size, 2 * self._context), np.int32)
        for row, answer in zip(rows, answers, strict=False):
            row[: len(answer.prompt.tokens)] = answer.prompt.tokens
        # Rows beyond the answers only fill the batch.
        starts = [len(answer.prompt.tokens) for answer in answers]
        starts += [1] * (self._batch_size - len(starts))
        most = max(answer.room for answer in answers)
        for done in range(0, most, _AT_A_TIME):
            count = min(_AT_A_TIME, most - done)
            drawn = continuation.added(rows, starts, count)
            for row, tokens, start in zip(rows, drawn, starts, strict=True):
                row[start : start + count] = tokens
            starts = [start + count for start in starts]
            for answer, tokens in zip(answers, drawn, strict=False):
                self._add(answer, tokens.tolist(), until)
            if all(x.is_done or len(x.added) == x.room for x in answers):
                break

    def _add(self, answer: _Answer, tokens: list[int], until: Sequence[str]) -> None:
        """Add new tokens to an answer, up to where it stops."""
        if answer.is_done:
            return
        answer.added += tokens[: answer.room - len(answer.added)]
        ends = (n for n, token in enumerate(answer.added) if token in self._ends)
        end = next(ends, None)
        answer.is_done = end is not None
        before = self._text(answer.prompt, [])
        text = self._text(answer.prompt, answer.added[:end])[len(before) :]
        places = [place for stop in until if (place := text.find(stop)) >= 0]
        if places:
            text, answer.is_done = text[: min(places)], True
        answer.text = text

    def _text(self, prompt: Prompt, added: Sequence[int]) -> str:
        return self._prompts.text(prompt, added).decode("utf-8", errors="replace")

    def _say_cut(self, num_cut: int, num: int) -> None:
        if num_cut:
            note(
                f"{num_cut} of {num} prompts do not fit the context of "
                f"{self._context} tokens, so the model saw only their end"
            )


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
        num_fewshot: Number of examples before each question; None means each task's own
            number.
        limit: Number of first questions of each task to use, for a quick try.
        include: Folder with YAML files of your own tasks.

    Returns:
        For each task: `version`, `num_fewshot`, `samples`, and `metrics`, which has for
        each metric its `value` and `stderr` (None if the harness gives none).

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
    """Return a folder's tasks if it has all that are wanted, else all tasks."""
    if include is not None:
        # Finding the thousands of tasks of the harness takes seconds.
        own = TaskManager(include_path=include, include_defaults=False)
        if all(own.match_tasks([wanted]) for wanted in tasks):
            return own
    return TaskManager(include_path=include)


def _metrics(result: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return value and standard error by metric; a name may end with a filter."""
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
        ValueError: The task samples in an unsupported way.
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
