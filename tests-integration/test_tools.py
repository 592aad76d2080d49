"""What the sessions ask of an environment and of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import CUDA, real
from .tools import bare, devices

if TYPE_CHECKING:
    from pathlib import Path


def test_a_package_that_brings_too_much_is_named() -> None:
    found = bare.foreign("roxxel-format", {"numpy"})

    assert "jax came with roxxel-format, which may bring ['numpy'] alone" in found


@pytest.mark.parametrize(
    ("source", "findings"),
    [
        ("import json", 0),
        ("import nothing_of_this_name", 1),
        ("raise ModuleNotFoundError('needs x: pip install \"some-package[x]\"')", 0),
        ("raise ModuleNotFoundError('needs x: pip install \"other[x]\"')", 1),
    ],
)
def test_a_module_that_needs_more_must_name_the_extra(
    source: str, findings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"bare_{findings}_{len(source)}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    found = bare.unusable(f"bare_{findings}_{len(source)}", "some-package")

    assert len(found) == findings


def test_devices_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main("cpu") == 0
    assert capsys.readouterr().out.startswith("found 1: ")


def test_no_device_is_said_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main("nowhere") == devices.NONE_FOUND
    assert "found 0: Unknown backend nowhere" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wanted", "found", "settings"),
    [
        (4, "tpu:4", {"JAX_PLATFORMS": "tpu"}),
        (2, "cuda:4", {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0,1", **CUDA}),
        (
            1,
            "tpu:4",
            {
                "JAX_PLATFORMS": "tpu",
                "TPU_VISIBLE_CHIPS": "0",
                "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
                "TPU_PROCESS_BOUNDS": "1,1,1",
            },
        ),
    ],
)
def test_a_program_sees_as_many_real_devices_as_it_asks_for(
    wanted: int, found: str, settings: dict[str, str]
) -> None:
    assert real(wanted, found) == settings


@pytest.mark.parametrize(("wanted", "found"), [(8, "cuda:1"), (2, "tpu:4")])
def test_a_program_that_asks_for_others_is_skipped(wanted: int, found: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"needs {wanted} "):
        real(wanted, found)
