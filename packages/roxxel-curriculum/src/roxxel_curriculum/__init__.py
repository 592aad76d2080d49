"""Compute which tokens each training step reads, without reading earlier steps.

A `Curriculum` declares what a run reads: a primary corpus, other corpora blended with
it, and phases of fixed batch size, sequence length and blend. Its `Sampler` computes
the batch of any step as a pure function of corpus, curriculum, seed and step. A resumed
run does not replay earlier steps, and one call returns any earlier batch::

    curriculum = Curriculum(Roxxel("wiki_*.rox"), [Phase(1000, 16, 1025)])
    sampler = curriculum.sampler(seed=42)
    batch = sampler.batch(999)

A source is a `Roxxel`, or any other class that inherits `TokenReader`.
"""

from roxxel_format import TokenReader

from roxxel_curriculum._arguments import (
    DROP,
    REPEAT,
    STOP,
    Documents,
    Phase,
    Policy,
    repeat,
)
from roxxel_curriculum._bind.inverse import Occurrence
from roxxel_curriculum._bind.reading import Field
from roxxel_curriculum._bind.samples import Location, Windows
from roxxel_curriculum._errors import CurriculumError, StateMismatch
from roxxel_curriculum._order import ARITHMETIC_VERSION
from roxxel_curriculum._order.bijection import Permutation, make_key, permute
from roxxel_curriculum._plan.plan import (
    CorpusPlan,
    PhasePlan,
    Plan,
    PlanDiff,
    SourcePlan,
    WithdrawnPlan,
)
from roxxel_curriculum._plan.proxy import Proxy
from roxxel_curriculum._plan.solution import MixPlan, ResolvedPhase
from roxxel_curriculum._withdrawn import IndexSet, Withdrawal
from roxxel_curriculum.curriculum import Curriculum, Schedule
from roxxel_curriculum.sampler import Sampler, recorded_sampler

__all__ = [
    "ARITHMETIC_VERSION",
    "DROP",
    "REPEAT",
    "STOP",
    "CorpusPlan",
    "Curriculum",
    "CurriculumError",
    "Documents",
    "Field",
    "IndexSet",
    "Location",
    "MixPlan",
    "Occurrence",
    "Permutation",
    "Phase",
    "PhasePlan",
    "Plan",
    "PlanDiff",
    "Policy",
    "Proxy",
    "ResolvedPhase",
    "Sampler",
    "Schedule",
    "SourcePlan",
    "StateMismatch",
    "TokenReader",
    "Windows",
    "Withdrawal",
    "WithdrawnPlan",
    "make_key",
    "permute",
    "recorded_sampler",
    "repeat",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules that hold them."""
    return __all__
