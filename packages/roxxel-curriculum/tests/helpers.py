"""Random curricula over made-up corpora, and the windows that they read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase, Policy, Sampler
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

NAMES = ("self", "code", "math", "web")


@st.composite
def phases(draw: st.DrawFn, names: tuple[str, ...], max_len: int = 40) -> Phase:
    """Draw a short phase over some of the sources."""
    weights = {name: draw(st.sampled_from((0, 1, 2, 3, 0.25))) for name in names}
    if not any(weights.values()):
        weights["self"] = 1
    return Phase(
        draw(st.integers(1, 12)),
        draw(st.integers(1, 9)),
        draw(st.integers(2, max_len)),
        draw(st.sampled_from((weights, None))),
    )


@dataclass(frozen=True)
class Declared:
    """The arguments of a curriculum, to construct it again with changes."""

    readers: dict[str, PositionReader]
    phases: list[Phase]
    policies: dict[str, Policy | str | int]
    overlap: int
    longest: int | None
    skips: list[tuple[int, int]]

    def curriculum(self, **changes: Any) -> Curriculum:
        """Construct the curriculum with some arguments replaced."""
        options = {name: getattr(self, name) for name in _OPTIONS} | changes
        phases = options.pop("phases")
        mix = {name: self.readers[name] for name in self.readers if name != "self"}
        return Curriculum(self.readers["self"], phases, mix, **options)


_OPTIONS = ("phases", "policies", "overlap", "longest", "skips")


def curricula() -> st.SearchStrategy[Curriculum]:
    """Draw a curriculum that can be met, of up to four sources and five phases."""
    return declarations().map(Declared.curriculum)


@st.composite
def declarations(draw: st.DrawFn) -> Declared:
    """Draw the arguments of a curriculum that can be met."""
    count = draw(st.integers(1, 4))
    names = NAMES[:count]
    sizes = [draw(st.integers(400, 6000)) for _ in names]
    readers = {
        name: PositionReader(size, name, document_tokens=37)
        for name, size in zip(names, sizes, strict=True)
    }
    policies: dict[str, Policy | str | int] = {
        name: draw(st.sampled_from(("drop", "repeat", 2))) for name in names[1:]
    }
    declared = draw(st.lists(phases(names), min_size=1, max_size=5))
    # The weight 0 keeps a source unread, which a schedule must declare.
    first = declared[0].weights or {"self": 1}
    declared[0] = replace(declared[0], weights=dict.fromkeys(names, 0) | dict(first))
    skips = draw(
        st.lists(
            st.tuples(
                st.integers(0, sum(phase.steps or 0 for phase in declared) - 1),
                st.integers(1, 5),
            ),
            max_size=2,
        )
    )
    return Declared(
        readers,
        # The primary repeats without a limit and is in every phase, so all can be met.
        [
            Phase(phase.steps, phase.batch_size, phase.seq_len, _with_primary(phase))
            for phase in declared
        ],
        policies,
        overlap=draw(st.sampled_from((0, 1))),
        longest=draw(st.sampled_from((None, 20, 60))),
        skips=skips,
    )


def _with_primary(phase: Phase) -> dict[str, float] | None:
    if phase.weights is None:
        return None
    return {**phase.weights, "self": phase.weights.get("self") or 0.5}


def digest(sampler: Sampler, step: int) -> bytes:
    """Return everything about a step as bytes."""
    windows = sampler.windows(step)
    return (
        sampler.batch(step).tobytes()
        + windows.source.tobytes()
        + windows.start.tobytes()
    )


def delivered(
    sampler: Sampler, is_wanted: Callable[[int], bool] = lambda _: True
) -> dict[str, list[tuple[int, int, int]]]:
    """Return source -> (step, start, stop) of every row, in order."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for step in filter(is_wanted, range(sampler.total_steps)):
        windows = sampler.windows(step)
        for source, start, stop in zip(
            windows.source, windows.start, windows.stop, strict=True
        ):
            found[sampler.source_names[source]].append((step, int(start), int(stop)))
    return found


def coverage(
    windows: list[tuple[int, int, int]], num_tokens: int
) -> npt.NDArray[np.int64]:
    """Return how often each token was delivered."""
    edges = np.zeros(num_tokens + 1, np.int64)
    for _, start, stop in windows:
        edges[start] += 1
        edges[stop] -= 1
    return np.cumsum(edges)[:-1]
