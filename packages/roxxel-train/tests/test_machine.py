from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from roxxel_train._observe.machine import Machine, peak_flops_per_s

from .helpers import VOCABULARY, pair


def device(kind: str = "cpu", process: int = 0, **memory: int) -> Any:
    return SimpleNamespace(
        device_kind=kind, process_index=process, memory_stats=lambda: memory or None
    )


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU7x", 1153.5),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 366.5),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA B200", 2250),
    ],
)
def test_peak_is_found_by_the_name_that_jax_gives(kind: str, tera: float) -> None:
    assert peak_flops_per_s(kind) == tera * 1e12


@pytest.mark.parametrize(
    "kind", ["cpu", "TPU v99", "NVIDIA L400", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""]
)
def test_peak_of_another_device_is_not_guessed(kind: str) -> None:
    assert peak_flops_per_s(kind) is None


def test_flops_are_six_for_each_parameter_and_a_share_of_all_devices() -> None:
    model, _ = pair()
    parameters = VOCABULARY * 4 + 4 * VOCABULARY + VOCABULARY
    machine = Machine(model, [device("TPU v4"), device("TPU v4", process=1)])

    fields = machine.fields(1e6)

    assert fields == {
        "model_flops_per_s": 6e6 * parameters,
        "mfu": 6e6 * parameters / 550e12,
    }


def test_flops_per_token_of_the_user_replace_the_count() -> None:
    machine = Machine(pair()[0], [device("TPU v4")], 275.0)

    assert machine.fields(5e11) == {"model_flops_per_s": 137.5e12, "mfu": 0.5}


def test_devices_of_several_kinds_have_no_peak() -> None:
    machine = Machine(pair()[0], [device("TPU v4"), device("TPU v5p")], 1.0)

    assert machine.fields(2.0) == {"model_flops_per_s": 2.0}


def test_memory_is_that_of_the_fullest_device_of_this_process() -> None:
    devices = [
        device(bytes_in_use=3, peak_bytes_in_use=9),
        device(bytes_in_use=5, peak_bytes_in_use=7),
        device(process=1, bytes_in_use=99, peak_bytes_in_use=99),
    ]

    fields = Machine(pair()[0], devices, 1.0).fields(1.0)

    assert (fields["device_bytes"], fields["device_peak_bytes"]) == (5, 9)


def test_fields_that_this_machine_lacks_are_left_out() -> None:
    fields = Machine(pair()[0], jax.devices()).fields(1.0)

    assert fields["model_flops_per_s"] > 0
    assert ("device_bytes" in fields) == bool(jax.devices()[0].memory_stats())
