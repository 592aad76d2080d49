"""The result of `accelerator.py` in lines: one for each stage, and the goals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Record = dict[str, Any]

GOALS: tuple[tuple[str, str, str, Callable[[Any], bool]], ...] = (
    ("throughput", "mfu", "MFU at least 40 %", lambda x: x >= 0.40),
    (
        *("throughput", "ratio", "Trainer at least 0.99 of the hand-written loop"),
        lambda x: x >= 0.99,
    ),
    ("throughput", "wait_share", "waiting for data below 0.5 %", lambda x: x < 0.005),
    ("resume", "identical", "losses after kill -9 bit-identical", bool),
    (
        *("save", "save_cost_steps", "the first save costs below one step"),
        lambda x: x < 1.0,
    ),
    ("larger", "mfu", "MFU at least 45 % at 360 million", lambda x: x >= 0.45),
    ("phase-change", "change_ratio", "longest step below 1.5", lambda x: x <= 1.5),
)


def line(name: str, record: Record) -> str:
    """Return the result of a stage in one line."""
    seconds = record.get("seconds", 0.0)
    if "skipped" in record:
        return f"{name}: skipped: {record['skipped']}"
    if "failed" in record:
        return f"{name}: FAILED after {seconds:.0f} s: {record['failed']}"
    return f"{name}: {seconds:.0f} s: {_found(name, record)}"


def text(result: Record) -> str:
    """Return the goals, then the failures."""
    stages: dict[str, Record] = result["stages"]
    device = stages.get("device", {}).get("device_kind", "no device")
    lines = [f"{device}; {result['machine']['nvidia_smi']}"]
    for stage, field, goal, holds in GOALS:
        value = stages.get(stage, {}).get(field)
        if value is None:
            lines.append(f"  {goal}: not measured")
        else:
            verdict = "yes" if holds(value) else "MISSED"
            shown = f"{value:.4f}" if isinstance(value, float) else value
            lines.append(f"  {goal}: {verdict} ({shown})")
    lines += [line(name, found) for name, found in stages.items()]
    return "\n".join(lines)


def _found(name: str, record: Record) -> str:
    return _WORDS[name](record)


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _device(record: Record) -> str:
    return (
        f"{record['device_kind']}, product {record['peak'] / 1e12:.0f} TFLOP/s, memory "
        f"{max(record['memory_bytes_per_s']) / 1e12:.2f} TB/s"
    )


def _attention(record: Record) -> str:
    return "; ".join(
        f"{name} does not run"
        if "failed" in path
        else f"{name} {1e3 * path['both_s']:.2f} ms, right: {path['right']}"
        for name, path in record["paths"].items()
    )


def _throughput(record: Record) -> str:
    found = (
        f"batch {record['batch_size']}, {record['trainer_tokens_per_s']:,.0f} "
        f"tokens/s, {_mfu(record)}, "
        f"{record['ratio']:.4f} of the hand-written loop, waiting "
        f"{record['wait_share']:.2%}"
    )
    variants = (
        f"{name}: {one['failed']}"
        if "failed" in one
        else f"{name} {one['mfu_tokens_per_s']:,.0f} tokens/s, MFU {_share(one['mfu'])}"
        for name, one in record.get("variants", {}).items()
    )
    return "; ".join([found, *variants])


def _resume(record: Record) -> str:
    return (
        f"from step {record['resumed_from']}, identical: {record['identical']}; a "
        f"repeated update costs {record['repeat_cost_steps']:.2f} steps"
    )


def _save(record: Record) -> str:
    over = record.get("restore_over_training")
    return (
        f"the first save costs {record['save_cost_steps']:.2f} steps of "
        f"{1e3 * record['usual_step_s']:.1f} ms, a later one "
        f"{record['later_save_cost_steps']:.2f}; a digest takes "
        f"{1e3 * min(record['digests_s']):.0f} ms; a restore's peak is "
        f"{'unknown' if over is None else f'{over:.2f}'} of training's"
    )


def _change(record: Record) -> str:
    return f"the longest step is {record['change_ratio']:.2f} usual ones"


def _larger(record: Record) -> str:
    return (
        f"batch {record['batch_size']}, {record['mfu_tokens_per_s']:,.0f} tokens/s, "
        + _mfu(record)
    )


def _long(record: Record) -> str:
    temporary = record["program"]["temp_size_in_bytes"] / 1e9
    return (
        f"{record['batch_size']} rows of {record['context']} tokens, "
        f"{record['mfu_tokens_per_s']:,.0f} tokens/s, {temporary:.1f} GB beside the "
        f"state, " + _mfu(record)
    )


def _mfu(record: Record) -> str:
    return (
        f"MFU {_share(record['mfu'])} by 6N, "
        f"{_share(record['mfu_with_causal_attention'])} with causal attention, "
        f"{_share(record['mfu_with_full_attention'])} as PaLM and nanoGPT count it"
    )


_WORDS: dict[str, Callable[[Record], str]] = {
    "device": _device,
    "attention": _attention,
    "throughput": _throughput,
    "resume": _resume,
    "save": _save,
    "phase-change": _change,
    "larger": _larger,
    "long": _long,
}
