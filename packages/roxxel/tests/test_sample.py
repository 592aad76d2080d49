from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from roxxel.cli import main
from roxxel.evaluate.sampling import sample_tokens
from roxxel.evaluate.scoring import Scorer
from roxxel.models import Llama, LlamaConfig
from roxxel_format import Roxxel

from .runs import said

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

pytestmark = pytest.mark.first

TEXT_RUN = """\
model = "roxxel.models:llama"
save_path = "run"

[sources]
self = "text.rox"

[[phases]]
steps = 2
batch_size = 2
seq_len = 9

[model_args]
preset = "tiny"
vocab_size = 256
width = 16
num_heads = 2
num_layers = 1
hidden = 24
context = 64
"""


class Successor(nnx.Module):
    """Predicts the next integer, except for a small chance of 0."""

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.log(0.999 * jax.nn.one_hot(tokens + 1, 8) + 1e-4)


class Noisy(nnx.Module):
    """A recurrent model that draws numbers wherever it is called."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(8, 8, rngs=rngs)
        self.cell = nnx.RNN(nnx.GRUCell(8, 8, rngs=rngs))
        self.drop = nnx.Dropout(0.9, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.drop(self.cell(self.embed(tokens)))


def drawn(**options: float) -> list[int]:
    return sample_tokens(Successor(), [1, 2], 4, **options).tolist()  # pyright: ignore[reportArgumentType]


def test_a_sample_continues_the_prompt_and_follows_the_seed() -> None:
    model = Llama(LlamaConfig.tiny(width=16, num_layers=1, hidden=24), rngs=nnx.Rngs(0))

    def sampled(seed: int) -> npt.NDArray[np.int32]:
        return sample_tokens(model, [3, 5], 12, seed=seed)

    assert sampled(0).shape == (12,)
    assert sampled(0).tolist() == sampled(0).tolist() != sampled(1).tolist()


def test_the_likeliest_tokens_are_taken_where_nothing_is_drawn() -> None:
    assert drawn(temperature=0) == [3, 4, 5, 6]
    assert drawn(temperature=1e6, top_k=1) == [3, 4, 5, 6]


def test_a_stop_token_ends_the_sample_and_is_left_out() -> None:
    assert drawn(temperature=0, stop=5) == [3, 4]
    either = sample_tokens(Successor(), [1, 2], 4, temperature=0, stop={9, 4})
    assert either.tolist() == [3]


def test_a_model_with_random_streams_is_run_in_evaluation_mode() -> None:
    trained, evaluated = Noisy(), Noisy()
    evaluated.eval()
    tokens = [1, 2]
    for _ in range(3):
        tokens.append(int(evaluated(jnp.asarray([tokens]))[0, -1].argmax()))

    added = sample_tokens(trained, [1, 2], 3, temperature=0)
    [score] = Scorer(trained, context=8).scores([(tokens, 3)])

    assert [1, 2, *added.tolist()] == tokens
    assert score.is_greedy
    assert not trained.drop.deterministic


class Shapeless(nnx.Module):
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array]:
        return (tokens,)


class Greedy(nnx.Module):
    def __call__(self, tokens: jax.Array, segment_ids: jax.Array) -> jax.Array:
        return tokens + segment_ids


@pytest.mark.parametrize(
    ("model", "named"), [(Shapeless(), "Shapeless.*tuple"), (Greedy(), "segment_ids")]
)
def test_a_model_that_gives_no_logits_for_tokens_is_refused(
    model: nnx.Module, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        sample_tokens(model, [1, 2], 3)
    with pytest.raises(ValueError, match=named):
        Scorer(model, context=8).scores([([1, 2, 3], 1)])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1]]}, "prompt"),
        ({"num_tokens": 0}, "num_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"seed": 2**63}, "seed must fit 64 bits, got 9"),
        ({"seed": -(2**63) - 1}, "seed must fit 64 bits, got -9"),
    ],
)
def test_a_number_out_of_range_is_named(options: dict[str, object], named: str) -> None:
    given: dict[str, object] = {"prompt": [1], "num_tokens": 2, **options}

    with pytest.raises(ValueError, match=named):
        sample_tokens(Successor(), **given)  # pyright: ignore[reportArgumentType]


def test_the_model_of_a_run_continues_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Roxxel(tmp_path / "text.rox").write([b"to be or not to be"] * 9, separator=0)
    (tmp_path / "run.toml").write_text(TEXT_RUN)
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    capsys.readouterr()
    run, prompt = str(tmp_path / "run"), ("--prompt", "to be", "--max-tokens", "4")

    newest = said(capsys, "sample", run, *prompt)
    assert newest.startswith("to be")
    assert said(capsys, "sample", f"{run}@2", *prompt) == newest

    assert main(["sample", f"{run}@7", *prompt]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "7" in error

    assert main(["sample", run, *prompt, "--seed", "9" * 20]) == 1
    assert "run: seed must fit 64 bits, got 9" in capsys.readouterr().err

    # More tokens than the context has, and a prompt of more.
    for text, count in (("to be", "99"), ("to be " * 20, "4")):
        shown = said(capsys, "sample", run, "--prompt", text, "--max-tokens", count)
        assert shown.startswith(text.strip())
    few = said(capsys, "sample", run, *prompt, "--context", "2", "--json")
    assert json.loads(few)["tokens"] <= 4
    assert main(["sample", run, "--prompt", "", "--max-tokens", "4"]) == 0


def test_the_name_of_a_special_token_in_a_prompt_is_this_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Roxxel(tmp_path / "text.rox").write(["to be or not to be"] * 9, tokenizer="bytes")
    text = TEXT_RUN.replace("256", "257\neos_token_id = 256")
    (tmp_path / "run.toml").write_text(text)
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    capsys.readouterr()
    prompt = "<|endoftext|>" * 5  # 5 tokens; as text, more than the context

    shown = said(
        capsys, "sample", tmp_path / "run", "--prompt", prompt, *("--max-tokens", 9)
    )

    assert shown.startswith(prompt)


def test_texts_begin_and_end_as_the_sources_say_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(save_path: str, *separators: int | None) -> str:
        names = ["self", "s1"][: len(separators)]
        sources: list[str] = []
        for name, separator in zip(names, separators, strict=True):
            file = tmp_path / f"{save_path}_{name}.rox"
            Roxxel(file).write([b"to be or not to be"] * 9, separator=separator)
            sources.append(f'{name} = "{file.name}"')
        shares = ", ".join(f"{name} = 1" for name in names)
        text = TEXT_RUN.replace('"run"', f'"{save_path}"')
        text = text.replace('self = "text.rox"', "\n".join(sources))
        text = text.replace("seq_len = 9", f"seq_len = 9\nweights = {{ {shares} }}")
        (tmp_path / "run.toml").write_text(text)
        assert main(["train", str(tmp_path / "run.toml")]) == 0
        capsys.readouterr()
        return str(tmp_path / save_path)

    # The primary records no separator, so that of the other source counts.
    assert (
        main(["sample", train("one", None, 0), "--prompt", "", "--max-tokens", "4"])
        == 0
    )
    capsys.readouterr()

    run = train("several", 0, 1)
    assert main(["sample", run, "--prompt", "to", "--max-tokens", "4"]) == 0
    capsys.readouterr()
    assert main(["sample", run, "--prompt", "", "--max-tokens", "4"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "token 0 in source 'self' and token 1 in source 's1'" in error
