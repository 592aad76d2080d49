"""Agreement between processes, through the service of `jax.distributed`.

The processes exchange short JSON values and run no collectives on their devices: a
collective blocks until every process joins, so it blocks forever if a process has
failed. A call to the service has a deadline and works in any thread. Through a
`Channel`, every process sends a report, and process 0 decides from all reports. A
program that ends announces this in every channel, so no other process waits for it. A
killed program announces nothing: JAX ends the others when its heartbeat is missing.

JAX has no public API for this service; only this module uses the private API.
`roxxel_train` uses this module; user programs need not.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax._src import distributed, xla_bridge

from roxxel_ckpt import errors
from roxxel_ckpt.activity import doing
from roxxel_ckpt.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    OtherProcessError,
    brief,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# While process 0 waits for a report, it looks this often whether a program has ended.
_LOOK_S = 1.0


@dataclass(frozen=True)
class CoordinationService:
    """The connection of this process to the service.

    Attributes:
        process_index: Index of this process, from 0. Unlike `jax.process_index()`,
            reading this attribute does not initialize the devices.
        process_count: Number of processes.
        client: JAX's own client.
        host: Host name or address of process 0, which every process can reach.

    Example:
        >>> coordination_service() is None  # in a program of one process
        True
    """

    process_index: int
    process_count: int
    client: Any
    host: str

    def set(self, key: str, value: Any, *, overwrite: bool = False) -> bool:
        """Store a value under a key.

        Args:
            key: Parts separated by slashes.
            value: The value, which JSON can hold.
            overwrite: Replace the value of an existing key.

        Returns:
            False if the key existed and its value is unchanged.
        """
        text = json.dumps(value)
        try:
            self.client.key_value_set(key, text, allow_overwrite=overwrite)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def get(self, key: str, timeout_s: float) -> Any:
        """Wait until a key has a value, and return the value.

        Raises:
            TimeoutError: No process stored a value within `timeout_s` seconds.
        """
        try:
            text: str = self.client.blocking_key_value_get(
                key, _milliseconds(timeout_s)
            )
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                raise TimeoutError(
                    f"no process stored {key!r} within {timeout_s:g} s"
                ) from error
            raise
        return json.loads(text)

    def entries(self, prefix: str) -> dict[str, Any]:
        """Return the values whose keys begin with `prefix`, which ends in a slash.

        The keys of the returned dict lack `prefix`.
        """
        found: list[tuple[str, str]] = self.client.key_value_dir_get(prefix)
        return {key.removeprefix(prefix): json.loads(text) for key, text in found}

    def delete(self, key: str) -> None:
        """Delete a key, or every key below a prefix that ends in a slash."""
        self.client.key_value_delete(key)

    def barrier(self, name: str, timeout_s: float) -> None:
        """Wait until every process has called `barrier` with the same name.

        Args:
            name: A name that no earlier barrier had.
            timeout_s: Longest wait, in seconds.

        Raises:
            TimeoutError: A process, possibly this one, reached the barrier too late.
        """
        try:
            self.client.wait_at_barrier(name, _milliseconds(timeout_s))
        except jax.errors.JaxRuntimeError as error:
            raise TimeoutError(f"barrier {name!r}: {error}") from error


class Channel:
    """A series of agreements, which every process makes in the same order.

    In each agreement, every process reports a JSON value. Process 0 computes the
    decision, another JSON value, from the list of reports in process order. In a
    program of one process, this process decides from its own report.

    Args:
        name: The same on every process, and different for every channel.

    Example:
        >>> channel = Channel("example")
        >>> channel.agree("choose a step", lambda: 3, max, timeout_s=1.0)
        3
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"roxxel/{name}/"
        # The turn to which this process has contributed nothing yet.
        self._turn = 0
        self._ended: str | None = None
        _channels.add(self)
        at_exit(_leave)

    def agree(
        self,
        call: str,
        report: Callable[[], Any],
        decide: Callable[[list[Any]], Any],
        timeout_s: float,
    ) -> Any:
        """Wait for the reports of all processes, and return what process 0 decides.

        An error in one process is raised on every process. On the other processes, a
        CheckpointError keeps its class, and any other error becomes an
        OtherProcessError. If the program of a process has ended, the others raise an
        OtherProcessError at once, now and in every later agreement.

        Args:
            call: Name of the agreement, also in errors; the same on every process.
            report: Returns the report of this process.
            decide: Returns the decision; runs on process 0.
            timeout_s: Longest time until all processes have reported, in seconds.

        Raises:
            CheckpointTimeoutError: A process did not report in time; raised on all.
            CheckpointError: Another process failed, or makes a different call.
            OtherProcessError: The program of another process has ended.
        """
        service = _service()
        if service is None:
            return decide([report()])
        if self._ended is not None:
            raise OtherProcessError(f"{call}: {self._ended}")
        turn = self._turn
        message, failure = _message(call, report)
        if service.process_index == 0:
            answer, failed = self._answer(service, turn, message, decide, timeout_s)
            failure = failure or failed
            self._turn += 1
        else:
            keys = self._keys(turn)
            service.set(f"{keys}{service.process_index}", message)
            self._turn += 1
            try:
                # Process 0 may itself wait `timeout_s` for the slowest process.
                with doing(call, waits=True):
                    answer = service.get(f"{keys}answer", 2 * timeout_s)
            except TimeoutError as error:
                raise (failure or _late("process 0", call, timeout_s)) from error
        self._ended = answer.get("ended")
        if failure is not None:
            raise failure
        if self._ended is not None:
            raise OtherProcessError(f"{call}: {self._ended}")
        if "error" in answer:
            kind, text = answer["error"]
            raise _error_class(kind)(text)
        return answer["value"]

    def leave(self, service: CoordinationService, how: str) -> None:
        """Release the processes that wait for this one, because its program ends.

        `how` says how it ends. What this process has already contributed counts.
        """
        keys = self._keys(self._turn)
        message = {"ended": how}
        service.set(f"{keys}{service.process_index}", message)
        service.set(f"{keys}answer", message)

    def close(self) -> None:
        """Delete the channel's values; no process may use the channel afterwards."""
        _channels.discard(self)
        service = _service()
        if service is not None and service.process_index == 0:
            service.delete(self._prefix)

    def _keys(self, turn: int) -> str:
        return f"{self._prefix}{turn}/"

    def _answer(
        self,
        service: CoordinationService,
        turn: int,
        own: dict[str, Any],
        decide: Callable[[list[Any]], Any],
        timeout_s: float,
    ) -> tuple[dict[str, Any], Exception | None]:
        """Publish the answer to all processes; return it, and process 0's error."""
        keys = self._keys(turn)
        try:
            with doing(own["call"], waits=True):
                messages = _gather(service, keys, own, timeout_s)
        except CheckpointTimeoutError as late:
            answer = {"error": ["CheckpointTimeoutError", str(late)]}
            service.set(f"{keys}answer", answer)
            return answer, late
        answer, failed = _decide(messages, decide)
        service.set(f"{keys}answer", answer)
        if turn:  # all processes have reported now, so they have read the last answer
            service.delete(self._keys(turn - 1))
        return answer, failed


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()
_exit_lock = threading.Lock()
_at_exit: set[tuple[int, Callable[[], None]]] = set()


def coordination_service() -> CoordinationService | None:
    """Return the service; None where `jax.distributed` is not initialised."""
    state = distributed.global_state
    if state.client is None:
        return None
    host = (state.coordinator_address or "").rpartition(":")[0].strip("[]")
    return CoordinationService(
        state.process_id, state.num_processes or 1, state.client, host
    )


def has_devices() -> bool:
    """Return whether this process has initialised its devices; does not wait.

    Initialising the devices waits for all other processes.
    """
    return not is_finding_devices() and xla_bridge.backends_are_initialized()


def is_finding_devices() -> bool:
    """Return whether a thread of this process is initialising its devices."""
    lock = xla_bridge._backend_lock  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - JAX has no function for this
    is_free = lock.acquire(blocking=False)
    if is_free:
        lock.release()
    return not is_free


def process_index() -> int:
    """Return the index of this process."""
    service = _service()
    return 0 if service is None else service.process_index


def process_count() -> int:
    """Return the number of processes."""
    service = _service()
    return 1 if service is None else service.process_count


def at_exit(act: Callable[[], None]) -> None:
    """Call a function once when the program ends, while threads can still start.

    Hooks of `atexit` run later, JAX's shutdown among them. Of several functions, the
    one that was given first runs last. A fork of the program calls only its own.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    program = os.getpid()

    def act_in_program() -> None:
        if os.getpid() == program:
            act()

    with _exit_lock:
        if (program, act) not in _at_exit:
            _at_exit.add((program, act))
            register(act_in_program)


def _service() -> CoordinationService | None:
    """Return the service, or None in a program of one process."""
    service = coordination_service()
    if service is None and jax.process_count() > 1:
        raise CheckpointError(
            "JAX runs on several processes without its coordination service; "
            "call jax.distributed.initialize() first"
        )
    return None if service is None or service.process_count == 1 else service


def _message(
    call: str, report: Callable[[], Any]
) -> tuple[dict[str, Any], Exception | None]:
    """Return the message of this process, and its error, to raise once it is sent."""
    try:
        with doing(call):
            return {"call": call, "value": report()}, None
    except Exception as error:  # noqa: BLE001 - raised by the caller
        return {"call": call, "error": [type(error).__name__, brief(error)]}, error


def _gather(
    service: CoordinationService, keys: str, own: dict[str, Any], timeout_s: float
) -> list[dict[str, Any]]:
    """Wait for the messages of all processes, and return them in process order.

    Raises:
        CheckpointTimeoutError: A process sent no message within `timeout_s` seconds.
    """
    deadline, messages = time.monotonic() + timeout_s, [own]
    for process in range(1, service.process_count):
        message = None
        while message is None:
            left_s = deadline - time.monotonic()
            try:
                message = service.get(f"{keys}{process}", min(left_s, _LOOK_S))
            except TimeoutError as error:
                # If a program has ended, it has answered in the place of process 0.
                message = service.entries(keys).get("answer")
                if message is None and left_s <= _LOOK_S:
                    late = _late(f"process {process}", own["call"], timeout_s)
                    raise late from error
        messages.append(message)
    return messages


def _decide(
    messages: list[dict[str, Any]], decide: Callable[[list[Any]], Any]
) -> tuple[dict[str, Any], Exception | None]:
    """Return the answer for all processes, and the error to raise on process 0."""
    own = messages[0]
    ended = next((message for message in messages if "ended" in message), None)
    if ended is not None:
        return ended, None
    for process, message in enumerate(messages):
        if message["call"] != own["call"]:
            text = (
                f"process 0 calls {own['call']} and process {process} calls "
                f"{message['call']}; every process must make the same calls in the "
                "same order"
            )
            return {"error": ["CheckpointError", text]}, CheckpointError(text)
    for process, message in enumerate(messages):
        if "error" in message:
            kind, text = message["error"]
            text = f"process {process}: {text}"
            return {"error": [kind, text]}, _error_class(kind)(text)
    try:
        return {"value": decide([message["value"] for message in messages])}, None
    except Exception as error:  # noqa: BLE001 - raised by the caller
        text = f"process 0: {brief(error)}"
        return {"error": [type(error).__name__, text]}, error


def _late(process: str, call: str, timeout_s: float) -> CheckpointTimeoutError:
    return CheckpointTimeoutError(
        f"{call}: {process} did not answer within {timeout_s:g} seconds; "
        "read its log, or give a larger timeout"
    )


def _error_class(name: str) -> type[CheckpointError]:
    found: Any = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, CheckpointError):
        return found
    return OtherProcessError


def _leave() -> None:
    """Release the other processes, before JAX waits for them as it shuts down."""
    service = coordination_service()
    if service is None or service.process_count == 1:
        return
    # Python keeps the exception that ended the program.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    why = "" if error is None else f" ({brief(error)})"
    how = (
        f"the program of process {service.process_index} has ended{why} while this "
        "process waits for it; read its output"
    )
    for channel in list(_channels):
        with suppress(Exception):  # the service may have ended before
            channel.leave(service, how)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
