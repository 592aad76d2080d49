from __future__ import annotations

import pickle
import signal
from typing import TYPE_CHECKING

import pytest
from roxxel_train import PREEMPTED_EXIT_CODE, BatchRow, NonFiniteError, Preempted
from roxxel_train._signals import Requests

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def interrupts_are_not_ignored() -> Iterator[None]:
    """Undo what a shell does to programs that it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_remembered_instead_of_obeyed(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with Requests() as requests:
        assert requests.stop(1) is None
        signal.raise_signal(number)
        assert requests.stop(2) == number.name

    assert signal.getsignal(number) is before


def test_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Requests() as requests:
            signal.raise_signal(signal.SIGTERM)
            assert requests.stop(1) is None
    finally:
        signal.signal(signal.SIGTERM, before)


def test_second_signal_acts_as_without_us() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def twice() -> None:
        with Requests():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert signal.getsignal(signal.SIGTERM) is before


def test_preempted_is_an_exit_with_a_code_of_its_own() -> None:
    error = Preempted(12, "SIGTERM")

    assert isinstance(error, SystemExit)
    assert error.code == PREEMPTED_EXIT_CODE == 75
    assert str(error) == (
        "SIGTERM ended the run after step 12; start it again to continue from there"
    )
    assert "nothing was saved" in str(Preempted(12, "SIGTERM", saved=False))


def test_loss_error_names_rows_and_survives_pickling() -> None:
    rows = tuple(BatchRow(i, "web", 9 * i, 9 * i + 9, (i, i + 1)) for i in range(6))

    error = pickle.loads(pickle.dumps(NonFiniteError(3, "the loss is inf", rows)))  # noqa: S301

    assert error.rows == rows
    message = str(error)
    assert message.startswith("step 3: the loss is inf; its batch was row 0: web")
    assert "row 1: web tokens [9, 18), documents 1, 2" in message
    assert "and 2 more rows" in message
