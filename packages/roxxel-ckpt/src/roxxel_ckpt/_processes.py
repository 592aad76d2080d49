"""How the processes of a program agree about a checkpoint.

Processes exchange short texts through the coordination service (see `coordination`),
with a deadline and without a computation on the devices. A program that is not
initialised with `jax.distributed` is one process and exchanges nothing.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import jax

from roxxel_ckpt import errors
from roxxel_ckpt.coordination import CoordinationService, coordination_service
from roxxel_ckpt.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    OtherProcessError,
    brief,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Channel:
    """A series of agreements between all processes.

    Every process makes the same agreements in the same order.

    Args:
        name: The same on every process, and different for every channel.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"roxxel-ckpt/{name}"
        self._turn = 0

    def agree(
        self,
        call: str,
        report: Callable[[], Any],
        decide: Callable[[list[Any]], Any],
        timeout_s: float,
    ) -> Any:
        """Return what process 0 decides from the reports of all processes.

        Args:
            call: Name of this agreement, the same on every process.
            report: Called on every process; returns a JSON value.
            decide: Called on process 0 with the reports in process order; returns a
                JSON value.
            timeout_s: Longest wait for the other processes, in seconds.

        Raises:
            CheckpointError: Another process failed. The error has the class that the
                other process raised, or is an `OtherProcessError`.
            CheckpointTimeoutError: A process did not report in time.
            Exception: What `report` or `decide` raised in this process.
        """
        service = _service()
        if service is None:
            return decide([report()])
        turn, self._turn = self._turn, self._turn + 1
        keys = f"{self._prefix}/{turn}/"
        failure: Exception | None = None
        message: dict[str, Any] = {"call": call}
        try:
            message["value"] = report()
        except Exception as error:  # noqa: BLE001 - raised below, once all know
            failure = error
            message["error"] = [type(error).__name__, brief(error)]
        if service.process_index == 0:
            answer, failed = _decide(service, keys, message, decide, timeout_s)
            failure = failure or failed
            service.set(keys + "answer", json.dumps(answer))
            if turn:
                service.delete(f"{self._prefix}/{turn - 1}/")
        else:
            service.set(f"{keys}{service.process_index}", json.dumps(message))
            # Process 0 waits for the slowest process before it answers.
            answer = _answer(service, keys, call, 2 * timeout_s, failure)
        if failure is not None:
            raise failure
        if "error" in answer:
            kind, text = answer["error"]
            raise _error_class(kind)(text)
        return answer["value"]

    def close(self) -> None:
        """Delete what the channel stored, once every process has left the channel."""
        service = _service()
        if service is not None and service.process_index == 0:
            service.delete(f"{self._prefix}/")


def is_first_process() -> bool:
    """Return whether this is process 0, which decides and logs for all processes."""
    return process_index() == 0


def process_index() -> int:
    """Return the index of this process."""
    service = _service()
    return 0 if service is None else service.process_index


def process_count() -> int:
    """Return the number of processes."""
    service = _service()
    return 1 if service is None else service.process_count


def _service() -> CoordinationService | None:
    """Return the service; None in a program of one process."""
    service = coordination_service()
    if service is None and jax.process_count() > 1:
        raise CheckpointError(
            "JAX runs on several processes without its coordination service; "
            "call jax.distributed.initialize() first"
        )
    return None if service is None or service.process_count == 1 else service


def _decide(
    service: CoordinationService,
    keys: str,
    own: dict[str, Any],
    decide: Callable[[list[Any]], Any],
    timeout_s: float,
) -> tuple[dict[str, Any], Exception | None]:
    """Return the answer to all processes, and the error to raise on process 0."""
    deadline, messages = time.monotonic() + timeout_s, [own]
    for process in range(1, service.process_count):
        try:
            text = service.get(f"{keys}{process}", deadline - time.monotonic())
        except TimeoutError as error:
            late = _late(f"process {process}", own["call"], timeout_s)
            late.__cause__ = error
            return {"error": ["CheckpointTimeoutError", str(late)]}, late
        messages.append(json.loads(text))
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


def _answer(
    service: CoordinationService,
    keys: str,
    call: str,
    timeout_s: float,
    failure: Exception | None,
) -> dict[str, Any]:
    try:
        return json.loads(service.get(keys + "answer", timeout_s))
    except TimeoutError as error:
        raise (failure or _late("process 0", call, timeout_s)) from error


def _late(process: str, call: str, timeout_s: float) -> CheckpointTimeoutError:
    return CheckpointTimeoutError(
        f"{call}: {process} did not answer within {timeout_s:g} seconds; "
        "its own log says why, or give a larger timeout"
    )


def _error_class(name: str) -> type[CheckpointError]:
    found: Any = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, CheckpointError):
        return found
    return OtherProcessError
