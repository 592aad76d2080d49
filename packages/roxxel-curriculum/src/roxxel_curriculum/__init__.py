"""Which tokens each training step sees: phases, blends and order as pure arithmetic."""

from roxxel_curriculum._bijection import Permutation, make_key, permute

__all__ = ["Permutation", "make_key", "permute"]
