"""Which tokens each training step sees, known in advance.

A `Curriculum` declares what a run reads: a primary corpus, others blended with it, and
phases of batch size, length of sample and mixture. Its `Sampler` gives the batch of any
step as a pure function of corpus, curriculum, seed and step: nothing is iterated, so to
resume is to ask for the next step, and to look at an old batch is one call::

    curriculum = Curriculum(Roxxel("wiki_*.rox"), [Phase(1000, 16, 1025)])
    sampler = curriculum.sampler(seed=42)
    batch = sampler.batch(999)

Only numpy is needed, and any object with the methods of `TokenReader` is a source.
"""

from roxxel_format import TokenReader

from roxxel_curriculum._bijection import Permutation, make_key, permute
from roxxel_curriculum._curriculum import Curriculum
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._fields import Field
from roxxel_curriculum._phase import Phase, ResolvedPhase
from roxxel_curriculum._plan import CorpusPlan, MixPlan, PhasePlan, Plan, SourcePlan
from roxxel_curriculum._plan_diff import PlanDiff
from roxxel_curriculum._policy import DROP, REPEAT, STOP, Policy, repeat
from roxxel_curriculum._sampler import Sampler
from roxxel_curriculum._state_form import StateMismatch
from roxxel_curriculum._toml import (
    Schedule,
    load_schedule,
    parse_schedule,
    schedule_from,
)
from roxxel_curriculum._version import ARITHMETIC_VERSION
from roxxel_curriculum._windows import Location, Upcoming, Windows

__all__ = [
    "ARITHMETIC_VERSION",
    "DROP",
    "REPEAT",
    "STOP",
    "CorpusPlan",
    "Curriculum",
    "CurriculumError",
    "Field",
    "Location",
    "MixPlan",
    "Permutation",
    "Phase",
    "PhasePlan",
    "Plan",
    "PlanDiff",
    "Policy",
    "ResolvedPhase",
    "Sampler",
    "Schedule",
    "SourcePlan",
    "StateMismatch",
    "TokenReader",
    "Upcoming",
    "Windows",
    "load_schedule",
    "make_key",
    "parse_schedule",
    "permute",
    "repeat",
    "schedule_from",
]
