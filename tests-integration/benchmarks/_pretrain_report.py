"""Records of the pre-training benchmark as tables in Markdown, beside their goals."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _report import matching, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from _report import Record

Cell = tuple[str, "Callable[[Record], str]"]

MFU_GOALS = {"124m": 0.40, "350m": 0.42, "1.3b": 0.45}


@dataclass(frozen=True)
class Goal:
    """What a record must show.

    Attributes:
        text: The goal.
        part: Part whose records show it.
        value: The figure of a record, None where it was not measured.
        holds: Whether a figure of a record of this size is good enough.
        form: Format of the figure.
    """

    text: str
    part: str
    value: Callable[[Record], Any]
    holds: Callable[[Any, str], bool]
    form: str = "{}"


GOALS = (
    Goal(
        "MFU at least 40, 42, 45 %, by size",
        "throughput",
        lambda r: r.get("mfu"),
        lambda value, size: value >= MFU_GOALS.get(size, 0.0),
        "{:.1%}",
    ),
    Goal(
        "`Trainer` at least 0.99 of the hand-written loop",
        "throughput",
        lambda r: r.get("ratio"),
        lambda value, _: value >= 0.99,
        "{:.3f}",
    ),
    Goal(
        "waiting for data under 0.5 %",
        "throughput",
        lambda r: r.get("wait_share"),
        lambda value, _: value < 0.005,
        "{:.2%}",
    ),
    Goal(
        "the loss of both loops falls",
        "throughput",
        lambda r: _falls(r) if "last_loss" in r else None,
        lambda value, _: value,
    ),
    Goal(
        "no step of a phase change above 1.5 usual ones",
        "phase-change",
        lambda r: r.get("change_ratio"),
        lambda value, _: value <= 1.5,
        "{:.2f}",
    ),
    Goal(
        "an asynchronous save costs at most the copy to the host",
        "phase-change",
        lambda r: r.get("save_over_copy"),
        lambda value, _: value <= 1.0,
        "{:.2f} copies",
    ),
    Goal(
        "losses after kill -9 bit-identical, deterministic flags",
        "resume",
        lambda r: r.get("deterministic", {}).get("resumed_identical"),
        lambda value, _: value,
    ),
    Goal(
        "a state of 60 % of the memory trains",
        "memory",
        lambda r: r.get("trains") if r.get("share", 0) >= 0.6 else None,
        lambda value, _: value,
    ),
    Goal(
        "a state of 60 % of the memory resumes",
        "memory",
        lambda r: r.get("resumes") if r.get("share", 0) >= 0.6 else None,
        lambda value, _: value,
    ),
    Goal(
        "a program compiled on a busy device is that of an idle one",
        "compile",
        lambda r: r.get("same_program") if r.get("updates_meanwhile") else None,
        lambda value, _: value,
    ),
)


def markdown(found: Iterable[Record]) -> str:
    """Return the report of one or more files of records."""
    files = list(found)
    records = [record for one in files for record in one["records"]]
    lines = [*map(_machine, files), ""]
    failed = failures(records)
    if failed:
        lines += ["Failed:", "", *(f"- {line}" for line in failed), ""]
    sizes = list(dict.fromkeys(record["size"] for record in records))
    lines += table(
        ["goal", *sizes],
        (
            [goal.text, *(_verdict(goal, records, size) for size in sizes)]
            for goal in GOALS
        ),
    )
    for part, cells in TABLES.items():
        whole = [r for r in matching(records, {"part": part}) if "failed" not in r]
        if whole:
            head = ["", *(record["size"] for record in whole)]
            rows = ([name, *map(text, whole)] for name, text in cells)
            lines += ["", f"### {part}", "", *table(head, rows)]
    for record in matching(records, {"part": "resume"}):
        lines += ["", f"### resume, {record['size']}", "", *_resumes(record)]
    return "\n".join(lines)


def failures(records: Iterable[Record]) -> list[str]:
    """Return one line for each failed process: its part, its size and the reason."""
    return [
        f"{record['part']}, {record['size']}: {why}"
        for record in records
        for why in _reasons(record)
    ]


def _reasons(record: Record) -> Iterator[str]:
    for name, value in record.items():
        if name in {"failed", "reason"}:
            yield value
        elif isinstance(value, dict):
            yield from (f"{name}: {why}" for why in _reasons(value))


def _falls(record: Record) -> bool:
    return all(
        record[f"{prefix}last_loss"] < record[f"{prefix}first_loss"]
        for prefix in ("", "by_hand_")
    )


def _machine(found: Record) -> str:
    machine = found["machine"]
    kinds = {
        f"{one['device_kind']} (jax {one['jax']})"
        for record in found["records"]
        for one in (record, *(v for v in record.values() if isinstance(v, dict)))
        if "device_kind" in one
    }
    return (
        f"{', '.join(sorted(kinds)) or 'no device'}; {machine['cores']} cores, Python "
        f"{machine['python']}, commit {machine['commit'][:12]}."
    )


def _verdict(goal: Goal, records: list[Record], size: str) -> str:
    wanted = {"part": goal.part, "size": size}
    for record in reversed([*matching(records, wanted)]):
        value = goal.value(record)
        if value is not None:
            break
        if any(_reasons(record)):
            return "**failed**"
    else:
        return "not measured"
    shown = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else None
    text = shown or goal.form.format(value)
    return text if goal.holds(value, size) else f"**{text}**"


def _resumes(record: Record) -> list[str]:
    head = ["flags and cache", "resumed from", "identical", "largest difference"]
    head += ["step", "peak while training", "peak at resume"]
    rows = [
        [
            name,
            *(
                [one["failed"], "", "", "", "", ""]
                if "failed" in one
                else [
                    f"{one['resumed_from']} of {one['steps']}",
                    "yes" if one["resumed_identical"] else "no",
                    f"{one['largest_difference']:.2g}",
                    f"{1e3 * one['step_s']:.1f} ms",
                    _peak("memory_while_training")(one),
                    _peak("memory_at_resume")(one),
                ]
            ),
        ]
        for name, one in record.items()
        if isinstance(one, dict)
    ]
    return table(head, rows)


def _share(name: str) -> Callable[[Record], str]:
    return lambda r: "unknown" if r[name] is None else f"{r[name]:.1%}"


def _gib(num_bytes: float | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 2**30:.3g} GiB"


def _window(name: str) -> Callable[[Record], str]:
    def text(record: Record) -> str:
        window = record["windows"][name]
        longest_ms = 1e3 * window["longest_gap_s"]
        return f"{window['idle_share']:.2%}, longest {longest_ms:.2f} ms"

    return text


def _peak(name: str) -> Callable[[Record], str]:
    return lambda r: _gib(r[name]["peak_bytes_in_use"]) if name in r else "none"


TABLES: dict[str, tuple[Cell, ...]] = {
    "throughput": (
        ("parameters", lambda r: f"{r['parameters'] / 1e6:.1f} M"),
        ("tokens/s, `Trainer`", lambda r: f"{r['trainer_tokens_per_s']:,.0f}"),
        ("tokens/s, by hand", lambda r: f"{r['by_hand_tokens_per_s']:,.0f}"),
        ("ratio (range)", lambda r: _range(r["ratio"], r["ratios"])),
        ("MFU, 6N", _share("mfu")),
        ("MFU, 6N without tables", _share("mfu_without_tables")),
        ("MFU with causal attention", _share("mfu_with_causal_attention")),
        ("MFU with full attention", _share("mfu_with_full_attention")),
        ("waiting for data", lambda r: f"{r['wait_share']:.2%}"),
        ("loss, first and last", lambda r: _pair(r["first_loss"], r["last_loss"])),
    ),
    "phase-change": (
        ("idle, between events", _window("steady")),
        ("idle, at the phase change", _window("phase_change")),
        ("idle, at a save", _window("save")),
        ("longest step of the change", lambda r: f"{r['change_ratio']:.2f} usual ones"),
        ("cost of a save", lambda r: _median_ms(r["save_cost_s"])),
        ("copy to the host", lambda r: _median_ms(r["copy_to_host_s"])),
    ),
    "memory": (
        ("memory of the device", lambda r: _gib(r.get("device_limit_bytes"))),
        ("state", lambda r: _gib(r.get("state_bytes"))),
        ("peak while training", _peak("memory_while_training")),
        ("peak at resume", _peak("memory_at_resume")),
        ("resumes", lambda r: "yes" if r["resumes"] else f"no: {r.get('reason')}"),
    ),
    "compile": (
        ("updates meanwhile", lambda r: str(r["updates_meanwhile"])),
        ("same program", lambda r: _yes(r["same_program"])),
        ("same results", lambda r: _yes(r["same_results"])),
        ("operations that differ", lambda r: str(r["differing_ops"] or "none")),
        ("with pinned choices", lambda r: _pinned(r["pinned"])),
    ),
}


def _range(value: float, values: list[float]) -> str:
    return f"{value:.3f} ({min(values):.3f} to {max(values):.3f})"


def _pair(one: float, other: float) -> str:
    return f"{one:.2f}, {other:.2f}"


def _median_ms(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.1f} ms"


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _pinned(pinned: Record | None) -> str:
    if pinned is None:
        return "not tried: the compiler wrote no choices"
    if "failed" in pinned:
        return str(pinned["failed"])
    return "same program" if pinned["same_program"] else "another program"
