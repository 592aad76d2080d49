"""Barriers by name, and a barrier at which processes compare their settings."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from roxxel_ckpt.activity import doing
from roxxel_ckpt.coordination import Channel, coordination_service

from roxxel_train._together.texts import named
from roxxel_train._together.watcher import needs_all_processes
from roxxel_train.errors import SettingsDifferError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_ckpt.coordination import CoordinationService

_passed: Counter[str] = Counter()
"""Number of uses of each barrier name; JAX's service requires a new key per use."""

_settings = Channel("train/settings")


@needs_all_processes
def barrier(name: str, timeout_s: float = 300.0) -> None:
    """Wait until every process has called `barrier` with the same name.

    If the program of a process ends instead, the waiting processes also end, with a
    message. The barrier uses no device. A name may be used again if all processes use
    the name the same number of times. A single process does not wait.

    Args:
        name: Identifies the barrier, also in the error.
        timeout_s: Longest wait for the other processes, in seconds.

    Raises:
        TimeoutError: Another process did not arrive in time (the error names it), or
            this process arrived after the others had given up.
    """
    service = _shared_service()
    if service is None:
        return
    _passed[name] += 1
    key = f"roxxel/barrier/{_passed[name]}/{name}"
    service.set(f"{key}/{service.process_index}", "here")
    try:
        with doing(f"barrier {name!r}", waits=True):
            service.barrier(key, timeout_s)
    except TimeoutError as error:
        here = set(map(int, service.entries(f"{key}/")))
        # If all are here, this process came after the others had given up.
        late = sorted(set(range(service.process_count)) - here)
        late = late or [service.process_index]
        raise TimeoutError(
            f"barrier {name!r}: {named(late)} of {service.process_count} did not "
            f"arrive within {timeout_s:g} s; read the output of those processes"
        ) from error


def check_same(what: str, settings: Mapping[str, object], timeout_s: float) -> None:
    """Wait until all processes call this function, and compare their settings.

    Processes with different settings would wait for each other forever, or crash in a
    collective. `what` says when the processes compare, such as `"start of the run"`;
    the message of a TimeoutError contains it. `settings` has JSON values by name.

    Raises:
        SettingsDifferError: A setting differs; every process raises this error.
        TimeoutError: A process did not arrive in time.
    """
    if _shared_service() is None:
        return
    barrier(what, timeout_s)
    texts = {
        name: json.dumps(value, sort_keys=True) for name, value in settings.items()
    }
    difference = _settings.agree(what, lambda: texts, _difference, timeout_s)
    if difference:
        raise SettingsDifferError(difference)


def _shared_service() -> CoordinationService | None:
    """Return the coordination service; None if there is only one process."""
    service = coordination_service()
    return None if service is None or service.process_count == 1 else service


def _difference(of_all: list[dict[str, str]]) -> str:
    """Describe the first setting that differs; empty if all settings are equal."""
    for name in of_all[0]:
        processes: defaultdict[str, list[int]] = defaultdict(list)
        for index, texts in enumerate(of_all):
            processes[texts.get(name, "nothing")].append(index)
        if len(processes) > 1:
            values = "; ".join(
                f"{named(indices)}: {_shortened(value)}"
                for value, indices in processes.items()
            )
            return (
                f"{name} differs between processes ({values}); "
                "start all of them with the same files and arguments"
            )
    return ""


def _shortened(value: str) -> str:
    if len(value) <= 80:
        return value
    digest = hashlib.blake2b(value.encode(), digest_size=4).hexdigest()
    return f"{value[:40]}... with digest {digest}"
