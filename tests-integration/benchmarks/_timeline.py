"""What a device did, read from a trace of JAX's profiler.

A trace holds planes, a plane holds lines, and a line holds events. CUDA devices have a
plane `/device:GPU:0` with a line for every stream, whose events are kernels and copies.
TPUs have `/device:TPU:0` with a line of operations. The CPU has no plane of its own:
its programs run on threads of `/host:CPU`, together with all other work of the process.
Figures of the CPU therefore only test this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax.profiler import ProfileData

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_DEVICE = re.compile(r"/device:(GPU|TPU):\d+")
_DEVICE_LINES = re.compile(r"Stream #|XLA Ops$")
_CPU = "/host:CPU"
_CPU_LINES = re.compile(r"tf_XLAPjRtCpuClient|tf_XLAEigen")
_CPU_OVERHEAD = re.compile(r"ThreadpoolListener|Await|^end: |Execute|^\$")
_NOTHING = re.compile(r"(?!)")
_COPY = re.compile(r"memcpy|memset", re.IGNORECASE)

Span = tuple[float, float]
"""Begin and end of something, in seconds."""


@dataclass(frozen=True)
class Timeline:
    """What one device did.

    Attributes:
        plane: Name of the device's plane in the trace.
        kernels: When a kernel ran, in order, without overlaps.
        copies: When something was copied from or to the device, likewise.
    """

    plane: str
    kernels: tuple[Span, ...]
    copies: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """Duration from the first kernel to the end of the last."""
        return self.kernels[-1][1] - self.kernels[0][0]

    @property
    def gaps(self) -> list[float]:
        """Durations in which no kernel ran, between the first and the last."""
        pairs = zip(self.kernels, self.kernels[1:], strict=False)
        return [after[0] - before[1] for before, after in pairs]

    def record(self) -> dict[str, Any]:
        """Return the fields of a record.

        A copy does not make a device busy: `idle_s` is the time without a kernel.
        """
        idle_s = sum(self.gaps)
        return {
            "plane": self.plane,
            "seconds": self.seconds,
            "num_kernel_spans": len(self.kernels),
            "idle_s": idle_s,
            "idle_share": idle_s / self.seconds,
            "longest_gap_s": max(self.gaps, default=0.0),
            "copying_s": sum(end - begin for begin, end in self.copies),
        }


def read_timeline(folder: Path) -> Timeline:
    """Return the timeline of the first device in a trace.

    Args:
        folder: The folder that the trace was written to; it holds one trace.

    Raises:
        RuntimeError: The trace holds no kernel of any device.
    """
    [path] = folder.rglob("*.xplane.pb")
    return timeline_of(ProfileData.from_file(str(path)))


def timeline_of(profile: Any) -> Timeline:
    """Return the timeline of the first device in a profile.

    Args:
        profile: A `jax.profiler.ProfileData`.

    Raises:
        RuntimeError: The profile holds no kernel of any device.
    """
    planes = sorted(profile.planes, key=lambda plane: plane.name)
    chosen = [plane for plane in planes if _DEVICE.fullmatch(plane.name)][:1]
    lines, overhead = _DEVICE_LINES, _NOTHING
    if not chosen:
        chosen = [plane for plane in planes if plane.name == _CPU]
        lines, overhead = _CPU_LINES, _CPU_OVERHEAD
    kernels: list[Span] = []
    copies: list[Span] = []
    for line in (line for plane in chosen for line in plane.lines):
        if lines.match(line.name):
            for name, span in _spans(line.events, overhead):
                (copies if _COPY.search(name) else kernels).append(span)
    if not kernels:
        found = {p.name: [line.name for line in p.lines] for p in planes}
        raise RuntimeError(
            f"the trace holds no kernel of a device, only the planes {found}; this "
            "version of JAX may name them differently"
        )
    return Timeline(chosen[0].name, merged(kernels), merged(copies))


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans in order, those that overlap or touch joined."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return tuple(joined)


def _spans(
    events: Iterable[Any], overhead: re.Pattern[str]
) -> Iterator[tuple[str, Span]]:
    for event in events:
        if event.duration_ns > 0 and not overhead.search(event.name):
            begin = event.start_ns * 1e-9
            yield event.name, (begin, begin + event.duration_ns * 1e-9)
