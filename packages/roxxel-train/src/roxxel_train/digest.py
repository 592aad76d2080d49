"""The digest of the batches of a run, as `roxxel_curriculum.digest` computes it.

Programs without JAX, such as a loop in PyTorch, import the same names from there or
from here.
"""

from roxxel_curriculum.digest import (
    add_step,
    batch_digest,
    device_digest,
    digest_text,
    sum_digests,
)

__all__ = ["add_step", "batch_digest", "device_digest", "digest_text", "sum_digests"]
