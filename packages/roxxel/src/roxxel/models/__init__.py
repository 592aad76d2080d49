"""A decoder of the Llama shape in Flax NNX, with its loss and its optimizer.

`llama` is the function that a config names: `model = "roxxel.models:llama"`. Programs
use `Llama`, `LlamaConfig` and `next_token_loss`. The names and shapes of the weights
are those of a Hugging Face class such as `LlamaForCausalLM`, so `roxxel export` writes
a folder that the library transformers reads.
"""

from roxxel.models._llama import Llama, rotate
from roxxel.models._loss import next_token_loss
from roxxel.models._optimizer import RecipeOptimizer, make_optimizer
from roxxel.models._recipe import llama, remade
from roxxel.recipe import OptimizerConfig
from roxxel.recipe.llama_config import PRESETS, LlamaConfig, RopeScaling

__all__ = [
    "PRESETS",
    "Llama",
    "LlamaConfig",
    "OptimizerConfig",
    "RecipeOptimizer",
    "RopeScaling",
    "llama",
    "make_optimizer",
    "next_token_loss",
    "remade",
    "rotate",
]
