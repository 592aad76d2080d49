"""One compilation of an update for all processes of a host, on the CPU.

On GPUs and TPUs, JAX's compilation cache serves all processes that share its folder.
Without an entry they must compile together: for GPUs, XLA divides the timing of kernels
among them. On the CPU, the cache's key includes the process's own place among the
devices, so the cache serves only process 0, and `jax_share_binary_between_hosts` waits
for a key that never comes. So on the CPU, the processes of a host load what process 0
compiles.
"""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import serialize_executable
from roxxel_ckpt.coordination import coordination_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax.sharding import Mesh
    from roxxel_ckpt.coordination import CoordinationService

_LOOK_S = 1.0
_KEYS = "roxxel_train/programs"
_COMPILE_IT = b""
"""Tells a process to compile the program itself; after an error, it meets the same
error.
"""


def compiled_once(
    name: str,
    lowered: Any,
    mesh: Mesh,
    compile_here: Callable[[], Any],
    is_given_up: Callable[[], bool],
) -> Any:
    """Return the compiled program, which process 0 compiles for its host.

    Args:
        name: The program's name: the same in every process, and different for every
            program.
        lowered: The program to compile. A process with another program than process 0,
            or on another host, compiles its own.
        mesh: The devices of the program.
        compile_here: Compiles the program in this process.
        is_given_up: Whether nobody waits for the program any more.
    """
    service = coordination_service()
    if (
        service is None
        or service.process_count == 1
        or mesh.devices.flat[0].platform != "cpu"
    ):
        return compile_here()
    text = lowered.as_text()
    facts = [platform.node(), *(device.id for device in mesh.devices.flat), text]
    digest = hashlib.sha256(json.dumps(facts).encode()).digest()
    key, is_shared = f"{_KEYS}/{name}", _can_be_shared(text)
    if service.process_index == 0:
        return _compiled_for_all(
            service, key, digest if is_shared else None, compile_here
        )
    found = None if is_shared else _COMPILE_IT
    while found is None:
        if is_given_up():
            raise RuntimeError(f"nobody waits for program {name} any more")
        found = service.get_bytes(key, _LOOK_S)
    if not found.startswith(digest):
        return compile_here()
    return serialize_executable.deserialize_and_load(
        found.removeprefix(digest), lowered.in_tree, lowered.out_tree
    )


def _compiled_for_all(
    service: CoordinationService,
    key: str,
    digest: bytes | None,
    compile_here: Callable[[], Any],
) -> Any:
    message = _COMPILE_IT
    try:
        program = compile_here()
        if digest is not None:
            # JAX cannot serialize some programs, such as one with large constants.
            with suppress(ValueError, NotImplementedError, PicklingError):
                message = digest + serialize_executable.serialize(program)[0]
    finally:
        service.set_bytes(key, message)
    return program


def _can_be_shared(text: str) -> bool:
    """Return whether another process can use this compiled program.

    It cannot if the program has callbacks, which are functions of one process, or if
    XLA has loaded it from a cache, because XLA then serializes it without its
    functions.
    """
    has_cache = bool(jax.config.values["jax_compilation_cache_dir"])
    return not has_cache and "python_cpu_callback" not in text
