"""On a mesh with an axis `context`, the columns of long rows are split over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import run_python

PROGRAM = Path(__file__).parent / "programs" / "context_axis.py"


@pytest.fixture
def found(
    request: pytest.FixtureRequest, tmp_path: Path, compilation_cache: Path
) -> Any:
    """What a part of the program prints."""
    command = str(PROGRAM), request.param, str(tmp_path)
    done = run_python(tmp_path, compilation_cache, *command, devices=8)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("found", ["laws"], indirect=True)
def test_loss_and_gradients_are_those_of_one_device(found: Any) -> None:
    for name, of_mesh in found.items():
        for index, rounding in enumerate((1e-5, 1e-3)):
            alone = found["alone"]["losses"][index]
            loss, gradient = of_mesh["losses"][index], of_mesh["gradients"][index]
            assert loss == pytest.approx(alone, rel=rounding), name
            assert gradient < 50 * rounding, name


@pytest.mark.parametrize("found", ["refusals"], indirect=True)
def test_what_cannot_be_split_is_refused(found: Any) -> None:
    columns, kernel = found

    assert columns == (
        "2 rows do not divide over all devices, and their 50 columns not over the 4 of "
        "the axis 'context'; use a seq_len of 49 or 53"
    )
    assert 'attention="cudnn" cannot split a row' in kernel


@pytest.mark.long
@pytest.mark.parametrize("found", ["memory"], indirect=True)
def test_what_a_device_keeps_falls_with_the_axis(found: Any) -> None:
    one, two, four, eight = found["kept"]

    # What does not fall are the scores of a block and the gradients of the weights.
    fixed = 2 * two - one
    assert fixed < one / 8
    for ways, kept in ((4, four), (8, eight)):
        assert kept - fixed == pytest.approx((one - fixed) / ways, rel=0.2)

    # Keys and values of 12 layers with 768 channels, in both passes.
    assert found["gathered"] == [0, *[4 * 12 * 131_072 * 768] * 3]


@pytest.mark.long
@pytest.mark.parametrize("found", ["runs"], indirect=True)
def test_a_run_goes_on_from_every_step_of_the_change(found: Any) -> None:
    assert found["broken"] == found["whole"]
    for row, alone in zip(found["whole"], found["alone"], strict=True):
        assert row[0] == alone[0]
        assert row[1] == pytest.approx(alone[1], rel=1e-5)
        assert row[2] == alone[2]  # the digest of the data
