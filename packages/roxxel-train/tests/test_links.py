"""A connection shows whether the process at its other end is alive."""

from __future__ import annotations

from typing import Any

from roxxel_train._together.links import Links

GUARD_S = 600


class Service:
    """The coordination service, as far as `Links` uses it."""

    process_index = 0
    host = "127.0.0.1"

    def set(self, _key: str, value: str) -> None:
        self.value = value

    def get(self, _key: str, _timeout_s: float) -> str:
        return self.value


def test_a_closed_connection_names_its_process() -> None:
    service: Any = Service()
    first = Links(service, "keys")
    service.process_index = 3
    other = Links(service, "keys")
    other.connect(GUARD_S)
    assert first.wait(GUARD_S) == {}  # the connection
    assert first.wait(0.0) == {}

    other.close()

    assert first.wait(GUARD_S) == {3: "killed or crashed"}
    first.close()
