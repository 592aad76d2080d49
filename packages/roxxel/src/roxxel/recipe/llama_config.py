"""Sizes and options of a decoder of the Llama shape, Qwen-3 and OLMo-2 included.

No module of `roxxel.models` can be imported without JAX. This module is outside, so
`roxxel plan` finds values from which no model can be built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from roxxel_store.arguments import Amount, Count, Entry, Rule, Table, check, check_table

if TYPE_CHECKING:
    from collections.abc import Callable

Preset = Literal[
    "tiny", "small", "medium", "large", "llama_3_2_1b", "qwen_3_0_6b", "olmo_2_1b"
]
Attention = Literal["xla", "cudnn"]
Remat = Literal["none", "dots", "full"]
Dtype = Literal["float32", "bfloat16"]
QkNorm = Literal["none", "head", "whole"]
NormPlacement = Literal["pre", "post"]
TokenId = Annotated[int, Rule(at_least=0)]
_TokenIds = Annotated[tuple[TokenId, ...], Rule(is_filled=True)]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary positions are stretched to a context longer than the original one.

    `"linear"` divides every frequency by `factor` (Chen et al., Extending Context
    Window of Large Language Models via Positional Interpolation, 2023). `"llama3"`
    divides only the frequencies of long wavelengths, as Llama 3.1 does.

    >>> RopeScaling("llama3", factor=8.0).original_context
    8192

    Attributes:
        kind: The rule.
        factor: Divisor of the frequencies, at least 1.
        low_freq_factor: `"llama3"` divides a frequency by the whole `factor` if its
            wavelength is above `original_context / low_freq_factor`.
        high_freq_factor: `"llama3"` keeps wavelengths below `original_context /
            high_freq_factor`. Between both bounds it interpolates.
        original_context: Context of the model before the extension, for `"llama3"`.
    """

    kind: Literal["linear", "llama3"]
    factor: Annotated[float, Rule(at_least=1)]
    low_freq_factor: Amount = 1.0
    high_freq_factor: Amount = 4.0
    original_context: Count = 8192

    def __post_init__(self) -> None:
        check(self)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                "RopeScaling needs 0 < low_freq_factor < high_freq_factor, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and options of a decoder.

    >>> f"{LlamaConfig.small().num_parameters:,}"
    '123,587,328'

    Attributes:
        vocab_size: Rows of the token table.
        width: Channels of each token between layers.
        hidden: Channels inside a feed-forward layer.
        num_layers: Layers, each of attention and a feed-forward layer.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values; divides `num_heads` (grouped-query
            attention: Ainslie et al., 2023).
        head_width: Channels of a head, even. None means `width // num_heads`.
        context: Longest sequence that the model accepts, in tokens.
        rope_theta: Base of the rotary frequencies (Su et al., RoFormer, 2021).
        rope_scaling: How the frequencies are stretched; None leaves them unchanged.
        qk_norm: What RMSNorm normalises before the rotation, against growing attention
            scores (Henry et al., Query-Key Normalization, 2020). `"head"` is each head
            of queries and keys, as in Qwen-3; `"whole"` is the whole projection, as in
            OLMo-2; `"none"` is nothing, as in Llama.
        norm_placement: `"pre"` normalises the input of attention and feed-forward,
            `"post"` their output before it is added, as in OLMo-2 (OLMo et al., 2
            OLMo 2 Furious, 2024).
        norm_epsilon: Added to the mean square inside RMSNorm.
        tied: Whether the token table is also the output matrix.
        init_std: Standard deviation of initial weights. For matrices whose product is
            added to the residual stream, it is divided by `sqrt(2 * num_layers)`.
        dtype: Type of activations and of the inputs of matrix products. Parameters and
            logits are always float32.
        attention: Implementation of `jax.nn.dot_product_attention`. `"cudnn"` needs an
            NVIDIA GPU and `dtype="bfloat16"`.
        remat: Activations that the backward pass computes again. With `"none"` it keeps
            all activations, with `"dots"` the results of products with weights, and
            with `"full"` only the input of each layer.
        tensor_axis: Axis of the mesh that splits heads, hidden channels and the
            vocabulary (Shoeybi et al., Megatron-LM, 2019). None splits nothing.
        fsdp_axis: Axis of the mesh that splits the other dimension of each matrix: the
            dimension that `tensor_axis` does not split.
            Without `tensor_axis`, `model_sharding="fsdp"` of the trainer does the same
            for any model.
        bos_token_id: Token that begins a text, or None.
        eos_token_id: Token that ends a text, or a tuple of such tokens; None if no
            token does. In `[model_args]`, several are a list: if your sources end
            documents with different tokens, name each. Both come from the corpora's
            tokenizer and are below `vocab_size`.
    """

    vocab_size: Count
    width: Count
    hidden: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count
    head_width: Count | None = None
    context: Count = 2048
    rope_theta: Amount = 10_000.0
    rope_scaling: RopeScaling | None = None
    qk_norm: QkNorm = "none"
    norm_placement: NormPlacement = "pre"
    norm_epsilon: Amount = 1e-5
    tied: bool = True
    init_std: Annotated[float, Rule(at_least=0)] = 0.02
    dtype: Dtype = "bfloat16"
    attention: Attention = "xla"
    remat: Remat = "none"
    tensor_axis: str | None = None
    fsdp_axis: str | None = None
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | _TokenIds | None = None

    def __post_init__(self) -> None:
        check(self)
        # Files of TOML and JSON have tables and lists.
        scaling, ends = cast("Any", self.rope_scaling), cast("Any", self.eos_token_id)
        if isinstance(scaling, Mapping):
            scaling = RopeScaling(**cast("Mapping[str, Any]", scaling))
            object.__setattr__(self, "rope_scaling", scaling)
        if isinstance(ends, list):
            object.__setattr__(self, "eos_token_id", tuple(cast("list[int]", ends)))
        self._check_tokens()
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of "
                f"num_kv_heads={self.num_kv_heads}; each key head serves an equal "
                "number of query heads"
            )
        if self.head_width is None and self.width % self.num_heads:
            raise ValueError(
                f"width={self.width} is not a multiple of num_heads={self.num_heads}; "
                "change one of them, or give head_width"
            )
        if self.channels % 2:
            raise ValueError(
                f"a head has {self.channels} channels, and rotary positions need an "
                "even number; change width, num_heads or head_width"
            )
        if self.attention == "cudnn" and self.dtype != "bfloat16":
            raise ValueError(
                'attention="cudnn" needs dtype="bfloat16", got '
                f'{self.dtype!r}; change the dtype, or use attention="xla"'
            )

    def _check_tokens(self) -> None:
        begin = () if self.bos_token_id is None else (self.bos_token_id,)
        for name, tokens in (
            ("bos_token_id", begin),
            ("eos_token_id", self.end_tokens),
        ):
            for each in tokens:
                if each >= self.vocab_size:
                    raise ValueError(
                        f"{name}={each} is no token of a model with vocab_size="
                        f"{self.vocab_size}; take it from the corpus, whose separator "
                        "`roxxel format info` prints"
                    )

    @property
    def channels(self) -> int:
        """Channels of a head."""
        return self.head_width or self.width // self.num_heads

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Every token that ends a text; empty if `eos_token_id` is None."""
        ends = self.eos_token_id
        if ends is None:
            return ()
        return ends if isinstance(ends, tuple) else (ends,)

    @property
    def num_parameters(self) -> int:
        """Number of trainable numbers; a tied table counts once."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        attention = self.width * heads * self.channels
        feed = 3 * self.width * self.hidden
        scales = 2 * self.width
        if self.qk_norm != "none":
            scales += sum(self.qk_norm_sizes)
        layers = self.num_layers * (attention + feed + scales)
        tables = (1 if self.tied else 2) * self.vocab_size * self.width
        return layers + tables + self.width

    @property
    def qk_norm_sizes(self) -> tuple[int, int]:
        """Number of channels that are normalised together: of queries, and of keys."""
        if self.qk_norm == "head":
            return self.channels, self.channels
        return self.num_heads * self.channels, self.num_kv_heads * self.channels

    @classmethod
    def tiny(cls, **changes: Any) -> LlamaConfig:
        """Return the config of a byte model with a million parameters, for a laptop.

        The vocabulary is 256 bytes and a separator. Activations are float32, which
        processors compute faster than bfloat16.
        """
        return cls(**_changed(_TINY, changes))

    @classmethod
    def small(cls, **changes: Any) -> LlamaConfig:
        """Return the config of the 124 M model: 123,587,328 parameters, as GPT-2 small.

        The vocabulary of GPT-2 is rounded up from 50,257 to a multiple of 128, which
        matrix units need to be fast.
        """
        return cls(**_changed(_SMALL, changes))

    @classmethod
    def medium(cls, **changes: Any) -> LlamaConfig:
        """Return the config of the 360 M model: 359,842,816 parameters."""
        return cls(**_changed(_MEDIUM, changes))

    @classmethod
    def large(cls, **changes: Any) -> LlamaConfig:
        """Return the config of the 1.2 B model: 1,235,585,024 parameters, with GQA."""
        return cls(**_changed(_LARGE, changes))

    @classmethod
    def llama_3_2_1b(cls, **changes: Any) -> LlamaConfig:
        """Return the shape of Llama 3.2 1B: 1,235,814,400 parameters."""
        return cls(**_changed(_LLAMA_3_2_1B, changes))

    @classmethod
    def qwen_3_0_6b(cls, **changes: Any) -> LlamaConfig:
        """Return the shape of Qwen-3 0.6B: 596,049,920 parameters."""
        return cls(**_changed(_QWEN_3_0_6B, changes))

    @classmethod
    def olmo_2_1b(cls, **changes: Any) -> LlamaConfig:
        """Return the shape of OLMo-2 1B: 1,484,916,736 parameters."""
        return cls(**_changed(_OLMO_2_1B, changes))


def llama_config(preset: str = "small", **changes: Any) -> LlamaConfig:
    """Return a preset with changed fields, as `[model_args]` declares them.

    Args:
        preset: A name of `PRESETS`.
        **changes: Fields of `LlamaConfig` that differ from the preset. `rope_scaling`
            may be a mapping of the fields of `RopeScaling`.

    Raises:
        TypeError: A value has another type.
        ValueError: A name is unknown, or a value is out of range.
    """
    check_table(Table({"preset": Entry(Preset)}), {"preset": preset})
    return PRESETS[preset](**changes)


def _changed(preset: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a preset with changes.

    The preset's ids that begin and end a text belong to its own vocabulary. With
    another `vocab_size` they would name other tokens, so they are left out.
    """
    if changes.get("vocab_size", preset["vocab_size"]) != preset["vocab_size"]:
        ids = {"bos_token_id", "eos_token_id"}
        preset = {name: value for name, value in preset.items() if name not in ids}
    return preset | changes


def _sizes(*sizes: int) -> dict[str, Any]:
    """Return the fields without defaults, in their order."""
    names = [each.name for each in fields(LlamaConfig)]
    return dict(zip(names, sizes, strict=False))


_TINY: dict[str, Any] = {
    **_sizes(257, 160, 416, 3, 2, 2),
    "context": 1024,
    "tied": False,
    # Narrow layers learn faster from larger initial weights: after 125 steps of the
    # quickstart, the held-out loss is 2.32 nats; with init_std=0.02 it is 2.49 nats.
    "init_std": 0.06,
    "dtype": "float32",
}
_SMALL = _sizes(50304, 768, 2048, 12, 12, 12)
_MEDIUM = _sizes(50304, 1024, 2816, 24, 16, 16)
_LARGE = _sizes(50304, 2048, 5632, 24, 16, 8)
_LLAMA_3_2_1B: dict[str, Any] = {
    **_sizes(128_256, 2048, 8192, 16, 32, 8),
    "context": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": RopeScaling("llama3", 32.0),
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}
_QWEN_3_0_6B: dict[str, Any] = {
    **_sizes(151_936, 1024, 3072, 28, 16, 8),
    "head_width": 128,
    "context": 32_768,
    "rope_theta": 1_000_000.0,
    "qk_norm": "head",
    "norm_epsilon": 1e-6,
    "bos_token_id": 151_643,
    "eos_token_id": 151_643,
}
_OLMO_2_1B: dict[str, Any] = {
    **_sizes(100_352, 2048, 8192, 16, 16, 16),
    "context": 4096,
    "rope_theta": 500_000.0,
    "qk_norm": "whole",
    "norm_placement": "post",
    "norm_epsilon": 1e-6,
    "tied": False,
    "eos_token_id": 100_257,
}

PRESETS: dict[str, Callable[..., LlamaConfig]] = {
    name: getattr(LlamaConfig, name) for name in get_args(Preset)
}
"""The named sizes, from the smallest to the sizes of published models."""
