"""The report of a comparison: first where Roxxel is not ahead, then all figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _adapters import ADAPTERS, GATHER, OURS

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]

KINDS = {adapter.name: adapter.kind for adapter in ADAPTERS}
MIB = 1 << 20

MOST_MEMORY = 8 * MIB
"""Private bytes that Roxxel may take beyond a batch, if the corpus has few shards."""


@dataclass(frozen=True)
class Target:
    """A goal of Roxxel against others in one figure.

    Attributes:
        name: Name of the figure in the report.
        figure: Name of the records.
        wanted: Labels of the records to which it applies.
        others: `"peers"` for the best peer, else the name of an adapter.
        least: Ratio to reach, as in "3 times as good as".
        lower: Whether a smaller figure is better.
    """

    name: str
    figure: str
    wanted: Record
    others: str
    least: float
    lower: bool = False


def targets() -> list[Target]:
    """Return Roxxel's goals (docs/benchmarks.md)."""
    warm = {"pages": "warm"}
    found: list[Target] = []
    for shape, to_numpy, to_jax in (
        ("16x1025", 2.5, 2.0),
        ("64x2049", 2.5, 2.0),
        ("1x32769", 1.3, 1.0),
    ):
        numpy, jax = ({"shape": shape, "to": to} for to in ("numpy", "jax"))
        found += [
            Target("tokens/s", "throughput", warm | numpy, "peers", to_numpy),
            Target("tokens/s", "throughput", warm | numpy, GATHER, 0.5),
            Target("tokens/s", "throughput", warm | jax, "peers", to_jax),
        ]
    return [
        *found,
        Target("tokens/s", "throughput", {"pages": "cold"}, "peers", 1.0),
        Target("open and first batch", "open", {}, "peers", 1.0, lower=True),
        Target("resume at 90 %", "resume", {}, "peers", 1.0, lower=True),
        Target("resume a blend", "resume, blended", {}, "peers", 1.0, lower=True),
        Target("write", "write", {}, "peers", 1.0),
        Target("write, synced to disk", "write, synced", {}, "peers", 1.0),
    ]


@dataclass(frozen=True)
class Verdict:
    """Whether a goal is met for one group of records.

    Attributes:
        target: The goal.
        labels: Labels of the group.
        other: The adapter with which Roxxel was compared.
        ratios: Ratio of each round; larger is better for Roxxel.
    """

    target: Target
    labels: str
    other: str
    ratios: list[float]

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    @property
    def holds(self) -> bool:
        """Whether the median reaches the goal."""
        return self.ratio >= self.target.least


def verdicts(records: list[Record]) -> list[Verdict]:
    """Return the verdicts on all goals for which there are records."""
    found: list[Verdict] = []
    for target in targets():
        wanted = target.wanted | {"figure": target.figure}
        for labels, group in grouped(matching(records, wanted)).items():
            by_name = {record["adapter"]: record["values"] for record in group}
            mine = by_name.pop(OURS, None)
            others = rivals(by_name, target)
            if mine is None or not others:
                continue
            best = (min if target.lower else max)(
                others, key=lambda name: statistics.median(others[name])
            )
            pairs = zip(mine, others[best], strict=False)
            ratios = [b / a if target.lower else a / b for a, b in pairs]
            found.append(Verdict(target, labels, best, ratios))
    return found


def rivals(by_name: dict[str, list[float]], target: Target) -> dict[str, list[float]]:
    """Return the values of the adapters that a goal names.

    A loop over a memory map has no checksums, no index, no check of its file and no
    curriculum. For writing, opening and resuming it is a limit, not a peer.
    """
    if target.others != "peers":
        return {name: by_name[name] for name in by_name if name == target.others}
    is_limit = target.figure.startswith(("write", "open", "resume"))
    bare = {"memmap loop"} if is_limit else set[str]()
    return {
        name: values
        for name, values in by_name.items()
        if KINDS[name] == "peer" and name not in bare
    }


def matching(records: Iterable[Record], wanted: Record) -> list[Record]:
    """Return the records that have these labels."""
    return [
        record
        for record in records
        if all(record.get(key) == value for key, value in wanted.items())
    ]


def grouped(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return records by their labels except the adapter, as the report prints them."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(label(record), []).append(record)
    return found


def label(record: Record) -> str:
    """Return the labels of a record in words, except the adapter's name."""
    words = [f"{record['mib']:g} MiB of {record['dtype']}"]
    if "shape" in record:
        words.append(record["shape"])
    if "to" in record:
        words.append(f"to {record['to']}, {record['pages']} pages")
    return ", ".join(words)


def spread(values: list[float], scale: float, digits: int) -> str:
    """Return median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    numbers = [f"{value * scale:.{digits}f}" for value in (middle, low, high)]
    return numbers[0] if len(values) == 1 else "{} ({} to {})".format(*numbers)


def table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def markdown(found: Record) -> str:
    """Return the report."""
    records: list[Record] = found["records"]
    judged = verdicts(records)
    lines = ["# Roxxel beside other loaders", "", *behind(found, judged), ""]
    lines += [_machine(found), ""]
    lines += ["## Targets", "", *_targets(judged), ""]
    for name, figure, scale, digits in (
        ("Throughput, million tokens/s", "throughput", 1e-6, 1),
        ("Open and first batch, ms", "open", 1e3, 2),
        ("Resume at 90 % of the epoch, ms", "resume", 1e3, 2),
        ("Resume at 90 % of the epoch, two sources, ms", "resume, blended", 1e3, 2),
        ("Private memory beyond one batch, MiB", "memory", 1 / MIB, 2),
        ("Write, million tokens/s", "write", 1e-6, 0),
        ("Write and sync to disk, million tokens/s", "write, synced", 1e-6, 0),
        ("Bytes on disk for a token", "bytes a token", 1, 3),
    ):
        lines += _figures(name, matching(records, {"figure": figure}), scale, digits)
    lines += _checks(matching(records, {"figure": "checks"}))
    lines += _scaling(records)
    return "\n".join(lines).rstrip() + "\n"


def behind(found: Record, judged: list[Verdict]) -> list[str]:
    """Return where Roxxel is not ahead, which goals it missed, and what did not run."""
    lines = [
        f"- {v.target.name}, {v.labels}: {spread(v.ratios, 1, 2)} of {v.other}, "
        f"the target is {v.target.least:g}."
        for v in judged
        if not v.holds
    ]
    lines += [
        f"- private memory, {label(record)}: {max(record['values']) / MIB:.1f} MiB, "
        f"the target is {MOST_MEMORY / MIB:g}."
        for record in matching(found["records"], {"figure": "memory", "adapter": OURS})
        if max(record["values"]) > MOST_MEMORY
    ]
    lines += [
        f"- what is delivered: {name} does not hold for roxxel."
        for record in matching(found["records"], {"figure": "checks", "adapter": OURS})
        for key, name in CHECKS
        if record[key] is False
    ]
    missed = (
        ["Where Roxxel is not ahead as promised:", "", *lines]
        if lines
        else ["Every target that was measured holds."]
    )
    if not found["not_run"]:
        return missed
    return [
        *missed,
        "",
        "Not run:",
        "",
        *(f"- {name}: {reason}" for name, reason in found["not_run"].items()),
    ]


def _machine(found: Record) -> str:
    machine = found["machine"]
    versions = {
        name: version
        for script in found["versions"].values()
        for name, version in script.items()
    }
    return (
        f"{machine['system']}, {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Python {machine['python']}; load before the "
        f"run {machine['load_before']}. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    )


def _targets(judged: list[Verdict]) -> list[str]:
    return table(
        ["figure", "of", "against", "ratio (range)", "target", "holds"],
        (
            [
                v.target.name,
                v.labels,
                v.other,
                spread(v.ratios, 1, 2),
                f"{v.target.least:g}",
                "yes" if v.holds else "**no**",
            ]
            for v in judged
        ),
    )


def _figures(name: str, records: list[Record], scale: float, digits: int) -> list[str]:
    """Return a table for each corpus and target: a row per adapter, a column per shape.

    Figures of writing have one column, because documents have no shape.
    """
    lines: list[str] = []
    parts: dict[str, list[Record]] = {}
    for record in records:
        rest = {key: value for key, value in record.items() if key != "shape"}
        parts.setdefault(label(rest), []).append(record)
    for part, members in parts.items():
        shapes = list(dict.fromkeys(map(column, members)))
        rows: dict[str, dict[str, str]] = {}
        for record in members:
            text = spread(record["values"], scale, digits)
            rows.setdefault(record["adapter"], {})[column(record)] = text
        lines += [f"### {name}; {part}", ""]
        lines += table(
            ["", *shapes],
            ([who, *(cells.get(s, "") for s in shapes)] for who, cells in rows.items()),
        )
        lines += [""]
    return lines


def column(record: Record) -> str:
    """Return which column of a table a record belongs in."""
    return record.get("shape", "documents")


CHECKS: tuple[tuple[str, str], ...] = (
    ("consecutive", "a sample is a run of consecutive tokens"),
    ("exactly_once", "no token twice in an epoch"),
    ("resumes", "resume gives the same order"),
    ("disjoint", "two processes get different tokens"),
    ("blended", "a blend keeps its shares in each batch"),
)


DELIVERED = (
    "`delivered`: share of the corpus in an epoch; `pieces`: most runs in a sample; "
    "`off by`: samples of 16 that a batch is off the blend, at most; `jump`: median "
    "distance of batches that follow each other, of the corpus (0.29 if shuffled "
    "throughout)."
)


def _checks(records: list[Record]) -> list[str]:
    if not records:
        return []
    words = {True: "yes", False: "**no**", None: "not offered"}
    head = ["", *(text for _, text in CHECKS), "delivered", "pieces", "off by", "jump"]
    return [
        "### What is delivered",
        "",
        DELIVERED,
        "",
        *table(
            head,
            (
                [
                    record["adapter"],
                    *(words[record[name]] for name, _ in CHECKS),
                    f"{record['delivered']:.3f}",
                    str(record["pieces"]),
                    "" if record["blend_off"] is None else f"{record['blend_off']:.1f}",
                    f"{record['jump']:.2f}",
                ]
                for record in records
            ),
        ),
        "",
    ]


Cell = tuple[str, Callable[[Record], str]]

SCALING: tuple[tuple[str, str, tuple[Cell, ...]], ...] = (
    (
        "shards",
        "Sparse shards",
        (
            ("shards", lambda r: str(r["shards"])),
            ("TB", lambda r: f"{r['terabytes']:.3g}"),
            ("first open, ms", lambda r: f"{r['first_open_s'] * 1e3:.1f}"),
            ("open, ms", lambda r: f"{r['open_s'] * 1e3:.1f}"),
            ("open, ms a shard", lambda r: f"{r['open_s'] * 1e3 / r['shards']:.3f}"),
            ("resume, ms", lambda r: f"{r['resume_s'] * 1e3:.1f}"),
            ("memory, MiB", lambda r: f"{r['memory_bytes'] / MIB:.1f}"),
        ),
    ),
    (
        "blend",
        "Blends, batches of 64x1025 to numpy",
        (
            ("sources", lambda r: str(r["sources"])),
            ("Mtok/s", lambda r: f"{r['throughput'] / 1e6:.0f}"),
            ("open, ms", lambda r: f"{r['open_s'] * 1e3:.1f}"),
            ("resume, ms", lambda r: f"{r['resume_s'] * 1e3:.1f}"),
        ),
    ),
    (
        "processes",
        "Processes that share batches of 48x2049",
        (
            ("processes", lambda r: str(r["processes"])),
            ("Mtok/s together", lambda r: f"{r['throughput'] / 1e6:.0f}"),
        ),
    ),
)


def _scaling(records: list[Record]) -> list[str]:
    lines: list[str] = []
    for figure, name, cells in SCALING:
        found = matching(records, {"figure": figure})
        if found:
            rows = [[text(record) for _, text in cells] for record in found]
            lines += [f"### {name}", "", *table([head for head, _ in cells], rows), ""]
    return lines


def draw(found: Record, folder: Path) -> None:
    """Draw throughput as bars, with a line for the gather: a picture per target."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        print("no pictures: matplotlib is not installed")
        return
    mpl.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    records = matching(found["records"], {"figure": "throughput", "pages": "warm"})
    parts = {(r["mib"], r["dtype"], r["to"]) for r in records}
    for mib, dtype, to in sorted(parts):
        wanted = {"mib": mib, "dtype": dtype, "to": to}
        path = folder / f"throughput-{mib:g}MiB-{dtype}-{to}.png"
        _bars(matching(records, wanted), f"{mib:g} MiB of {dtype}, to {to}", path)


COLOURS = {"ours": "#2a6f97", "peer": "#c9ada7", "limit": "#e9ecef"}


def _bars(records: list[Record], title: str, path: Path) -> None:
    import matplotlib.pyplot as plt

    shapes = list(dict.fromkeys(record["shape"] for record in records))
    names = [a.name for a in ADAPTERS if any(r["adapter"] == a.name for r in records)]
    figure, axes = plt.subplots(
        1,
        len(shapes),
        figsize=(4 * len(shapes) + 2, 0.3 * len(names) + 1.4),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, shape in zip(axes[0], shapes, strict=True):
        of_shape = matching(records, {"shape": shape})
        values = {
            r["adapter"]: [value / 1e6 for value in r["values"]] for r in of_shape
        }
        for place, name in enumerate(names):
            if name not in values:
                continue
            low, high = min(values[name]), max(values[name])
            middle = statistics.median(values[name])
            axis.barh(place, middle, color=COLOURS[KINDS[name]], edgecolor="#495057")
            axis.plot([low, high], [place, place], color="#212529", linewidth=1)
            axis.annotate(
                f"{middle:.0f}",
                (high, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        if GATHER in values:
            limit = statistics.median(values[GATHER])
            axis.axvline(limit, color="#9d0208", linestyle="--", linewidth=1)
        axis.set_title(shape)
        axis.set_xlabel("million tokens/s")
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figure.suptitle(f"{title}; the line is numpy's gather")
    figure.savefig(path, dpi=110)
    plt.close(figure)
